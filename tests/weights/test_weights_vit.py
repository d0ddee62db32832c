"""Formats of vision transformers: names and shapes are those of the timm model, and so are the numbers.

The forward passes here are written from the original definitions, slowly and under the original names; the backbone
that sslbench builds from the same tensors has to give the same features. Those of transformers' networks are compared
with the library itself (test_weights_transformers.py).
"""

import dataclasses
import functools
import math
from pathlib import Path

import pytest
import timm
import torch
from helpers.offenders import offenders
from test_weights_formats import KEYS, VIT_FORMATS, entries, file_with, shapes

from sslbench.backbones.build import build, laid_out
from sslbench.backbones.convert import convert
from sslbench.backbones.load import load_file
from sslbench.backbones.sizes import fit_positions, fit_rotary
from sslbench.backbones.vit_recognise import recognise_vit
from sslbench.weights.fill import CLASS_POSITION, without_class_position
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.formats.rules import OPERATIONS, apply
from sslbench.weights.reading.files import WeightsFile, read
from sslbench.weights.save import save

VIT_KEYS = sorted(
    path
    for path in KEYS
    if path.name.partition(".")[0] in VIT_FORMATS
    or path.stem == "timm"
    or path.stem.startswith(("timm.dino", "timm.deit", "timm.mae"))
)

# Key list -> what timm calls the architecture.
ARCHITECTURES = {
    "dino": "vit_small_patch16_224.dino",
    "dino.vitb8": "vit_base_patch8_224.dino",
    "dino.student": "vit_small_patch16_224.dino",
    "dinov2": "vit_small_patch14_dinov2,img_size=224",
    "dinov2.registers": "vit_base_patch14_reg4_dinov2,img_size=224",
    "dinov2.training": "vit_large_patch14_dinov2,patch_size=16,img_size=224",
    "dinov2_chunked12": "vit_small_patch14_dinov2,img_size=224",
    "dinov2_chunked40": "vit_giant_patch14_reg4_dinov2,img_size=224",
    "dinov2_swiglu": "vit_giant_patch14_dinov2,img_size=224",
    "huggingface_dinov2": "vit_small_patch14_dinov2,img_size=224",
    "huggingface_vit": "vit_base_patch16_224",
    "ibot": "vit_small_patch16_224",
    "ibot.backbone": "vit_small_patch16_224",
    "lightly_vit": "vit_base_patch16_224",
    "mae": "vit_base_patch16_224.mae",
    "mmpretrain_vit": "vit_base_patch16_224",
    "moco_v3_vit": "vit_small_patch16_224,num_heads=12",
    "msn": "vit_small_patch16_224",
    "open_clip.large": "vit_large_patch14_clip_224",
    "openai_clip": "vit_base_patch32_clip_quickgelu_224.openai",
    "timm.deit_distilled": "deit_small_distilled_patch16_224",
    "timm.dino_hub": "vit_small_patch16_224",
    "torchvision_vit": "vit_base_patch16_224",
    "torchvision_vit_files": "vit_base_patch16_224",
    "timm.mae_finetuned": "vit_base_patch16_224,global_pool=avg",
}


def test_the_key_lists_cover_every_format():
    assert {path.name.partition(".")[0] for path in VIT_KEYS} == VIT_FORMATS | {"timm"}
    assert set(ARCHITECTURES) <= {path.stem for path in VIT_KEYS}


def is_the_timm_model(path):
    where, tensors = entries(path)
    found = recognise(file_with(path, tensors, where))
    if path.stem == "dino.resnet50":
        assert {"conv1.weight", "layer4.2.conv3.weight"} <= set(found.canonical)
        return
    vit = recognise_vit(shapes(found.canonical), format=found.format)
    assert vit is not None
    if path.stem in ARCHITECTURES:
        assert vit.name == f"timm:{ARCHITECTURES[path.stem]}"
        assert vit.heads
    with laid_out():
        name = vit.name.replace("NUMBER", "1")  # of heads, for sizes that nobody publishes
        backbone = build(name)
        canonical = {key: torch.empty(tensor.shape) for key, tensor in found.canonical.items()}
        canonical, _ = fit_rotary(canonical, backbone.module)
        canonical, _ = fit_positions(canonical, backbone.module)
    assert shapes(canonical) == shapes(backbone.module.state_dict())
    assert backbone.name == name  # results keep it, and the untrained floor is built from it


