"""TorchScript archives: the same tensors as the module's state_dict, and nothing of the program in the file is run."""

import io
import pickle
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

from sslbench.backbones.load import load_backbone
from sslbench.backbones.vit_recognise import recognise_vit
from sslbench.errors import WeightsError
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.reading.files import read

WIDTH, HEADS, PATCH, SIDE, DEPTH = 16, 2, 4, 2, 2
pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # torch: TorchScript is deprecated


class QuickGELU(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS)
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential()
        self.mlp.add_module("c_fc", nn.Linear(WIDTH, 4 * WIDTH))
        self.mlp.add_module("gelu", QuickGELU())
        self.mlp.add_module("c_proj", nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.attn(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.class_embedding = nn.Parameter(torch.randn(WIDTH))
        self.positional_embedding = nn.Parameter(torch.randn(SIDE * SIDE + 1, WIDTH))
        self.proj = nn.Parameter(torch.randn(WIDTH, 7))
        self.conv1 = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.transformer = nn.Module()
        self.transformer.resblocks = nn.Sequential(*(Block() for _ in range(DEPTH)))

    def forward(self, images):
        x = self.conv1(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_embedding.expand(len(x), 1, WIDTH), x], 1) + self.positional_embedding
        x = self.transformer.resblocks(self.ln_pre(x).transpose(0, 1))
        return self.ln_post(x[0])  # what CLIP multiplies by proj


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.visual = Tower()
        self.transformer = nn.Linear(3, 3)
        self.logit_scale = nn.Parameter(torch.tensor(4.6))
        self.register_buffer("input_resolution", torch.tensor(SIDE * PATCH))
        self.register_buffer("context_length", torch.tensor(77))

    def forward(self, images):
        return self.visual(images)


class Various(nn.Module):
    """What a scripted module may have besides: lists, numbers, None, tied and strided tensors, a lower-case class."""

    def __init__(self):
        super().__init__()

        class conv(nn.Conv2d):  # noqa: N801
            pass

        self.conv = conv(3, 4, 2)
        self.bn = nn.BatchNorm2d(4)
        self.tied = self.conv.weight
        self.halves = nn.Parameter(torch.randn(6, dtype=torch.bfloat16))
        self.register_buffer("columns", torch.arange(12.0).reshape(3, 4).t()[1:])
        self.register_buffer("flags", torch.tensor([True, False]))
        self.register_buffer("nothing", torch.empty(0, 3))
        self.count, self.sizes, self.rates, self.name = 7, [1, 2], [0.5], ("a", 1)
        self.words = {"a": 1}

    def forward(self, x):
        scale = self.rates[0] * self.sizes[0] + self.words["a"] + self.count
        return self.bn(self.conv(x)) * scale * self.tied.sum()


def clip(path, *, half=False):
    torch.manual_seed(0)
    module = Clip().eval()
    images = torch.randn(2, 3, SIDE * PATCH, SIDE * PATCH)
    if half:
        module.half()
    traced = torch.jit.trace(module, images.to(module.visual.proj.dtype), check_trace=False)
    torch.jit.save(traced, str(path))
    return module, images


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor), name


