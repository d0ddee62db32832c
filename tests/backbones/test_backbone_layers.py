"""Layers of networks and pools of their maps."""

import logging
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sslbench.backbones.backbone import Backbone, Kind
from sslbench.backbones.build import build, laid_out
from sslbench.backbones.layer_spec import Pool, parse_pool, split_layers
from sslbench.backbones.layers import Layer, forward_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.backbones.pools import Tokens, apply_pool
from sslbench.errors import BackboneError, UsageError, WeightsError
from sslbench.preprocessing import Preprocessing


@pytest.fixture(scope="module")
def small():
    """A ResNet-50 of a sixteenth of the width."""
    backbone = build("resnet50w0.0625")
    for module in backbone.module.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.5, 2)
    return backbone


@pytest.fixture(scope="module")
def images():
    return torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def users(module, size=(8, 8)):
    module.eval()
    return Backbone(
        "mine:net", Kind(users=True), module, Preprocessing(None, size), {}, "output", {"builder": "module"}
    )


def features(backbone, images, *specs):
    with torch.inference_mode():
        return forward_layers(backbone.module, images, resolve_layers(backbone, specs))


def hook_count(module):
    return sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())


def test_the_named_layers_of_a_resnet_are_what_vissl_calls_so(small, images):
    net = small.module
    with torch.inference_mode():
        stem = torch.relu(net.bn1(net.conv1(images)))
        maps = {"conv1": stem, "res1": net.maxpool(stem)}
        maps["res2"] = net.layer1(maps["res1"])
        maps["res3"] = net.layer2(maps["res2"])
        maps["res4"] = net.layer3(maps["res3"])
        maps["res5"] = net.layer4(maps["res4"])
    got = features(small, images, *(f"{name}:flatten" for name in maps), "res5avg", "output")
    for name, expected in maps.items():
        torch.testing.assert_close(got[f"{name}:flatten"], expected.flatten(1))
    torch.testing.assert_close(got["res5avg"], maps["res5"].mean((2, 3)))
    torch.testing.assert_close(got["output"], got["res5avg"])


def test_vissl_pools_give_the_sizes_of_its_table():
    """Peer: VISSL's linear evaluation of ResNet-50 and RN50-w2 on 224 x 224 images."""
    dims = {
        "resnet50": {"conv1": 9216, "res2": 9216, "res3": 8192, "res4": 9216, "res5": 8192, "res5avg": 2048},
        "resnet50w2": {"conv1": 8192, "res2": 8192, "res3": 9216, "res4": 8192, "res5": 8192},
    }
    for name, expected in dims.items():
        with laid_out():
            backbone = build(name)
            images = torch.empty(1, 3, 224, 224)
        layers = resolve_layers(backbone, [f"{layer}:vissl" for layer in expected])
        with torch.no_grad():
            got = forward_layers(backbone.module.to("meta"), images, layers)
        assert {layer.text.partition(":")[0]: got[layer.text].shape[1] for layer in layers} == expected


def test_vissl_pools_are_written_out_and_refused_where_there_are_none(small):
    [layer] = resolve_layers(build("resnet50"), ["res4:vissl"])
    assert layer == Layer("res4:avg(8,3)", "layer3", "output", layer.pool)
    with pytest.raises(BackboneError, match=r"VISSL defines no pool for layer 'res4'"):
        resolve_layers(small, ["res4:vissl"])


def test_module_paths_and_inputs(small, images):
    seen = {}
    module = small.module.layer3[1]
    handles = [module.conv2.register_forward_hook(lambda m, a, out: seen.update(out=out.clone(), into=a[0].clone()))]
    got = features(small, images, "layer3.1.conv2:flatten", "layer3.1.conv2@input:flatten", "avgpool@input")
    handles[0].remove()
    torch.testing.assert_close(got["layer3.1.conv2:flatten"], seen["out"].flatten(1))
    torch.testing.assert_close(got["layer3.1.conv2@input:flatten"], seen["into"].flatten(1))
    torch.testing.assert_close(got["avgpool@input"], features(small, images, "res5")["res5"])


def test_an_in_place_operation_after_the_layer_does_not_change_it(images):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.Flatten())
    with torch.inference_mode():
        expected = net[0](images)
    got = features(users(net), images, "0:flatten")["0:flatten"]
    assert (got < 0).any()
    torch.testing.assert_close(got, expected.flatten(1))