def test_names_and_shapes_are_those_of_the_timm_model_that_is_recognised():
    assert offenders(VIT_KEYS, is_the_timm_model) == []


@pytest.mark.parametrize(
    ("stem", "ignored"),
    [
        ("moco_v3_vit", ("head.*", "module.momentum_encoder.*", "module.predictor.*")),
        ("dino", ("head.*",)),
        ("dinov2.training", ("mask_token", "dino_head.*", "ibot_head.*")),
        ("msn", ("fc.*",)),
        ("lightly_vit.dino", ("student_backbone.vit.*", "student_head.*")),
    ],
)
def test_the_other_networks_are_named(stem, ignored):
    path = KEYS[0].with_name(f"{stem}.txt")
    where, tensors = entries(path)
    found = recognise(file_with(path, tensors, where))
    assert set(found.ignored) == set(ignored)


def test_a_file_with_teacher_and_student_gives_the_teacher_and_on_request_the_student():
    _, teacher = entries(KEYS[0].with_name("dino.txt"))
    _, student = entries(KEYS[0].with_name("dino.student.txt"))
    student = {key: tensor + 1000 for key, tensor in student.items()}
    file = WeightsFile(Path("w.pth"), "0" * 64, {"student": student, "teacher": teacher, "epoch": 3}, "torch zip")
    found = recognise(file)
    assert (found.format, found.where) == ("dino", "teacher")
    assert torch.equal(found.canonical["cls_token"], teacher["backbone.cls_token"])
    asked = recognise(file, format="dino:student")
    assert (found.network, found.other_networks, asked.network) == ("teacher", ("student",), "student")
    assert torch.equal(asked.canonical["cls_token"], student["module.backbone.cls_token"])


def test_squeeze_refuses_what_has_no_dimension_to_lose():
    assert apply(("unsqueeze", "unsqueeze"), torch.ones(3), key="k").shape == (1, 1, 3)
    with pytest.raises(Exception, match="first dimension of 1"):
        OPERATIONS["squeeze"].forward(torch.ones(2, 3))


# The numbers, on networks of two blocks.

