"""Heads of weights files: built from their tensors, the same networks as those that were saved."""

import pytest
import torch
from torch import nn

from sslbench.backbones.build import build
from sslbench.backbones.layers import forward_layers, head_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.weights import heads, save
from sslbench.weights.formats.recognise import recognise
from sslbench.weights.reading.files import read

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
    return str(save.save(path, module.state_dict(), backbone=NAME, metadata=metadata, heads=tensors, overwrite=True))


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
        ("linear tanh linear", {}, "unknown kind 'tanh'"),
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
