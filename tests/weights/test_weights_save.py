"""Weights files that are written: heads, places of networks in them, full disks."""

import random
import re

import pytest
import torch
from helpers.full_disk import files_up_to
from helpers.offenders import offenders
from torch import nn

from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, head_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.cli.main import main
from sslbench.errors import BackboneError, SslbenchError, UsageError, WeightsError
from sslbench.weights import heads
from sslbench.weights import save as save_module
from sslbench.weights.formats.places import WRAPPERS
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.reading.files import WeightsFile, read
from sslbench.weights.save import save

TENSORS = {"conv1.weight": torch.randn(2, 3, 3, 3), "bn1.num_batches_tracked": torch.tensor(4)}


def test_the_file_holds_what_was_given(tmp_path):
    path = save(tmp_path / "w.torch", TENSORS, backbone="resnet18", metadata={"lr": 0.1, "steps": (1, 2), "n": None})
    content = torch.load(path, weights_only=True)
    assert {key: content[key] for key in ("format", "version", "backbone")} == {
        "format": "sslbench",
        "version": 1,
        "backbone": "resnet18",
    }
    assert content["metadata"] == {"lr": 0.1, "steps": [1, 2], "n": None}
    assert all(torch.equal(content["state_dict"][key], TENSORS[key]) for key in TENSORS)
    assert [p.name for p in tmp_path.iterdir()] == ["w.torch"]


def test_a_view_is_written_without_the_rest_of_its_storage(tmp_path):
    path = save(tmp_path / "w.torch", {"a": torch.zeros(1000, 1000)[0]}, backbone="b", metadata={})
    assert path.stat().st_size < 20_000


def test_a_file_that_is_there_is_not_replaced_unless_asked(tmp_path):
    path = save(tmp_path / "w.torch", TENSORS, backbone="a", metadata={})
    before = path.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        save(path, TENSORS, backbone="b", metadata={})
    assert path.read_bytes() == before
    save(path, TENSORS, backbone="b", metadata={}, overwrite=True)
    assert torch.load(path, weights_only=True)["backbone"] == "b"


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    path = save(tmp_path / "w.torch", TENSORS, backbone="a", metadata={})
    before = path.read_bytes()

    def full(content, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(save_module.torch, "save", full)
    with pytest.raises(SslbenchError, match=r"cannot write .*No space left"):
        save(path, TENSORS, backbone="b", metadata={}, overwrite=True)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == ["w.torch"]


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"metadata\.args\.f should hold numbers and text, not"):
        save(tmp_path / "w.torch", TENSORS, backbone="b", metadata={"args": {"f": print}})
    with pytest.raises(WeightsError, match="no tensors"):
        save(tmp_path / "w.torch", {}, backbone="b", metadata={})
    with pytest.raises(UsageError, match="does not exist"):
        save(tmp_path / "x" / "w.torch", TENSORS, backbone="b", metadata={})
    assert list(tmp_path.iterdir()) == []


LIMIT = 1_000_000


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("in") / "r18.pth"
    torch.save(build("resnet18w0.5").module.state_dict(), path)  # 11 MB
    return path


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("out.pth", "torchvision"),
        ("out.safetensors", "torchvision"),
        ("out.pkl", "detectron2"),
        ("o.torch", "sslbench"),
    ],
)
def test_convert_on_a_full_disk_is_one_message(tmp_path, capsys, weights, name, to):
    out = tmp_path / name
    out.write_bytes(b"as it was")
    with files_up_to(LIMIT), pytest.raises(SystemExit) as ended:
        main(["convert", str(weights), str(out), "--to", to, "--force"])
    said = capsys.readouterr().err
    assert ended.value.code == 1 and "Traceback" not in said, said
    assert f"cannot write {out}: File too large; " in said and "the 1,000,000 bytes that were written" in said
    assert f"bytes are free in {tmp_path}" in said
    assert out.read_bytes() == b"as it was" and list(tmp_path.iterdir()) == [out]


NAME = "resnet18w0.25"
D = 128