WIDTH, HIDDEN, HEADS, PATCH, SIZE = 12, 20, 3, 4, 16
ROWS = (SIZE // PATCH) ** 2


def linear(x, weight, bias):
    return x @ weight.T + bias


def norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / ((x - mean) ** 2).mean(-1, keepdim=True).add(eps).sqrt() * weight + bias


def gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def quick_gelu(x):
    return x / (1 + torch.exp(-1.702 * x))


def patches(images, weight):
    """(B, 3, H, W) -> (B, patches, width), row by row."""
    rows = []
    for top in range(0, SIZE, PATCH):
        for left in range(0, SIZE, PATCH):
            patch = images[:, :, top : top + PATCH, left : left + PATCH]
            rows.append(torch.einsum("bchw,ochw->bo", patch, weight))
    return torch.stack(rows, 1)


def attend(q, k, v):
    heads = []
    for part in torch.arange(WIDTH).reshape(HEADS, -1):
        weights = (q[..., part] @ k[..., part].mT / math.sqrt(len(part))).softmax(-1)
        heads.append(weights @ v[..., part])
    return torch.cat(heads, -1)


@dataclasses.dataclass
class Net:
    """Random tensors under foreign names, made when they are first asked for."""

    tensors: dict
    generator: torch.Generator

    def __call__(self, name, *shape):
        if name not in self.tensors:
            near_one = name.endswith(("norm1.weight", "norm2.weight", "ln_1.weight", "ln_2.weight", "norm.weight"))
            self.tensors[name] = torch.randn(shape, generator=self.generator) * 0.5 + float(near_one)
        return self.tensors[name]

    def pair(self, name, *shape):
        return self(f"{name}.weight", *shape), self(f"{name}.bias", shape[0])


def tokens_of(net, images, names, *, registers="", bias=True):
    stem, cls, pos = names
    x = patches(images, net(f"{stem}.weight", WIDTH, 3, PATCH, PATCH))
    x = x + net(f"{stem}.bias", WIDTH) if bias else x
    x = torch.cat([net(cls, 1, 1, WIDTH).expand(len(x), -1, -1), x], 1) + net(pos, 1, ROWS + 1, WIDTH)
    if registers:
        x = torch.cat([x[:, :1], net(registers, 1, 4, WIDTH).expand(len(x), -1, -1), x[:, 1:]], 1)
    return x


def hugging_face_dinov2(net, images):
    at, stem = "dinov2_with_registers.embeddings", "dinov2_with_registers.embeddings.patch_embeddings.projection"
    x = tokens_of(
        net, images, (stem, f"{at}.cls_token", f"{at}.position_embeddings"), registers=f"{at}.register_tokens"
    )
    for i in range(2):
        layer = f"dinov2_with_registers.encoder.layer.{i}"
        y = norm(x, *net.pair(f"{layer}.norm1", WIDTH), 1e-6)
        names = [f"{layer}.attention.attention.{name}" for name in ("query", "key", "value")]
        q, k, v = (linear(y, *net.pair(name, WIDTH, WIDTH)) for name in names)
        y = linear(attend(q, k, v), *net.pair(f"{layer}.attention.output.dense", WIDTH, WIDTH))
        x = x + y * net(f"{layer}.layer_scale1.lambda1", WIDTH)
        y = norm(x, *net.pair(f"{layer}.norm2", WIDTH), 1e-6)
        y = gelu(linear(y, *net.pair(f"{layer}.mlp.fc1", HIDDEN, WIDTH)))
        y = linear(y, *net.pair(f"{layer}.mlp.fc2", WIDTH, HIDDEN))
        x = x + y * net(f"{layer}.layer_scale2.lambda1", WIDTH)
    net("dinov2_with_registers.embeddings.mask_token", 1, WIDTH)
    return norm(x, *net.pair("dinov2_with_registers.layernorm", WIDTH), 1e-6)[:, 0]


def dinov2(net, images, *, gated=False, names=lambda i: f"blocks.{i}"):
    x = tokens_of(net, images, ("patch_embed.proj", "cls_token", "pos_embed"), registers="register_tokens")
    for i in range(2):
        block = names(i)
        qkv = linear(
            norm(x, *net.pair(f"{block}.norm1", WIDTH), 1e-6), *net.pair(f"{block}.attn.qkv", 3 * WIDTH, WIDTH)
        )
        y = linear(attend(*qkv.chunk(3, -1)), *net.pair(f"{block}.attn.proj", WIDTH, WIDTH))
        x = x + y * net(f"{block}.ls1.gamma", WIDTH)
        y = norm(x, *net.pair(f"{block}.norm2", WIDTH), 1e-6)
        if gated:
            a, b = linear(y, *net.pair(f"{block}.mlp.w12", 2 * HIDDEN, WIDTH)).chunk(2, -1)
            y = linear(a * a.sigmoid() * b, *net.pair(f"{block}.mlp.w3", WIDTH, HIDDEN))
        else:
            y = gelu(linear(y, *net.pair(f"{block}.mlp.fc1", HIDDEN, WIDTH)))
            y = linear(y, *net.pair(f"{block}.mlp.fc2", WIDTH, HIDDEN))
        x = x + y * net(f"{block}.ls2.gamma", WIDTH)
    net("mask_token", 1, WIDTH)
    return norm(x, *net.pair("norm", WIDTH), 1e-6)[:, 0]


def dinov2_gated(net, images):
    return dinov2(net, images, gated=True)


def clip(net, images, *, act=quick_gelu):
    x = patches(images, net("visual.conv1.weight", WIDTH, 3, PATCH, PATCH))
    cls = net("visual.class_embedding", WIDTH).expand(len(x), 1, WIDTH)
    x = torch.cat([cls, x], 1) + net("visual.positional_embedding", ROWS + 1, WIDTH)
    x = norm(x, *net.pair("visual.ln_pre", WIDTH), 1e-5)
    for i in range(2):
        block = f"visual.transformer.resblocks.{i}"
        y = norm(x, *net.pair(f"{block}.ln_1", WIDTH), 1e-5)
        qkv = linear(
            y, net(f"{block}.attn.in_proj_weight", 3 * WIDTH, WIDTH), net(f"{block}.attn.in_proj_bias", 3 * WIDTH)
        )
        x = x + linear(attend(*qkv.chunk(3, -1)), *net.pair(f"{block}.attn.out_proj", WIDTH, WIDTH))
        y = act(linear(norm(x, *net.pair(f"{block}.ln_2", WIDTH), 1e-5), *net.pair(f"{block}.mlp.c_fc", HIDDEN, WIDTH)))
        x = x + linear(y, *net.pair(f"{block}.mlp.c_proj", WIDTH, HIDDEN))
    net("visual.proj", WIDTH, 7)
    return norm(x, *net.pair("visual.ln_post", WIDTH), 1e-5)[:, 0]


def openai_clip(net, images):
    net.tensors["input_resolution"] = torch.tensor(SIZE)
    return clip(net, images)


def open_clip(net, images):
    return clip(net, images, act=gelu)


def mmpretrain(net, images):
    x = tokens_of(net, images, ("backbone.patch_embed.projection", "backbone.cls_token", "backbone.pos_embed"))
    for i in range(2):
        layer = f"backbone.layers.{i}"
        y = norm(x, *net.pair(f"{layer}.ln1", WIDTH), 1e-6)
        qkv = linear(y, *net.pair(f"{layer}.attn.qkv", 3 * WIDTH, WIDTH))
        x = x + linear(attend(*qkv.chunk(3, -1)), *net.pair(f"{layer}.attn.proj", WIDTH, WIDTH))
        y = norm(x, *net.pair(f"{layer}.ln2", WIDTH), 1e-6)
        y = gelu(linear(y, *net.pair(f"{layer}.ffn.layers.0.0", HIDDEN, WIDTH)))
        x = x + linear(y, *net.pair(f"{layer}.ffn.layers.1", WIDTH, HIDDEN))
    return norm(x, *net.pair("backbone.ln1", WIDTH), 1e-6)[:, 0]


def simmim(net, images):
    """BEiT's blocks: no bias for keys, one table of biases for all pairs of positions in all blocks."""
    x = patches(images, net("encoder.patch_embed.proj.weight", WIDTH, 3, PATCH, PATCH))
    x = x + net("encoder.patch_embed.proj.bias", WIDTH)
    x = torch.cat([net("encoder.cls_token", 1, 1, WIDTH).expand(len(x), -1, -1), x], 1)
    side = SIZE // PATCH
    table = net("encoder.rel_pos_bias.relative_position_bias_table", (2 * side - 1) ** 2 + 3, HEADS)
    index = torch.empty(ROWS + 1, ROWS + 1, dtype=torch.long)
    index[0, :], index[:, 0], index[0, 0] = len(table) - 3, len(table) - 2, len(table) - 1
    for a in range(ROWS):
        for b in range(ROWS):
            down, right = a // side - b // side, a % side - b % side
            index[a + 1, b + 1] = (down + side - 1) * (2 * side - 1) + right + side - 1
    net.tensors["encoder.rel_pos_bias.relative_position_index"] = index
    for i in range(2):
        block = f"encoder.blocks.{i}"
        y = norm(x, *net.pair(f"{block}.norm1", WIDTH), 1e-6)
        zero = torch.zeros(WIDTH)
        bias = torch.cat([net(f"{block}.attn.q_bias", WIDTH), zero, net(f"{block}.attn.v_bias", WIDTH)])
        q, k, v = linear(y, net(f"{block}.attn.qkv.weight", 3 * WIDTH, WIDTH), bias).chunk(3, -1)
        heads = []
        for head, part in enumerate(torch.arange(WIDTH).reshape(HEADS, -1)):
            scores = q[..., part] @ k[..., part].mT / math.sqrt(len(part)) + table[index][..., head]
            heads.append(scores.softmax(-1) @ v[..., part])
        y = linear(torch.cat(heads, -1), *net.pair(f"{block}.attn.proj", WIDTH, WIDTH))
        x = x + net(f"{block}.gamma_1", WIDTH) * y
        y = norm(x, *net.pair(f"{block}.norm2", WIDTH), 1e-6)
        y = gelu(linear(y, *net.pair(f"{block}.mlp.fc1", HIDDEN, WIDTH)))
        x = x + net(f"{block}.gamma_2", WIDTH) * linear(y, *net.pair(f"{block}.mlp.fc2", WIDTH, HIDDEN))
    net("encoder.mask_token", 1, 1, WIDTH)
    return norm(x, *net.pair("encoder.norm", WIDTH), 1e-6)[:, 0]


ORACLES = {
    "huggingface_dinov2": (hugging_face_dinov2, ""),
    "dinov2": (dinov2, ""),
    "dinov2_swiglu": (dinov2_gated, ""),
    "openai_clip": (openai_clip, ""),
    "open_clip": (open_clip, ""),
    "mmpretrain_vit": (mmpretrain, "state_dict"),
    "simmim": (simmim, "model"),
}


def loaded(format):
    """(features of the oracle, backbone from the same tensors, images, tensors)."""
    forward, where = ORACLES[format]
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, SIZE, SIZE, generator=generator)
    net = Net({}, generator)
    wanted = forward(net, images)
    file = WeightsFile(Path("w.pth"), "0" * 64, {where: net.tensors} if where else net.tensors, "torch zip")
    found = recognise(file)
    assert found.format == format
    name = recognise_vit(shapes(found.canonical), format=found.format).name
    expected = HEADS if format == "simmim" else "NUMBER"  # no network has a width of 12; BEiT's show their heads
    assert f"num_heads={expected}," in name
    return (
        wanted,
        load_file(file, backbone=name.replace(f"num_heads={expected},", f"num_heads={HEADS},")),
        images,
        found,
    )