def test_the_default_layer_and_duplicates(small):
    assert [layer.text for layer in resolve_layers(small, [])] == ["res5avg"]
    assert [layer.text for layer in resolve_layers(small, ["res4", "res5avg", "res4", "res4:avg( 8,3 )"])] == [
        "res4",
        "res5avg",
        "res4:avg(8,3)",
    ]


def test_hooks_are_removed_even_after_an_error(small, images):
    features(small, images, "res2", "layer4@input")
    assert hook_count(small.module) == 0
    with pytest.raises(BackboneError):
        features(small, images, "res2", "res3:cls")
    assert hook_count(small.module) == 0


@pytest.mark.parametrize(
    ("spec", "says"),
    [("res6", "Did you mean .*'res5'"), ("layer3.9", "no layer 'layer3.9'"), ("output@input", "input image itself")],
)
def test_an_unknown_layer_is_refused_with_the_nearest_ones(small, spec, says):
    with pytest.raises(BackboneError, match=f"(?s){says}"):
        resolve_layers(small, [spec])


@pytest.mark.parametrize("spec", ["res4:", "res4@output", "res4:averge", ":avg"])
def test_a_malformed_layer_is_refused(small, spec):
    with pytest.raises((UsageError, BackboneError)):
        resolve_layers(small, [spec])


def test_splitting_keeps_what_is_in_parentheses():
    assert split_layers("res4:avg(8,3), res5avg") == ["res4:avg(8,3)", "res5avg"]
    assert split_layers("a") == ["a"]
    for text in ("res4:avg(8,3", "a,,b", "a)", "", ",", "a)(b"):
        with pytest.raises(UsageError):
            split_layers(text)


class Shared(nn.Module):
    """Uses one ReLU twice, one layer never, and returns class scores."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU()
        self.unused = nn.Conv2d(3, 4, 3)
        self.pair = Pair()
        self.fc = nn.Linear(4, 10)

    def forward(self, x):
        x = self.relu(self.conv(self.relu(x)))
        return self.fc(self.pair(x.mean((2, 3)))[0])


class Pair(nn.Module):
    def forward(self, x):
        return x, x


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("relu", "ran 2 times.*PATH@input"),
        ("unused", "did not run"),
        ("pair", "gives a tuple, not a tensor"),
        ("conv:cls", "4x6x6"),
    ],
)
def test_a_layer_that_cannot_be_taken_is_refused_with_the_remedy(spec, says):
    with pytest.raises(BackboneError, match=f"(?s){says}"):
        features(users(Shared()), torch.randn(2, 3, 8, 8), spec)


def test_a_backbone_that_fails_says_on_which_images():
    with pytest.raises(BackboneError, match=r"images of shape 2x3x2x2.*\n.*crop"):
        features(users(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())), torch.randn(2, 3, 2, 2), "0")


def test_class_scores_of_a_users_classifier_are_warned_about(caplog):
    with caplog.at_level(logging.WARNING, logger="sslbench"):
        resolve_layers(users(Shared()), [])
        assert "--layers fc@input" in caplog.text
        caplog.clear()
        resolve_layers(users(Shared()), ["fc@input"])
        resolve_layers(users(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())), [])
        assert not caplog.text


class Transformer(nn.Module):
    """As small as it goes, with DINOv2's attribute names."""

    def __init__(self, class_token, registers):
        super().__init__()
        self.patches = nn.Conv2d(3, 4, 4, 4)
        self.cls_token = nn.Parameter(torch.full((1, 1, 4), 7.0)) if class_token else None
        self.register_tokens = nn.Parameter(torch.full((1, registers, 4), 9.0))
        self.num_register_tokens = registers
        self.block = nn.Identity()

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        first = [] if self.cls_token is None else [self.cls_token.expand(len(x), -1, -1)]
        registers = self.register_tokens.expand(len(x), -1, -1)
        return self.block(torch.cat([*first, registers, tokens], 1))[:, 0]


def test_tokens_of_a_users_transformer_inside_another_module():
    backbone = users(nn.Sequential(Transformer(class_token=True, registers=2)))
    images = torch.randn(2, 3, 8, 8)
    got = features(backbone, images, "0.block", "0.block:mean", "0.block:cls+mean")
    patches = backbone.module[0].patches(images).flatten(2).mean(2)
    assert (got["0.block"] == 7).all()
    torch.testing.assert_close(got["0.block:mean"], patches)
    torch.testing.assert_close(got["0.block:cls+mean"], torch.cat([got["0.block"], patches], 1))