def random_statistics(*modules):
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.BatchNorm1d):
                part.running_mean.uniform_(-0.1, 0.1)
                part.running_var.uniform_(0.5, 2)
                if part.affine:
                    nn.init.uniform_(part.weight, 0.5, 2)
        module.eval()


def simsiam_head():
    return nn.Sequential(
        *(nn.Linear(D, 24, bias=False), nn.BatchNorm1d(24), nn.ReLU()),
        *(nn.Linear(24, 16, bias=False), nn.BatchNorm1d(16, affine=False)),
    )


def under(prefix, module):
    return {f"{prefix}{key}": value for key, value in module.state_dict().items()}


# format -> head, its prefix in the file; predictor, likewise; prefix of the backbone; place in the file
FORMATS = {
    "moco": (nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Linear(24, 8)), "module.encoder_q.fc."),
    "simsiam": (simsiam_head(), "module.encoder.fc."),
    "barlow_twins": (simsiam_head(), "module.projector."),
    "swav": (
        nn.Sequential(nn.Linear(D, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 8)),
        "module.projection_head.",
    ),
    "torchvision": (nn.Sequential(nn.Linear(D, 10)), "fc"),
    "vissl": (nn.Sequential(nn.Linear(D, 24), nn.ReLU(), nn.Linear(24, 8)), "0.clf."),
}


def write(path, name, head, prefix, predictor):
    module = build(NAME).module
    start = {"moco": "module.encoder_q.", "simsiam": "module.encoder.", "barlow_twins": "module.backbone."}
    tensors = under({**start, "swav": "module.", "vissl": "_feature_blocks."}.get(name, ""), module)
    own = {"fc.weight": head[0].weight, "fc.bias": head[0].bias} if prefix == "fc" else under(prefix, head)
    if name == "vissl":
        content = {"classy_state_dict": {"base_model": {"model": {"trunk": tensors, "heads": own}}}}
    elif name == "barlow_twins":
        content = {"model": {**tensors, **own, **under("module.bn.", nn.BatchNorm1d(8, affine=False))}}
    else:
        content = (
            {"state_dict": {**tensors, **own, **under("module.predictor.", predictor)}} if predictor else tensors | own
        )
    torch.save(content, path)
    return str(path)


@pytest.mark.parametrize("name", FORMATS)
def test_layers_of_a_formats_heads_give_what_the_saved_network_gives(tmp_path, name):
    head, prefix = FORMATS[name]
    predictor = (
        nn.Sequential(nn.Linear(16, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 16)) if name == "simsiam" else None
    )
    random_statistics(head, *([predictor] if predictor else []))
    backbone = load_backbone(write(tmp_path / "w.pth", name, head, prefix, predictor), heads=True)
    images = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    texts = ["output", "head.0", "head", *(["predictor"] if predictor else [])]
    with torch.inference_mode():
        got = forward_layers(backbone.module, images, resolve_layers(backbone, texts))
        wanted = backbone.module(images)
        torch.testing.assert_close(got["head.0"], head[0](wanted))
        torch.testing.assert_close(got["head"], head(wanted))
        if predictor:
            torch.testing.assert_close(got["predictor"], predictor(head(wanted)))
    assert list(head_layers(backbone))[:1] == ["head.0"] and recognise(read(tmp_path / "w.pth")).format == name


def test_dropout_between_linear_layers_is_no_activation_twice():
    tensors = under(
        "classifier.", nn.Sequential(nn.Dropout(), nn.Linear(4, 3), nn.ReLU(), nn.Dropout(), nn.Linear(3, 2))
    )
    layers = heads._matching(("classifier.{i}.{leaf}",), tensors)
    assert heads._sequence(layers, "relu")[0] == ["identity", "linear", "relu", "identity", "linear"]


def own_file(path, kinds, tensors):
    module = build(NAME).module
    metadata = {"heads": {"head": kinds}} if kinds is not None else {}
    return str(save(path, module.state_dict(), backbone=NAME, metadata=metadata, heads=tensors, overwrite=True))