@pytest.mark.parametrize("format", sorted(ORACLES))
def test_the_backbone_computes_what_the_original_computes(format):
    wanted, backbone, images, _ = loaded(format)
    assert not backbone.report.partial
    with torch.no_grad():
        got = backbone.module(images)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)
    assert wanted.std() > 0.1


def test_openai_clip_needs_quick_gelu():
    wanted, backbone, images, _ = loaded("openai_clip")
    assert "quickgelu" in backbone.name
    file = WeightsFile(Path("w.pth"), "0" * 64, clip_tensors(), "torch zip")
    other = load_file(file, backbone=backbone.name.replace("_quickgelu", ""), format="openai_clip")
    with torch.no_grad():
        assert (other.module(images) - wanted).abs().max() > 0.01


def clip_tensors():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, SIZE, SIZE, generator=generator)
    net = Net({}, generator)
    openai_clip(net, images)
    return net.tensors


@pytest.mark.parametrize("format", ["dinov2", "huggingface_dinov2"])
def test_dinov2_with_registers_keeps_its_positions_in_the_table_and_gives_timm_its_own(format):
    _, backbone, _, found = loaded(format)
    assert found.canonical["pos_embed"].shape[1] == ROWS + 1
    folded = without_class_position(found.canonical)
    assert folded["pos_embed"].shape[1] == ROWS
    assert torch.equal(folded["cls_token"], backbone.module.cls_token)
    assert without_class_position(folded).keys() == folded.keys()
    assert torch.equal(without_class_position(folded)["cls_token"], folded["cls_token"])
    assert "position of the class token added to it" in backbone.report.line()