def test_tokens_without_a_class_token_are_averaged():
    backbone = users(Transformer(class_token=False, registers=0))
    images = torch.randn(2, 3, 8, 8)
    got = features(backbone, images, "block")["block"]
    torch.testing.assert_close(got, backbone.module.patches(images).flatten(2).mean(2))
    with pytest.raises(BackboneError, match=r"Pools that fit: mean, max"):
        features(backbone, images, "block:cls")


CLASS_TOKEN = Tokens(prefix=1, has_class=True)
REGISTERS = Tokens(prefix=5, has_class=True)


def pooled(x, text, tokens=Tokens()):  # noqa: B008  frozen
    return apply_pool(x, parse_pool(text) if text else None, tokens, layer="L").numpy()


def naive_average(x, kernel, stride, padding):
    batch, channels, height, width = x.shape
    padded = np.zeros((batch, channels, height + 2 * padding, width + 2 * padding), np.float64)
    padded[:, :, padding : padding + height, padding : padding + width] = x
    rows = range(0, padded.shape[2] - kernel + 1, stride)
    columns = range(0, padded.shape[3] - kernel + 1, stride)
    out = [
        [[padded[b, c, i : i + kernel, j : j + kernel].mean() for i in rows for j in columns] for c in range(channels)]
        for b in range(batch)
    ]
    return np.array(out).reshape(batch, -1)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(3, 9), st.integers(3, 9), st.integers(1, 3), st.integers(1, 4), st.integers(0, 1))
