"""Operations: each does what its name says, and its inverse undoes it bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.weights.formats.rules import OPERATIONS, apply, concat, split

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