def test_own_files_name_the_layers_and_a_gelu_is_no_relu(tmp_path):
    head = nn.Sequential(nn.Linear(D, 6), nn.GELU(), nn.Linear(6, 5)).eval()
    kinds, tensors = heads.layer_kinds(head), heads.head_tensors("head", head, head.state_dict())
    backbone = load_backbone(own_file(tmp_path / "w.torch", " ".join(kinds), tensors), heads=True)
    x = torch.randn(2, D)
    torch.testing.assert_close(backbone.heads["head"](x), head(x))
    relu = load_backbone(own_file(tmp_path / "r.torch", "linear relu linear", tensors), heads=True)
    assert relu.identity["heads"] != backbone.identity["heads"] and relu.weights_sha256 == backbone.weights_sha256
    assert "heads" not in load_backbone(str(tmp_path / "w.torch")).identity


@pytest.mark.parametrize(
    ("kinds", "change", "problem"),
    [
        ("linear sine linear", {}, "unknown kind 'sine'"),
        ("linear relu", {}, "has no place for '2.weight'"),
        ("relu", {}, "has no place|no linear"),
        (" ", {}, "has 0 layers"),
        ("linear relu linear linear", {}, "needs weight"),
        ("linear relu linear", {"head.2.weight": torch.ones(5, 7)}, "takes 7 numbers, the layer before returns 6"),
        ("linear relu linear", {"head.2.bias": torch.full((5,), torch.nan)}, "NaN"),
        ("linear relu linear", {"head.2.bias": torch.ones(4)}, "shape"),
        ("linear " * 200, {}, "has 200 layers"),
    ],
)
def test_damaged_heads_are_refused_in_one_sentence(tmp_path, kinds, change, problem):
    head = nn.Sequential(nn.Linear(D, 6), nn.ReLU(), nn.Linear(6, 5))
    tensors = {**heads.head_tensors("head", head, head.state_dict()), **change}
    path = own_file(tmp_path / "w.torch", kinds, tensors)
    with pytest.raises(WeightsError, match=problem):
        load_backbone(path, heads=True)
    assert load_backbone(path).name == NAME


def test_a_layer_of_a_head_that_is_not_there_names_those_that_are(tmp_path):
    path = own_file(tmp_path / "w.torch", "linear", {"head.0.weight": torch.ones(4, D)})
    backbone = load_backbone(path, heads=True)
    with pytest.raises(BackboneError, match=r"no layer 'head\.1' in a head") as caught:
        resolve_layers(backbone, ["head.1"])
    assert "head.0" in caught.value.remedy
    with pytest.raises(UsageError, match="neither @input nor a pool"):
        resolve_layers(backbone, ["head.0:avg"])
    with pytest.raises(BackboneError, match=r"no layer 'head\.0' in a head") as caught:
        resolve_layers(build(NAME), ["head.0"])
    assert "no head" in caught.value.remedy


def test_a_head_for_another_width_is_refused_by_name(tmp_path):
    path = own_file(tmp_path / "w.torch", "linear", {"head.0.weight": torch.ones(4, D + 1)})
    backbone = load_backbone(path, heads=True)
    with pytest.raises(BackboneError, match=f"the head takes {D + 1} numbers, the backbone returns {D}"):
        forward_layers(backbone.module, torch.zeros(1, 3, 64, 64), resolve_layers(backbone, ["head"]))


