"""Filling: all of it or nothing, with a report that says what was done and a refusal that says why not."""

import pytest
import timm
import torch
import torchvision
from torch import nn

from sslbench.errors import WeightsError
from sslbench.weights.fill import describe, fill, tensors_sha256


def resnet(name="resnet18", seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = torchvision.models.get_model(name)
    del module.fc
    return module


def state(module):
    return {key: tensor.clone() for key, tensor in module.state_dict().items()}


@pytest.fixture(scope="module")
def source():
    return state(resnet(seed=1))


def refused(module, tensors, match, **options):
    """The refusal, and that the module did not change."""
    before = state(module)
    with pytest.raises(WeightsError, match=match) as caught:
        fill(module, tensors, what="w.pth", **options)
    assert all(torch.equal(before[key], tensor) for key, tensor in module.state_dict().items())
    return caught.value


def test_everything_is_filled_and_the_line_says_so(source):
    module = resnet()
    report = fill(module, source, what="w.pth", format="moco", ignored=("fc.*", "module.queue"))
    assert all(torch.equal(source[key], tensor) for key, tensor in module.state_dict().items())
    assert report.line() == (
        "loaded 120 of 120 backbone tensors (100.0 % of parameters), format moco; ignored: fc.*, module.queue"
    )
    assert not report.partial and report.parameters_loaded_fraction == 1.0


def test_missing_batchnorm_counters_are_counted_and_not_missing(source):
    tensors = {key: tensor for key, tensor in source.items() if not key.endswith("num_batches_tracked")}
    report = fill(resnet(), tensors, what="w.pth")
    assert (report.loaded, report.total, report.counters_missing, report.partial) == (100, 100, 20, False)
    assert "20 num_batches_tracked counters are not in the file" in report.line()


def test_ten_percent_missing_is_refused_with_the_first_three(source):
    tensors = {key: tensor for number, (key, tensor) in enumerate(source.items()) if number % 10}
    error = refused(
        resnet(), tensors, r"w\.pth does not fit the backbone: \d+ of 120 tensors missing: 'conv1\.weight', "
    )
    assert "more" in error.message and "--allow-partial" in error.remedy


def test_one_wrong_shape_is_refused_with_both_shapes(source):
    tensors = source | {"layer1.0.conv1.weight": torch.ones(64, 64, 1, 1)}
    refused(
        resnet(),
        tensors,
        r"1 of another shape: 'layer1\.0\.conv1\.weight' \(64, 64, 1, 1\) in the file, \(64, 64, 3, 3\)",
    )


def test_an_unexpected_tensor_is_refused(source):
    refused(resnet(), source | {"layer9.weight": torch.ones(2)}, r"1 unexpected: 'layer9\.weight'")


def test_weights_of_another_architecture_are_named():
    refused(resnet("resnet18"), state(resnet("resnet50")), "The weights are of a resnet50, the backbone is a resnet18")


def test_a_forgotten_prefix_is_named(source):
    wrapped = {f"module.backbone.{key}": tensor for key, tensor in source.items()}
    error = refused(resnet(), wrapped, r"120 names in the file fit without the prefix 'module\.backbone\.'")
    assert "allow-partial" not in error.remedy
    inner = nn.ModuleDict({"trunk": resnet()})
    refused(inner, source, r"120 names in the file fit with the prefix 'trunk\.'")


def test_the_closest_rename_is_named(source):
    renamed = {key.replace("downsample", "shortcut"): tensor for key, tensor in source.items()}
    refused(
        resnet(),
        renamed,
        r"Closest by shape and name: 'layer2\.0\.shortcut\.0\.weight' in the file for 'layer2\.0\.down",
    )


def test_layer_scale_is_named():
    plain = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=0)
    scaled = timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=0, init_values=1.0)
    refused(plain, state(scaled), "The file has LayerScale, the backbone has none")
    refused(scaled, state(plain), "The backbone has LayerScale, the file has none")