def test_average_pools_against_loops(channels, height, width, kernel, stride, padding):
    padding = min(padding, kernel // 2)
    x = torch.randn(2, channels, height, width)
    got = pooled(x, f"avg({kernel},{stride},{padding})")
    np.testing.assert_allclose(got, naive_average(x.numpy(), kernel, stride, padding), atol=1e-6)


def test_other_pools_of_maps():
    x = torch.rand(2, 3, 4, 6) + 0.1
    array = x.numpy()
    np.testing.assert_allclose(pooled(x, ""), array.mean((2, 3)), rtol=1e-6)
    np.testing.assert_allclose(pooled(x, "avg"), array.mean((2, 3)), rtol=1e-6)
    np.testing.assert_allclose(pooled(x, "max"), array.max((2, 3)))
    np.testing.assert_allclose(pooled(x, "flatten"), array.reshape(2, -1))
    np.testing.assert_allclose(pooled(x, "gem(2)"), np.sqrt((array**2).mean((2, 3))), rtol=1e-5)
    np.testing.assert_allclose(pooled(x, "gem"), np.cbrt((array**3).mean((2, 3))), rtol=1e-5)
    np.testing.assert_allclose(
        pooled(x, "adaptive(2,3)"), array.reshape(2, 3, 2, 2, 3, 2).mean((3, 5)).reshape(2, -1), rtol=1e-6
    )
    np.testing.assert_allclose(
        pooled(x, "adaptive-max(2,3)"), array.reshape(2, 3, 2, 2, 3, 2).max((3, 5)).reshape(2, -1)
    )
    np.testing.assert_allclose(pooled(x, "avg(2)"), pooled(x, "avg(2,2)"))


def test_pools_of_tokens_skip_class_token_and_registers():
    x = torch.randn(2, 9, 4)
    array = x.numpy()
    np.testing.assert_allclose(pooled(x, "", REGISTERS), array[:, 0])
    np.testing.assert_allclose(pooled(x, ""), array.mean(1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(pooled(x, "mean", CLASS_TOKEN), array[:, 1:].mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pooled(x, "mean", REGISTERS), array[:, 5:].mean(1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(pooled(x, "max", REGISTERS), array[:, 5:].max(1))
    both = pooled(x, "cls+mean", REGISTERS)
    np.testing.assert_allclose(both, np.concatenate([array[:, 0], array[:, 5:].mean(1)], 1), rtol=1e-5, atol=1e-6)


def test_a_pooled_feature_is_float32_and_has_its_own_memory():
    x = torch.ones(2, 5, dtype=torch.bfloat16)
    assert apply_pool(x, None, Tokens(), layer="L").dtype == torch.float32
    for shape, text in (((2, 5), ""), ((2, 5, 3), "flatten"), ((2, 5, 1, 1), "flatten"), ((2, 5, 3), "cls")):
        x = torch.ones(shape)
        kept = apply_pool(x, parse_pool(text) if text else None, CLASS_TOKEN, layer="L")
        x.zero_()
        assert kept.all(), (shape, text)


@pytest.mark.parametrize(
    ("shape", "text", "says"),
    [
        ((2, 8, 4, 4), "avg(8,3)", "8x4x4.*kernel no larger"),
        ((2, 8, 4, 4), "cls", "8x4x4.*avg, max"),
        ((2, 8, 4), "cls", "8x4.*mean"),
        ((2, 8, 4), "avg(2,2)", "8x4.*mean"),
        ((2, 8), "avg", "already a vector"),
        ((2, 8, 2, 2, 2, 2), "", "flatten"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused_with_the_pools_that_do(shape, text, says):
    with pytest.raises(BackboneError, match=f"(?s)layer 'L' gives .*{says}"):
        pooled(torch.zeros(shape), text)


@pytest.mark.parametrize(
    "text", ["averge", "avg(a,2)", "avg(0)", "avg(1,2,3,4)", "cls(3)", "adaptive(2)", "avg(1.5,2)", "", "avg(2"]
)
def test_a_text_that_is_no_pool_is_refused(text):
    with pytest.raises(UsageError):
        parse_pool(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("avg( 8 , 3 )", "avg(8,3)"),
        ("avg(8,3,0)", "avg(8,3)"),
        ("avg(4)", "avg(4,4)"),
        ("gem", "gem(3)"),
        ("gem(2.5)", "gem(2.5)"),
        ("gem(2.918033838272095)", "gem(2.918033838272095)"),  # a learnt power: six digits are another one
        ("cls+gem( file )", "cls+gem(file)"),
    ],
)
def test_the_same_pool_is_always_written_the_same(text, canonical):
    assert str(parse_pool(text)) == canonical
    assert parse_pool(canonical) == parse_pool(text)


def test_names_without_numbers_stay_as_they_are():
    assert parse_pool("cls+mean") == Pool("cls+mean")


def cirtorch_file(path, power):
    """Write a small ResNet under the names of cirtorch: the parts of a Sequential, then the pool."""
    numbers = {"conv1": 0, "bn1": 1, "layer1": 4, "layer2": 5, "layer3": 6, "layer4": 7}
    state = build("resnet18w0.25", seed=1).module.state_dict()
    names = {name: re.sub(r"^\w+", lambda found: f"features.{numbers[found[0]]}", name) for name in state}
    tensors = {names[name]: tensor for name, tensor in state.items()}
    torch.save({"meta": {"pooling": "gem"}, "state_dict": tensors | {"pool.p": power}}, path)
    return state


def test_the_learnt_power_replaces_the_word(tmp_path):
    state = cirtorch_file(tmp_path / "net.pth", torch.tensor([2.9167819]))
    backbone = load_backbone(str(tmp_path / "net.pth"))
    assert (backbone.format, backbone.name, backbone.gem_power) == ("cirtorch", "resnet18w0.25", 2.91678)
    assert all(torch.equal(tensor, state[name]) for name, tensor in backbone.module.state_dict().items())
    learnt, mapped = resolve_layers(backbone, ["res5:gem(file)", "res5:flatten"])
    assert learnt.text == "res5:gem(2.91678)"
    with torch.inference_mode():
        found = forward_layers(backbone.module, torch.rand(2, 3, 64, 64), [learnt, mapped])
    maps = found[mapped.text].reshape(2, 128, -1).double().clamp(min=1e-6)
    torch.testing.assert_close(found[learnt.text].double(), (maps**2.91678).mean(2) ** (1 / 2.91678), rtol=1e-4, atol=0)


def test_weights_without_a_learnt_power_are_refused():
    with pytest.raises(BackboneError, match=r"'res5:gem\(file\)': the weights have no learnt power of GeM"):
        resolve_layers(build("resnet18w0.25"), ["res5:gem(file)"])


@pytest.mark.parametrize("power", [torch.tensor([0.0]), torch.tensor([float("nan")]), torch.ones(512)])
def test_a_power_that_is_not_one_positive_number_is_refused(power, tmp_path):
    cirtorch_file(tmp_path / "net.pth", power)
    with pytest.raises(WeightsError, match=r"'pool.p', the power of GeM, should be one positive number"):
        load_backbone(str(tmp_path / "net.pth"))
