"""Conversion between formats: tables, operations on tensors, and differences of two files."""

import hashlib
import math
import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from sslbench.backbones.build import build
from sslbench.backbones.convert import convert
from sslbench.errors import UsageError, WeightsError
from sslbench.weights import convert as module
from sslbench.weights.diff import RAW, Side, compare, raw_side, recognised_side
from sslbench.weights.formats.recognise import Recognised, recognise
from sslbench.weights.formats.rules import OPERATIONS, apply, concat, split
from sslbench.weights.reading.files import WeightsFile, read

CNN_FORMATS = ("torchvision", "timm", "moco", "vissl", "detectron2", "sslbench", "classyvision", "caffe2_resnet")


def numbers(tensors, seed=0):
    """Other values in every tensor, BatchNorm included."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(tensor.shape, generator=generator) if tensor.is_floating_point() else torch.tensor(7)
        for name, tensor in tensors.items()
    }


@pytest.fixture(scope="module")
def resnet():
    """A ResNet-50 whose stem has eight channels: all names of the real one, 1/64 of its numbers."""
    return numbers(build("resnet50w0.125").module.state_dict())


@pytest.fixture
def source(tmp_path, resnet):
    heads = {"fc.weight": torch.rand(3, 256), "fc.bias": torch.rand(3)}
    torch.save({**resnet, **heads}, tmp_path / "r50.pth")
    return tmp_path / "r50.pth"


def without_counters(tensors):
    return {name: tensor for name, tensor in tensors.items() if not name.endswith("num_batches_tracked")}


def equal(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)


@pytest.mark.parametrize("to", CNN_FORMATS)
def test_there_and_back_gives_the_same_tensors_and_the_report_counts_them(tmp_path, source, resnet, to):
    report = convert(source, tmp_path / "there.pth", to=to, backbone="resnet50w0.125")
    assert (report.format, report.to, report.dropped, report.dropped_count) == ("torchvision", to, ("fc.*",), 2)
    assert report.tensors + report.counters_dropped == 318 and report.counters_dropped in (0, 53)
    assert report.source_sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    back = convert(tmp_path / "there.pth", tmp_path / "back.pth", to="torchvision", format=to)
    found = torch.load(tmp_path / "back.pth", weights_only=True)
    assert equal(without_counters(found), without_counters(resnet))
    assert back.counters_restored == report.counters_dropped and back.tensors_sha256 == report.tensors_sha256
    counters = {int(tensor) for name, tensor in found.items() if name.endswith("num_batches_tracked")}
    assert counters == ({0} if report.counters_dropped else {7})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back.pth", "r50.pth", "there.pth"]


def test_detectron2_files_are_laid_out_as_detectron2_reads_them(tmp_path, source, resnet):
    convert(source, tmp_path / "d2.pth", to="detectron2")
    content = torch.load(tmp_path / "d2.pth", weights_only=True)
    assert content["matching_heuristics"] is True and len(content["model"]) == 265
    assert torch.equal(content["model"]["res4.5.conv3.norm.running_var"], resnet["layer3.5.bn3.running_var"])
    assert content["sslbench"]["source"] == "r50.pth" and len(content["sslbench"]["source_sha256"]) == 64
    convert(source, tmp_path / "d2.pkl", to="detectron2")
    content = pickle.loads((tmp_path / "d2.pkl").read_bytes())  # noqa: S301
    assert content["matching_heuristics"] is True and content["__author__"]
    assert all(type(value) is np.ndarray for value in content["model"].values()) and len(content["model"]) == 265
    assert np.array_equal(content["model"]["stem.conv1.weight"], resnet["conv1.weight"].numpy())


def test_the_channels_of_a_bgr_format_are_turned_and_reported(tmp_path, source, resnet):
    report = convert(source, tmp_path / "c2.pkl", to="caffe2_resnet")
    assert report.operations == {"flip_channels": 1}
    content = pickle.loads((tmp_path / "c2.pkl").read_bytes())  # noqa: S301
    assert np.array_equal(content["blobs"]["conv1_w"], resnet["conv1.weight"].numpy()[:, ::-1])


def test_the_suffix_chooses_the_container(tmp_path, source, resnet):
    convert(source, tmp_path / "r50.safetensors", to="timm")
    assert equal(load_file(tmp_path / "r50.safetensors"), resnet)
    assert read(tmp_path / "r50.safetensors").metadata["converted_from"] == "torchvision"
    with pytest.raises(UsageError, match=r"sslbench cannot be a \.safetensors file"):
        convert(source, tmp_path / "own.safetensors", to="sslbench", backbone="resnet50")
    with pytest.raises(UsageError, match=r"torchvision has no \.pkl files"):
        convert(source, tmp_path / "r50.pkl", to="torchvision")
    with pytest.raises(UsageError, match="'safetensors' is a container, not a format"):
        convert(source, tmp_path / "x.pth", to="safetensors")


def test_own_files_name_their_architecture_and_where_they_come_from(tmp_path, source, resnet):
    with pytest.raises(UsageError, match="name their architecture"):
        module.rewrite(read(source), recognise(read(source)), tmp_path / "own.pth", to="sslbench")
    report = convert(source, tmp_path / "own.pth", to="sslbench")
    file = read(tmp_path / "own.pth")
    assert file.content["backbone"] == "resnet50w0.125"
    assert file.content["metadata"]["source_sha256"] == report.source_sha256
    assert convert(tmp_path / "own.pth", tmp_path / "again.pth", to="sslbench").to == "sslbench", "it names it already"


def test_heads_are_kept_where_the_target_has_names_for_them(tmp_path, source):
    report = convert(source, tmp_path / "moco.pth", to="moco", keep_heads=True)
    assert report.heads == ("fc.weight", "fc.bias") and report.dropped == () and report.tensors == 320
    content = torch.load(tmp_path / "moco.pth", weights_only=True)["state_dict"]
    assert torch.equal(content["module.encoder_q.fc.bias"], torch.load(source, weights_only=True)["fc.bias"])
    with pytest.raises(
        WeightsError, match=r"vissl has no name for 2 of the file's 320 tensors: 'fc\.weight'"
    ) as caught:
        convert(source, tmp_path / "vissl.pth", to="vissl", keep_heads=True)
    assert "--keep-heads" in caught.value.remedy and not (tmp_path / "vissl.pth").exists()


def test_vissl_heads_lie_beside_the_trunk_and_stay_there(tmp_path, resnet):
    trunk = {f"_feature_blocks.{name}": tensor for name, tensor in resnet.items()}
    model = {"trunk": trunk, "heads": {"0.clf.0.weight": torch.rand(2, 2)}}
    torch.save({"classy_state_dict": {"base_model": {"model": model}}}, tmp_path / "v.torch")
    report = convert(tmp_path / "v.torch", tmp_path / "w.torch", to="vissl", keep_heads=True)
    written = torch.load(tmp_path / "w.torch", weights_only=True)["classy_state_dict"]["base_model"]["model"]
    assert equal(written["trunk"], trunk) and equal(written["heads"], model["heads"])
    assert report.heads == ("heads.0.clf.0.weight",) and report.dropped == ()
    convert(tmp_path / "v.torch", tmp_path / "x.torch", to="vissl")
    without = torch.load(tmp_path / "x.torch", weights_only=True)["classy_state_dict"]["base_model"]["model"]
    assert equal(without["trunk"], trunk) and without["heads"] == {}


def test_a_target_that_cannot_hold_the_tensors_is_refused_naming_them(tmp_path):
    names = build("timm:test_vit").module.state_dict()
    torch.save(numbers(names), tmp_path / "vit.pth")
    with pytest.raises(WeightsError, match=r"detectron2 has no name for \d+ of the file's \d+ tensors: 'cls_token'"):
        convert(tmp_path / "vit.pth", tmp_path / "d2.pth", to="detectron2")
    assert not (tmp_path / "d2.pth").exists()


def test_a_number_that_numpy_does_not_have_is_refused(tmp_path, resnet):
    torch.save({name: t.bfloat16() for name, t in resnet.items()}, tmp_path / "half.pth")
    with pytest.raises(WeightsError, match=r"cannot hold 'stem\.conv1\.weight'"):
        convert(tmp_path / "half.pth", tmp_path / "d2.pkl", to="detectron2")
    assert [p.name for p in tmp_path.iterdir()] == ["half.pth"]
    assert convert(tmp_path / "half.pth", tmp_path / "d2.pth", to="detectron2").tensors == 265


def test_a_file_that_is_there_is_not_replaced_unless_asked(tmp_path, source):
    (tmp_path / "out.pth").write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        convert(source, tmp_path / "out.pth", to="moco")
    assert (tmp_path / "out.pth").read_text() == "mine"
    convert(source, tmp_path / "out.pth", to="moco", overwrite=True)
    assert recognise(read(tmp_path / "out.pth")).format == "moco"
    before = source.read_bytes()
    with pytest.raises(UsageError, match="is the input file"):
        convert(source, source, to="moco", overwrite=True)
    assert source.read_bytes() == before


def test_what_does_not_come_back_the_same_never_takes_its_place(tmp_path, source, monkeypatch):
    (tmp_path / "out.pth").write_text("mine")
    written = module.tables.write

    def wrong(path, table, tensors, **options):
        first = next(iter(tensors))
        written(path, table, {**tensors, first: tensors[first] + 1}, **options)

    monkeypatch.setattr(module.tables, "write", wrong)
    with pytest.raises(WeightsError, match=r"changes 1 of the 318 tensors in a round trip: 'conv1\.weight'"):
        convert(source, tmp_path / "out.pth", to="moco", overwrite=True)
    assert (tmp_path / "out.pth").read_text() == "mine"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.pth", "r50.pth"]


def test_nan_infinity_and_negative_zero_survive(tmp_path, resnet):
    odd = dict(resnet) | {"bn1.bias": torch.tensor([float("nan"), float("inf"), -0.0, 0.0] * 2)}
    torch.save(odd, tmp_path / "odd.pth")
    convert(tmp_path / "odd.pth", tmp_path / "out.pth", to="moco")
    back = torch.load(tmp_path / "out.pth", weights_only=True)["state_dict"]["module.encoder_q.bn1.bias"]
    assert back.numpy().tobytes() == odd["bn1.bias"].numpy().tobytes()


def test_a_view_is_written_without_the_rest_of_its_storage(tmp_path, resnet):
    torch.save(dict(resnet) | {"bn1.bias": torch.rand(1000, 1000)[0, :8]}, tmp_path / "view.pth")
    convert(tmp_path / "view.pth", tmp_path / "out.pth", to="moco")
    assert (tmp_path / "out.pth").stat().st_size < (tmp_path / "view.pth").stat().st_size - 3_000_000


def test_the_order_of_keys_changes_nothing(tmp_path, resnet):
    def converted(tensors):
        torch.save(tensors, tmp_path / "in.pth")
        report = convert(tmp_path / "in.pth", tmp_path / "out.pth", to="detectron2", overwrite=True)
        return report.tensors_sha256, torch.load(tmp_path / "out.pth", weights_only=True)["model"]

    wanted, tensors = converted(resnet)
    for seed in range(3):
        shuffled = list(resnet.items())
        random.Random(seed).shuffle(shuffled)
        found, others = converted(dict(shuffled))
        assert found == wanted and equal(others, tensors), seed


def test_a_key_that_no_format_knows_is_refused(tmp_path, resnet):
    torch.save(dict(resnet) | {"surprise.weight": torch.ones(2)}, tmp_path / "in.pth")
    with pytest.raises(WeightsError, match=r"does not know 1 of them, such as 'surprise\.weight'"):
        convert(tmp_path / "in.pth", tmp_path / "out.pth", to="moco")
    assert not (tmp_path / "out.pth").exists()


SHAPES = {
    "flip_channels": (2, 3, 3, 3),
    "transpose": (4, 3),
    "hwio_to_oihw": (5, 4, 3, 2),
    "oihw_to_hwio": (2, 3, 5, 4),
    "linear_to_conv": (4, 3),
    "conv_to_linear": (4, 3, 1, 1),
    "patches_to_conv": (4, 12),
    "unsqueeze": (4, 3),
    "squeeze": (1, 4),
    "video": (2, 3, 2, 4, 4),
}


def test_every_operation_is_tested():
    assert set(OPERATIONS) == set(SHAPES)


@pytest.mark.parametrize("name", sorted(SHAPES))
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), dtype=st.sampled_from([torch.float32, torch.float16, torch.int64]))
def test_the_inverse_undoes_it(name, seed, dtype):
    tensor = (torch.randn(SHAPES[name], generator=torch.Generator().manual_seed(seed)) * 100).to(dtype)
    there = apply((name,), tensor, key="k")
    back = apply((name,), there, key="k", inverse=True)
    assert back.dtype == dtype and back.shape == tensor.shape and torch.equal(back, tensor)


def test_flip_channels_turns_bgr_into_rgb():
    weight = torch.arange(3.0).reshape(1, 3, 1, 1)
    assert apply(("flip_channels",), weight, key="k").flatten().tolist() == [2.0, 1.0, 0.0]


def test_operations_are_undone_in_the_opposite_order():
    weight = torch.randn(2, 3)
    there = apply(("transpose", "linear_to_conv"), weight, key="k")
    assert there.shape == (3, 2, 1, 1)
    assert torch.equal(apply(("transpose", "linear_to_conv"), there, key="k", inverse=True), weight)


def test_concat_and_split():
    parts = [torch.randn(2, 3) for _ in range(3)]
    thirds = (1, 1, 1)
    assert all(torch.equal(a, b) for a, b in zip(split(concat(parts, thirds), thirds), parts, strict=True))
    with pytest.raises(ValueError, match="equal parts"):
        split(torch.ones(4), thirds)


def test_one_part_may_have_two_thirds():
    query, both = split(torch.arange(6.0), (1, 2))
    assert (query.tolist(), both.tolist()) == ([0, 1], [2, 3, 4, 5])
    assert concat([query, both], (1, 2)).tolist() == list(range(6))
    with pytest.raises(ValueError, match="proportion 1:2"):
        concat([query, query], (1, 2))


def test_a_linear_layer_on_patches_is_a_convolution():
    image, weight = torch.randn(1, 3, 4, 4), torch.randn(5, 12)
    patches = image.reshape(1, 3, 2, 2, 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(4, 12)  # rows of (row, column, colour)
    convolved = torch.nn.functional.conv2d(image, apply(("patches_to_conv",), weight, key="k"), stride=2)
    torch.testing.assert_close(convolved.flatten(2)[0].T, patches @ weight.T)


TENSORS = {
    "conv1.weight": torch.tensor([1.0, -4.0, 2.0]),
    "bn1.weight": torch.ones(2),
    "bn1.num_batches_tracked": torch.tensor(7),
}


def with_(**changes):
    changed = {name.replace("__", "."): tensor for name, tensor in changes.items()}
    return Side("x", {name: t for name, t in {**TENSORS, **changed}.items() if t is not None})


def test_the_same_tensors_are_equal_in_any_order():
    found = compare(with_(), Side("y", dict(reversed(TENSORS.items()))))
    assert found.same and found.equal == ("conv1.weight", "bn1.weight") and found.formats == ("x", "y")
    assert found.counters == 0


def test_a_difference_is_measured_and_the_largest_comes_first():
    found = compare(with_(), with_(conv1__weight=torch.tensor([1.0, -4.0, 2.5]), bn1__weight=torch.tensor([1.0, 3.0])))
    assert not found.same and found.equal == ()
    assert [(c.name, c.largest, c.relative) for c in found.changed] == [
        ("bn1.weight", 2.0, 2.0),
        ("conv1.weight", 0.5, 0.125),
    ]


def test_names_on_one_side_and_other_shapes_are_listed():
    found = compare(with_(extra=torch.ones(1)), with_(conv1__weight=torch.ones(4), bn1__weight=None))
    assert (found.only_a, found.only_b) == (("bn1.weight", "extra"), ())
    assert found.reshaped == {"conv1.weight": ((3,), (4,))} and not found.same
    for other in (with_(conv1__weight=torch.ones(4)), with_(extra=torch.ones(1)), with_(bn1__weight=None)):
        assert not compare(with_(), other).same and not compare(other, with_()).same, "each alone is a difference"


@pytest.mark.parametrize("counter", [None, torch.tensor(8)])
def test_counters_are_counted_and_are_no_difference(counter):
    found = compare(with_(), with_(bn1__num_batches_tracked=counter))
    assert found.same and found.counters == 1


def test_nan_equals_nan_in_the_same_place_only():
    one, other = (torch.tensor([math.nan, 1.0, math.inf]), torch.tensor([1.0, math.nan, math.inf]))
    assert compare(with_(conv1__weight=one), with_(conv1__weight=one.clone())).same
    [change] = compare(with_(conv1__weight=one), with_(conv1__weight=other)).changed
    assert change.largest == math.inf


def test_another_dtype_is_a_difference_even_with_equal_values():
    [change] = compare(with_(), with_(bn1__weight=torch.ones(2, dtype=torch.float16))).changed
    assert (change.largest, change.relative, change.dtypes) == (0.0, 0.0, ("float32", "float16"))


def test_a_difference_from_zero_is_infinitely_large_relatively():
    [change] = compare(with_(bn1__weight=torch.zeros(2)), with_()).changed
    assert (change.largest, change.relative) == (1.0, math.inf)


def test_empty_tensors_and_whole_numbers_and_complex_ones_are_compared():
    assert compare(with_(a=torch.zeros(0)), with_(a=torch.zeros(0))).same
    [change] = compare(with_(a=torch.tensor([1, 5])), with_(a=torch.tensor([1, 7]))).changed
    assert change.largest == 2.0
    [change] = compare(with_(a=torch.tensor([1j])), with_(a=torch.tensor([1.0 + 0j]))).changed
    assert change.largest == pytest.approx(math.sqrt(2))


def test_heads_are_compared_if_both_have_them():
    def recognised(head):
        return recognised_side(Recognised("f", dict(TENSORS), head, (), (), None, "", ""))

    a, b, none = (recognised(head) for head in ({"fc.bias": torch.ones(2)}, {"fc.bias": torch.zeros(2)}, {}))
    assert [change.name for change in compare(a, b).changed] == ["fc.bias"]
    assert compare(a, a).same and compare(a, a).heads_only == ""
    assert compare(a, none).same and compare(a, none).heads_only == "A" and compare(none, a).heads_only == "B"


def test_raw_names_have_the_dicts_around_them(tmp_path):
    inner = {"w": torch.ones(1)}
    content = {"state_dict": inner, "ema": {"net": {"w": torch.zeros(1)}}, "epoch": 3, "again": inner}
    raw = raw_side(WeightsFile(tmp_path / "w.pth", "0" * 64, content, "torch zip"))
    assert raw.format == RAW and set(raw.tensors) == {"state_dict.w", "ema.net.w"}