def changed(path, change):
    """The archive at `path` with `change(name, bytes)` in place of each member's bytes; None leaves it out."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            if (new := change(name, data)) is not None:
                archive.writestr(name, new)


@pytest.mark.parametrize("half", [False, True])
def test_a_traced_clip_gives_its_state_dict_bit_for_bit(tmp_path, half):
    module, _ = clip(tmp_path / "ViT.pt", half=half)
    file = read(tmp_path / "ViT.pt")
    assert (file.container, file.stubbed, file.suspicious) == ("torchscript", (), ())
    assert_same(file.content, module.state_dict())
    assert "visual.transformer.resblocks.0.attn.in_proj_weight" in file.content


def test_a_scripted_module_gives_its_state_dict_bit_for_bit(tmp_path):
    module = Various()
    torch.jit.save(torch.jit.script(module), str(tmp_path / "w.pt"))
    content = read(tmp_path / "w.pt").content
    assert_same(content, module.state_dict())
    assert content["tied"].data_ptr() == content["conv.weight"].data_ptr()


def test_the_other_byte_order_is_turned_round(tmp_path):
    module, _ = clip(tmp_path / "w.pt")

    def to_big(name, data):
        if name.endswith("/byteorder"):
            return b"big"
        kind = np.int64 if len(data) == 8 else np.float32  # only the two counters have 8 bytes
        return np.frombuffer(data, kind).byteswap().tobytes() if "/data/" in name else data

    changed(tmp_path / "w.pt", to_big)
    assert_same(read(tmp_path / "w.pt").content, module.state_dict())


@pytest.mark.parametrize("half", [False, True])
def test_openai_clip_is_recognised_and_computes_what_the_archive_computes(tmp_path, half):
    module, images = clip(tmp_path / "ViT.pt", half=half)
    found = recognise(read(tmp_path / "ViT.pt"))
    assert (found.format, found.prefix) == ("openai_clip", "visual.")
    vit = recognise_vit({name: tuple(t.shape) for name, t in found.canonical.items()}, format=found.format)
    assert vit.name.startswith("timm:vit_base_patch16_clip_quickgelu_224") and vit.quick_gelu
    # The number of heads shows in no tensor, and a width of 16 has no usual one.
    backbone = load_backbone(str(tmp_path / "ViT.pt"), backbone=vit.name.replace("NUMBER", str(HEADS)))
    assert not backbone.report.partial and backbone.format == "openai_clip"
    assert any("float16 to float32" in cast for cast in backbone.report.casts) == half
    with torch.no_grad():
        torch.testing.assert_close(backbone.module(images), module.float()(images), rtol=1e-4, atol=1e-5)


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("where", ["alone", "in a module"])
def test_a_call_in_an_archive_is_refused_and_not_made(tmp_path, where):
    path, mark = tmp_path / "w.pt", tmp_path / "mark"
    clip(path)
    call = pickle.dumps(Evil(open, str(mark), "w"), protocol=2)
    inside = b"\x80\x02c__torch__\nM\n)\x81}X\x01\x00\x00\x00a" + call[2:-1] + b"sb."
    changed(path, lambda name, data: (call if where == "alone" else inside) if name.endswith("/data.pkl") else data)
    with pytest.raises(WeightsError, match=r"w\.pt: the file asks to call '(io|builtins|_io)\.open'.*nothing was run"):
        read(path)
    with pytest.raises(WeightsError, match=r"asks to call"):  # torch.jit.load is not asked either
        read(path, trust_pickle=True)
    assert not mark.exists()


def test_the_program_of_an_archive_is_not_looked_at(tmp_path):
    module, _ = clip(tmp_path / "w.pt")
    changed(tmp_path / "w.pt", lambda name, data: b"no program" if "/code/" in name else data)
    assert_same(read(tmp_path / "w.pt").content, module.state_dict())


def damaged(path, message):
    with pytest.raises(WeightsError, match=message) as caught:
        read(path)
    assert str(path) in caught.value.message and "\n" not in caught.value.message


def test_a_damaged_archive_is_refused_with_one_message(tmp_path):
    path = tmp_path / "w.pt"
    clip(path)
    whole = path.read_bytes()
    for size in (40, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        damaged(path, "is damaged: .* its end is missing or broken")
    for change, message in (
        (lambda name, data: None if name.endswith("/data/0") else data, "torchscript file: .*no item named"),
        (lambda name, data: data[:-2] if name.endswith("/data/0") else data, "torchscript file: storage '0' has"),
        (lambda name, data: data[:-9] if name.endswith("/data.pkl") else data, "torchscript file"),
        (lambda name, data: None if name.endswith("/data.pkl") else data, "TorchScript program without weights"),
    ):
        path.write_bytes(whole)
        changed(path, change)
        damaged(path, message)


def archive_of(path, data_pkl):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("w/data.pkl", data_pkl)
        archive.writestr("w/constants.pkl", b"\x80\x02).")


def test_modules_in_a_circle_or_without_end_are_refused(tmp_path):
    circle = b"\x80\x02c__torch__\nM\n)\x81q\x00}X\x01\x00\x00\x00ah\x00sb."
    archive_of(tmp_path / "circle.pt", circle)
    damaged(tmp_path / "circle.pt", "torchscript file")
    many = io.BytesIO(b"\x80\x02c__torch__\nM\n)\x81q\x00")
    many.seek(0, io.SEEK_END)
    for number in range(40):  # each module holds the one before it twice: 2^40 in all
        put, got = bytes((ord("q"), number + 1)), bytes((ord("h"), number))
        many.write(b"c__torch__\nM\n)\x81}(X\x01\x00\x00\x00a" + got + b"X\x01\x00\x00\x00b" + got + b"ub" + put)
    many.write(b".")
    archive_of(tmp_path / "many.pt", many.getvalue())
    damaged(tmp_path / "many.pt", "far beyond its own size")