@pytest.mark.parametrize(("value", "kind"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
@pytest.mark.parametrize("partial", [True, False])
def test_values_that_are_no_numbers_are_refused(source, value, kind, partial):
    tensors = {key: tensor.clone() for key, tensor in source.items()}
    tensors["layer2.0.bn1.bias"][3] = value
    refused(resnet(), tensors, rf"1 tensors have {kind} values: 'layer2\.0\.bn1\.bias'", allow_partial=partial)


def test_large_numbers_whose_sum_overflows_are_numbers():
    module = nn.Linear(4, 1, bias=False)
    fill(module, {"weight": torch.full((1, 4), 3e38)}, what="w")
    assert module.weight[0, 0] == torch.tensor(3e38)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions_are_cast_and_reported(source, dtype):
    module = resnet()
    tensors = {key: tensor.to(dtype) if tensor.is_floating_point() else tensor for key, tensor in source.items()}
    report = fill(module, tensors, what="w.pth")
    assert report.casts == (f"100 {str(dtype)[6:]} to float32",) and "converted" in report.line()
    assert module.conv1.weight.dtype == torch.float32
    assert module.bn1.num_batches_tracked.dtype == torch.int64
    assert torch.equal(module.conv1.weight, tensors["conv1.weight"].float())


def test_whole_numbers_are_never_rounded_into(source):
    refused(
        resnet(), source | {"conv1.weight": torch.ones(64, 3, 7, 7, dtype=torch.int8)}, "int8 in the file, float32 in"
    )


def test_partial_filling_is_explicit_and_marked(source):
    module = resnet()
    tensors = {key: tensor for key, tensor in source.items() if not key.startswith("layer4")}
    tensors |= {"extra": torch.ones(1), "conv1.weight": torch.ones(64, 1, 7, 7)}
    report = fill(module, tensors, what="w.pth", allow_partial=True)
    assert report.partial and report.mismatched == ("conv1.weight",) and report.unexpected == ("extra",)
    assert len(report.missing) == 25 and all(name.startswith("layer4") for name in report.missing)
    wanted = sum(p.numel() for n, p in module.named_parameters() if n in tensors and n != "conv1.weight")
    assert report.parameters_loaded_fraction == wanted / sum(p.numel() for p in module.parameters())
    assert "PARTIAL: 25 missing, 1 unexpected, 1 of another shape" in report.line() and "100.0" not in report.line()
    assert torch.equal(module.layer1[0].conv1.weight, source["layer1.0.conv1.weight"])


def test_partial_filling_of_nothing_is_refused(source):
    refused(resnet(), {"junk": torch.ones(1)}, "tensors missing", allow_partial=True)


def test_the_hash_is_of_names_dtypes_shapes_and_values_only(source):
    whole = tensors_sha256(source)
    assert tensors_sha256(dict(reversed(source.items()))) == whole
    counters = {key: tensor + 5 if key.endswith("num_batches_tracked") else tensor for key, tensor in source.items()}
    assert tensors_sha256(counters) == whole
    transposed = {
        key: tensor.to(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor
        for key, tensor in source.items()
    }
    assert tensors_sha256(transposed) == whole
    weight = source["conv1.weight"]
    changed = weight.clone()
    changed[0, 0, 0, 0] += 1e-3
    for other in (changed, weight.double(), weight.reshape(64, 147)):
        assert tensors_sha256(source | {"conv1.weight": other}) != whole
    assert tensors_sha256({("x" + k if k == "conv1.weight" else k): t for k, t in source.items()}) != whole
    assert tensors_sha256({"a": torch.zeros(0), "b": torch.tensor(True), "c": torch.ones(1, dtype=torch.bfloat16)})


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"])
def test_resnets_are_described_by_name(name):
    with torch.device("meta"):
        module = torchvision.models.get_model(name)
    assert describe({key: tuple(tensor.shape) for key, tensor in module.state_dict().items()}) == f"a {name}"
