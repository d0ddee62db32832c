"""LARS and LARC against the formulas, one parameter after the other in float64; no waiting for the device; state."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sslbench.train.optimizers.larc import LARC
from sslbench.train.optimizers.lars import LARS

SHAPES = ((4, 3), (5, 2, 3, 3), (4,), (5,), ())


def parameters(seed, dtype=torch.float64):
    """Weights, a bias that begins at zero, a scale of ones, and a number."""
    generator = torch.Generator().manual_seed(seed)
    values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    values[2].zero_()
    values[3].fill_(1.0)
    return [nn.Parameter(value.to(dtype)) for value in values]


def gradients(seed, i):
    generator = torch.Generator().manual_seed(1000 * seed + i)
    found = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]
    if i == 1:
        found[0].zero_()  # a weight without gradient, and a bias whose norm is no longer 0
    return found


def oracle(values, grads, buffers, lr, o):
    """One update by the written formulas; arrays are changed in place."""
    for p, g, buffer in zip(values, grads, buffers, strict=True):
        wd, size_p, size_g = o["weight_decay"], np.sqrt((p**2).sum()), np.sqrt((g**2).sum())
        excluded = o["exclude_1d"] and p.ndim <= 1
        decayed = g + wd * p
        if excluded:
            d = decayed if o["decay_1d"] else g
        elif o["denominator"] == "joint":
            size_d = np.sqrt((decayed**2).sum())
            ratio = o["trust_coefficient"] * size_p / size_d if size_p > 0 and size_d > 0 else None
            ratio = min(ratio / lr, 1) if o["clip"] and ratio is not None else ratio
            d = decayed * (1 if ratio is None else ratio)
        elif size_p > 0 and size_g > 0:
            ratio = o["trust_coefficient"] * size_p / (size_g + wd * size_p + o["eps"])
            d = decayed * (min(ratio / lr, 1) if o["clip"] else ratio)
        else:
            d = g
        buffer[...] = o["momentum"] * buffer + d
        p -= lr * (d + o["momentum"] * buffer if o["nesterov"] else buffer)


options = st.fixed_dictionaries(
    {
        "momentum": st.sampled_from([0.0, 0.9]),
        "nesterov": st.booleans(),
        "weight_decay": st.sampled_from([0.0, 1e-6, 0.1]),
        "trust_coefficient": st.sampled_from([1e-3, 0.5]),
        "denominator": st.sampled_from(["joint", "separate"]),
        "eps": st.sampled_from([1e-8, 1e-2]),
        "clip": st.booleans(),
        "exclude_1d": st.booleans(),
        "decay_1d": st.booleans(),
    }
).map(lambda o: o if o["momentum"] else {**o, "nesterov": False})


@settings(max_examples=60, deadline=None)
@given(options, st.integers(0, 5))
def test_lars_is_its_formula(o, seed):
    params = parameters(seed)
    values = [p.detach().numpy().copy() for p in params]
    buffers = [np.zeros_like(v) for v in values]
    optimizer = LARS(params, 0.3, **o)
    for i, lr in enumerate((0.3, 0.2, 0.1)):
        optimizer.param_groups[0]["lr"] = lr
        grads = gradients(seed, i)
        for p, g in zip(params, grads, strict=True):
            p.grad = g.clone()
        optimizer.step()
        oracle(values, [g.numpy() for g in grads], buffers, lr, o)
        for p, g, wanted in zip(params, grads, values, strict=True):
            np.testing.assert_allclose(p.detach().numpy(), wanted, rtol=1e-12, atol=1e-14)
            assert torch.equal(p.grad, g), "gradients are the user's: clipping and logging read them"


def test_larc_in_the_range_where_it_is_lars():
    o = {"momentum": 0.9, "weight_decay": 1e-4, "clip": True}
    larc, lars = parameters(1), parameters(1)
    optimizers = LARC(larc, 0.2, **o), LARS(lars, 0.2, denominator="separate", **o)
    for i in range(3):
        for params, optimizer in zip((larc, lars), optimizers, strict=True):
            for p, g in zip(params, gradients(1, i), strict=True):
                p.grad = g
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(larc, lars, strict=True))


def test_a_trust_that_cancels_out_is_sgd():
    """With only tensors of one dimension, excluded, LARS is torch's SGD."""
    a, b = parameters(2)[2:4], parameters(2)[2:4]
    ours = LARS(a, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01, exclude_1d=True)
    theirs = torch.optim.SGD(b, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    for i in range(4):
        for params, optimizer in ((a, ours), (b, theirs)):
            for p, g in zip(params, gradients(2, i)[2:4], strict=True):
                p.grad = g
            optimizer.step()
    for p, q in zip(a, b, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("denominator", ["joint", "separate"])
def test_groups_keep_their_own_options_though_norms_are_taken_together(denominator):
    together, apart = parameters(3), parameters(3)
    rates = [{"lr": 0.1, "weight_decay": 0.0}, {"lr": 0.4, "weight_decay": 0.1, "trust_coefficient": 0.5}]
    both = LARS(
        [{"params": together[:2], **rates[0]}, {"params": together[2:], **rates[1]}], 1.0, denominator=denominator
    )
    single = [
        LARS(part, denominator=denominator, **rate) for part, rate in zip((apart[:2], apart[2:]), rates, strict=True)
    ]
    for i in range(3):
        for params, optimizers in ((together, [both]), (apart, single)):
            for p, g in zip(params, gradients(3, i), strict=True):
                p.grad = g
            for optimizer in optimizers:
                optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))