@pytest.mark.parametrize("format", ["dinov2", "huggingface_dinov2"])
def test_dinov2_with_registers_is_converted_to_what_timm_can_load(format, tmp_path):
    """timm's models have no position for the class token: it is added to the token, and nothing else changes."""
    wanted, backbone, images, found = loaded(format)
    save(tmp_path / "own.torch", found.canonical, backbone=backbone.name, metadata={})
    convert(tmp_path / "own.torch", tmp_path / "theirs.pth", to=format)
    report = convert(tmp_path / "theirs.pth", tmp_path / "timm.pth", to="timm", format=format)
    assert report.changes == (CLASS_POSITION,)
    written = torch.load(tmp_path / "timm.pth", weights_only=True)
    assert written.keys() == found.canonical.keys()
    theirs = build(backbone.name, seed=9).module
    theirs.load_state_dict(written, strict=True)
    torch.testing.assert_close(theirs(images), wanted, rtol=1e-4, atol=1e-5)
    # Back in the format's names the position stays where it was added: the same network, other tensors.
    convert(tmp_path / "timm.pth", tmp_path / "back.pth", to=format)
    back = convert(tmp_path / "back.pth", tmp_path / "again.pth", to="timm", format=format)
    assert back.changes == () and back.tensors_sha256 == report.tensors_sha256
    # Between formats that keep it nothing is changed.
    assert convert(tmp_path / "theirs.pth", tmp_path / "same.pth", to=format, format=format).changes == ()


