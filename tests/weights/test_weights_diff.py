"""Comparing: what differs is named and measured, whatever the formats; counters are no difference."""

import math

import pytest
import torch

from sslbench.weights.diff import RAW, Side, compare, raw_side, recognised_side
from sslbench.weights.formats.recognise import Recognised
from sslbench.weights.reading.files import WeightsFile

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
