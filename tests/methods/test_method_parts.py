"""Parts that several methods share: momentum copies, full precision, the position in a run."""

import math

import pytest
import torch
from helpers.training_samples import network
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sslbench.methods._parts.losses import in_float32
from sslbench.methods._parts.memory import sums_of
from sslbench.methods._parts.momentum import copy_of, cosine_momentum, update
from sslbench.methods._parts.vision_transformers import initialise
from sslbench.train.method import Step


def test_a_copy_gets_no_gradient_no_noise_and_is_independent():
    module = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    copy = copy_of(module)
    assert not any(p.requires_grad for p in copy.parameters())
    assert all(p.requires_grad for p in module.parameters())
    x = torch.randn(4, 3)
    assert torch.equal(copy(x), copy(x))
    assert module[1].p == 0.5
    with torch.no_grad():
        module[0].weight.zero_()
    assert copy[0].weight.any()


def test_an_update_moves_parameters_and_leaves_buffers():
    module, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    with torch.no_grad():
        other.weight.fill_(5)
        other.running_mean.fill_(7)
    update(module, other, 0.75)
    assert module.weight.tolist() == [2, 2, 2]
    assert module.running_mean.tolist() == [0, 0, 0]
    update(nn.Flatten(), nn.Flatten(), 0.5)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_momentum_goes_from_start_to_end_along_a_cosine(start, end, where):
    assert cosine_momentum(start, end, 0) == pytest.approx(start)
    assert cosine_momentum(start, end, 1) == pytest.approx(end)
    assert cosine_momentum(start, end, 0.5) == pytest.approx((start + end) / 2)
    assert cosine_momentum(start, end, where) == pytest.approx(
        1 - (1 - start) * (math.cos(math.pi * where) + 1) / 2 if end == 1 else cosine_momentum(start, end, where)
    )
    assert min(start, end) - 1e-12 <= cosine_momentum(start, end, where) <= max(start, end) + 1e-12


@pytest.mark.parametrize("on_gpu", [False, True])
def test_sums_by_place_are_the_same_on_either_device_and_allowed_in_deterministic_runs(on_gpu):
    class OnGpu(torch.Tensor):
        is_cuda = True  # the way of a GPU, on the processor

    rows, place = torch.randn(50, 3), torch.randint(4, (50,))
    expected = torch.stack([rows[place == i].sum(dim=0) for i in range(5)])
    torch.use_deterministic_algorithms(True)
    try:
        found = [sums_of(rows.as_subclass(OnGpu) if on_gpu else rows, place, 5) for _ in range(2)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0].as_subclass(torch.Tensor), expected)


def test_losses_leave_autocast_and_half_precision():
    @in_float32
    def product(x, *, others, named):
        assert not torch.is_autocast_enabled("cpu")
        return x @ others[0], others[1][0].dtype, named["a"].dtype, named["n"]

    half, double = torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(2, 2, dtype=torch.float64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value, dtype, other, number = product(half, others=[torch.ones(2, 2), (double,)], named={"a": half, "n": 3})
        assert torch.is_autocast_enabled("cpu")
    assert (value.dtype, dtype, other, number) == (torch.float32, torch.float64, torch.float32, 3)


@pytest.mark.parametrize("separate", [False, True])
def test_vision_transformers_begin_with_xaviers_distribution(separate):
    vit = network("timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=1,embed_dim=96,num_heads=3")
    initialise(vit, class_token_std=0.5, separate_qkv=separate)
    fans = {"attn.qkv": (96, 96 if separate else 288), "attn.proj": (96, 96), "mlp.fc1": (96, 384)}
    for name, (fan_in, fan_out) in fans.items():
        layer = vit.blocks[0].get_submodule(name)
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert 0.98 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()
    projection = vit.patch_embed.proj
    assert 0.98 < projection.weight.abs().max() / math.sqrt(6 / (3 * 64 + 96)) <= 1
    assert 0.3 < vit.cls_token.std() < 0.7


def test_a_run_counts_started_epochs_and_completed_ones_before_an_update():
    assert [Step(0, total, 10).epochs for total in (1, 10, 11, 20)] == [1, 1, 2, 2]
    assert [Step(index, 20, 10).epoch for index in (0, 9, 10, 19)] == [0, 0, 1, 1]
    assert [Step(index, 20, 10).where for index in (0, 10, 19)] == [0, 0.5, 0.95]