# What can be written from what: small networks, and the formats that have names for all of their tensors.
TIMM = {
    "vit": ("vit_tiny_patch16_224", {}),
    "deep": ("vit_tiny_patch16_224", {"depth": 12, "embed_dim": 48}),
    "dinov3": ("vit_small_patch16_dinov3", {"init_values": None, "embed_dim": 96}),
    "dinov2": ("vit_small_patch14_dinov2", {"img_size": 56, "embed_dim": 96}),
    "registers": ("vit_small_patch14_reg4_dinov2", {"img_size": 56, "embed_dim": 96}),
    "swiglu": ("vit_giant_patch14_reg4_dinov2", {"img_size": 56, "embed_dim": 96, "num_heads": 2}),
    "clip": ("vit_base_patch32_clip_224", {"embed_dim": 96}),
    "beit": (
        "beit_base_patch16_224",
        {"use_abs_pos_emb": False, "use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "embed_dim": 96}
        | {"global_pool": "token", "init_values": 0.1},
    ),
}
WRITES = {
    "vit": "dino ibot mae msn moco_v3_vit lightly_vit huggingface_vit mmpretrain_vit timm "
    "torchvision_vit torchvision_vit_files huggingface_dinov2 transformers5_dinov2",
    # neither has LayerScale, as published networks of these formats do
    "deep": "dinov2_chunked12",
    "dinov3": "huggingface_dinov3 transformers5_dinov3",
    "dinov2": "dinov2 huggingface_dinov2 mmpretrain_vit timm",
    "registers": "dinov2 huggingface_dinov2 timm",
    "swiglu": "dinov2_swiglu huggingface_dinov2_swiglu timm",
    "clip": "open_clip openai_clip mmpretrain_vit timm",
    "beit": "simmim timm",
}
# A file written without what tells it from others is read as another format with the same tensors.
READ_AS = {"ibot": "dino", "mae": "timm", "openai_clip": "open_clip"}


@functools.cache
def network(kind):
    name, options = TIMM[kind]
    torch.manual_seed(0)
    return timm.create_model(name, num_classes=0, **{"depth": 2} | options).state_dict()


@pytest.mark.parametrize(("kind", "to"), [(kind, to) for kind, names in WRITES.items() for to in names.split()])
def test_every_format_writes_what_it_can_hold_and_reads_it_back(kind, to, tmp_path):
    tensors = network(kind)
    torch.save(tensors, tmp_path / "timm.pth")
    convert(tmp_path / "timm.pth", tmp_path / "there.pth", to=to)
    there = recognise(read(tmp_path / "there.pth"))
    expected = READ_AS.get(to, "timm" if (kind, to) == ("dinov2", "dinov2") else to)
    assert there.format == expected
    convert(tmp_path / "there.pth", tmp_path / "back.pth", to="timm", format=to)
    back = torch.load(tmp_path / "back.pth", weights_only=True)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(tensor, back[key]) for key, tensor in tensors.items())


@pytest.mark.parametrize(
    "options",
    [
        {"reg_tokens": 4},
        {"reg_tokens": 4, "no_embed_class": True},
        {"reg_tokens": 4, "init_values": 0.1},
        {"reg_tokens": 3, "class_token": False, "global_pool": "avg"},
        {"no_embed_class": True},
        {"no_embed_class": True, "pre_norm": True},
    ],
)
def test_position_embeddings_of_registers_and_class_token_are_counted(options):
    with laid_out():
        net = timm.create_model("vit_tiny_patch16_224", num_classes=0, **options)
        vit = recognise_vit(shapes(net.state_dict()), format="timm")
        assert shapes(build(vit.name).module.state_dict()) == shapes(net.state_dict())