RESNET = [
    "conv1.weight",
    *(f"bn1.{leaf}" for leaf in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
    *(f"layer{i}.{j}.conv{k}.weight" for i in (1, 2) for j in (0, 1) for k in (1, 2)),
    *(f"layer{i}.{j}.bn{k}.{leaf}" for i in (1, 2) for j in (0, 1) for k in (1, 2) for leaf in ("weight", "bias")),
    "layer2.0.downsample.0.weight",
    "layer2.0.downsample.1.weight",
]
VIT = [
    "cls_token",
    "pos_embed",
    *(f"patch_embed.proj.{leaf}" for leaf in ("weight", "bias")),
    *(
        f"blocks.{i}.{name}.{leaf}"
        for i in (0, 1)
        for name in ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
        for leaf in ("weight", "bias")
    ),
    *(f"norm.{leaf}" for leaf in ("weight", "bias")),
]
STAGES = {"conv1": "0", "bn1": "1", "layer1": "4", "layer2": "5"}
NAMES = ("net", "model", "backbone", "encoder", "module", "state", "my_model", "trunk", "weights", "x")
# Names of the network that is read, and of another one.
ROLES = (
    ("online_net", "target_net"),
    ("teacher", "student"),
    ("net_ema", "net"),
    ("encoder_q", "encoder_k"),
    ("body", "momentum_body"),
)


def network(names, number):
    """Tensors by name; convolutions have four dimensions, all values are the network's number."""
    return {name: torch.full((1,) * (4 if "conv" in name or "proj.weight" in name else 1), number) for name in names}


def as_lightly_saves(names):
    return {name: ".".join([STAGES[name.partition(".")[0]], name.partition(".")[2]]) for name in names}


def wrapped(keys, drawn):
    """Key -> key with names of wrappers behind some of its segments, or before them all."""
    nodes = sorted({key[: m.end()] for key in keys for m in re.finditer(r"\.", key)} | {""})
    chosen = drawn.sample(nodes, drawn.choice((0, 0, 1, 2, min(4, len(nodes)))))
    names = {
        node: "".join(f"{name}." for name in drawn.sample(sorted(WRAPPERS), drawn.choice((1, 2)))) for node in chosen
    }
    return {key: "".join([names.get("", ""), *_steps(key, names)]) for key in keys}


def _steps(key, names):
    begin = ""
    for step in re.findall(r"[^.]+\.?", key):
        begin += step
        yield step + names.get(begin, "")


def put(content, path, tensors):
    for step in path:
        content = content.setdefault(step, {})
    content |= tensors


def drawn_file(seed):
    """Content of a file, its networks (canonical names), and the number of the one to read; None if nothing tells."""
    drawn = random.Random(seed)
    names = drawn.choice((RESNET, VIT))
    saved = as_lightly_saves(names) if names is RESNET and drawn.random() < 0.3 else {name: name for name in names}
    roles = drawn.choice((("net",), (drawn.choice(NAMES),), *ROLES, ("first", "second")))
    outer = drawn.sample(NAMES, drawn.choice((0, 1, 2)))
    shared = drawn.random() < 0.5  # one dict with a prefix for each network, or a dict for each
    content = {"epoch": 3, "optimizer": {"state": {str(i): {"exp_avg": torch.zeros(2)} for i in range(9)}}}
    flat = 1 if shared and len(roles) == 2 and drawn.random() < 0.3 else None  # in that dict without a prefix
    networks = {}
    for number, role in drawn.sample(list(enumerate(roles)), len(roles)):
        networks[number] = network(names, number)
        keys = wrapped(list(saved.values()), drawn)
        inner = drawn.choice(("", "", "backbone.", "net.body."))
        tensors = {inner + keys[saved[name]]: tensor for name, tensor in networks[number].items()}
        if shared:
            start = "" if number == flat else f"{role}."
            put(content, outer, {start + key: tensor for key, tensor in tensors.items()})
            if flat is None:  # else nobody could tell whether it belongs to that network
                put(content, outer, {"loss.weight": torch.zeros(2)})
        else:
            put(content, [*outer, role], tensors)
    tied = roles == ("first", "second") or (flat and roles[0] == "body")
    return content, networks, None if tied else 0


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def is_found(seed):
    content, networks, right = drawn_file(seed)
    file = WeightsFile("w.pth", "0" * 64, content, "torch zip")
    try:
        found = recognise(file)
        assert right is not None, "one is taken although nothing tells which"
        assert same(found.canonical, networks[right]), f"another than {right}: {found.where} {found.prefix}"
        others, ways = networks.keys() - {right}, found.others
    except WeightsError as error:
        assert right is None, str(error)
        others, ways = networks.keys(), re.findall(r"--format ([^\s,]+)", error.remedy)
    reached = [recognise(file, format=way).canonical for way in ways]
    assert len(reached) == len(others), ways
    assert all(any(same(networks[number], other) for other in reached) for number in others)


def test_of_networks_nested_under_any_keys_prefixes_and_wrappers_the_right_one_is_read_and_all_are_named():
    assert offenders(range(30), is_found) == []
