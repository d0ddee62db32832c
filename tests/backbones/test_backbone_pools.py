"""Pools: each against loops in NumPy; shapes that do not fit are refused with those that do."""

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.backbones.build import build
from sslbench.backbones.layer_spec import Pool, parse_pool
from sslbench.backbones.layers import forward_layers, resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.backbones.pools import Tokens, apply_pool
from sslbench.errors import BackboneError, UsageError, WeightsError

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
        ((2, 8, 2, 2, 2), "", "flatten"),
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