@pytest.mark.parametrize("kind", [LARS, LARC])
@pytest.mark.parametrize("clip", [False, True])
def test_a_step_never_waits_for_the_device(kind, clip):
    """Tensors without values: whatever reads a number from one (item, a condition on it) raises."""
    params = [nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES]
    for p in params:
        p.grad = torch.empty_like(p)
    with pytest.raises(RuntimeError):
        float(params[0].grad.norm())
    optimizer = kind(params, 0.1, weight_decay=0.1, nesterov=True, clip=clip)
    for _ in range(2):
        optimizer.step()


def test_a_parameter_without_gradient_stays():
    params = parameters(4)
    before = [p.detach().clone() for p in params]
    optimizer = LARS(params, 0.1, weight_decay=0.1)
    optimizer.step()
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    changed = [not torch.equal(p, q) for p, q in zip(params, before, strict=True)]
    assert changed == [True, False, False, False, False]


def test_a_gradient_that_is_not_a_number_is_not_hidden():
    params = parameters(5)
    for denominator in ("joint", "separate"):
        optimizer = LARS(params[:1], 0.1, denominator=denominator)
        params[0].grad = torch.full_like(params[0], float("nan"))
        optimizer.step()
        assert params[0].isnan().all()


@pytest.mark.parametrize("kind", [LARS, LARC])
def test_a_stored_and_restored_optimizer_goes_on_bit_by_bit(kind):
    kept, restored = parameters(6, torch.float32), parameters(6, torch.float32)
    first = kind(kept, 0.1, weight_decay=1e-4)
    for i in range(6):
        if i == 3:
            file = io.BytesIO()
            torch.save({"optimizer": first.state_dict(), "params": [p.detach() for p in kept]}, file)
            file.seek(0)
            content = torch.load(file, weights_only=True)
            second = kind(restored, 99.0)
            second.load_state_dict(content["optimizer"])
            for p, value in zip(restored, content["params"], strict=True):
                p.data.copy_(value)
        for params, optimizer in ((kept, first), *([(restored, second)] if i >= 3 else [])):
            for p, g in zip(params, gradients(6, i), strict=True):
                p.grad = g.float()
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(kept, restored, strict=True))


def test_impossible_options():
    for bad in ({"lr": -1.0}, {"lr": 1.0, "trust_coefficient": 0.0}, {"lr": 1.0, "momentum": 0.0, "nesterov": True}):
        with pytest.raises(ValueError, match=r"must be|needs"):
            LARS(parameters(0), **bad)


def test_a_closure_is_called_with_gradients_enabled():
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = LARS([p], 0.1)

    def closure():
        loss = (p**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 5.0
    assert not torch.equal(p, torch.tensor([1.0, 2.0]))


def test_a_warmup_that_begins_at_zero_leaves_everything_where_it_is():
    params = parameters(7)
    before = [p.detach().clone() for p in params]
    optimizer = LARC(params, 0.0, weight_decay=0.1, clip=True)
    for p, g in zip(params, gradients(7, 0), strict=True):
        p.grad = g
    optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, before, strict=True))
