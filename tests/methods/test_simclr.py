import math

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, unit
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.errors import UsageError
from sslbench.methods import simclr


def slow_nt_xent(views: np.ndarray, temperature: float) -> float:
    """Eq. 1, pair by pair."""
    z = unit(views)
    terms = []
    for v, view in enumerate(z):
        for i, anchor in enumerate(view):
            negatives = sum(
                math.exp(anchor @ z[w, j] / temperature) for w in range(len(z)) for j in range(len(view)) if j != i
            )
            for w in range(len(z)):
                if w != v:
                    positive = math.exp(anchor @ z[w, i] / temperature)
                    terms.append(-math.log(positive / (positive + negatives)))
    return float(np.mean(terms))


@pytest.mark.parametrize("views", [2, 3, 5])
@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_equals_the_formula(views, temperature):
    x = random_rows(views, 4, 6, seed=views)
    assert simclr.nt_xent(torch.from_numpy(x), temperature).item() == pytest.approx(
        slow_nt_xent(x, temperature), rel=1e-12
    )


def test_a_small_temperature_does_not_overflow_in_float32():
    x = random_rows(2, 6, 8).astype(np.float32)
    value, slope = gradient(lambda x: simclr.nt_xent(x, 0.001), x)
    assert value == pytest.approx(gradient(lambda x: simclr.nt_xent(x, 0.001), x.astype(np.float64))[0], rel=1e-5)
    assert value > 0
    assert np.isfinite(slope).all()


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(5)), st.permutations(range(3)), st.floats(0.01, 100))
def test_order_and_length_do_not_matter(images, views, length):
    x = torch.from_numpy(random_rows(3, 5, 4))
    changed = x[list(views)][:, list(images)] * length
    torch.testing.assert_close(simclr.nt_xent(changed, 0.2), simclr.nt_xent(x, 0.2))


def test_autocast_does_not_reach_the_loss():
    x = torch.from_numpy(random_rows(2, 4, 8)).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = simclr.nt_xent(x, 0.1)
    assert torch.equal(value, simclr.nt_xent(x.float(), 0.1))


def _one_of_two(rank, x):
    return gradient(lambda mine: simclr.nt_xent(mine, 0.1), x[:, 3 * rank : 3 * rank + 3])


def test_two_processes_equal_one():
    x = random_rows(3, 6, 8)
    value, slope = gradient(lambda x: simclr.nt_xent(x, 0.1), x)
    (first, first_slope), (second, second_slope) = two_processes.run(_one_of_two, x)
    assert (first + second) / 2 == pytest.approx(value, rel=1e-12)
    # DistributedDataParallel averages what each process adds up.
    np.testing.assert_allclose(np.concatenate([first_slope, second_slope], axis=1) / 2, slope, atol=1e-14)


def test_the_head_can_have_batch_norm():
    setup = setup_for(network())
    plain, normed = (
        simclr.Method(network(), simclr.Config(projector=(16, 8), projector_norm=norm), setup) for norm in (False, True)
    )
    assert not [m for m in plain.head if isinstance(m, torch.nn.BatchNorm1d)]
    assert len([m for m in normed.head if isinstance(m, torch.nn.BatchNorm1d)]) == 1


def test_views_of_one_size_share_one_forward_pass():
    setup = setup_for(network(), sizes=(32, 32, 16, 16, 16))
    method = simclr.Method(network(), simclr.Config(projector=(16, 8)), setup)
    seen = []
    method.backbone.register_forward_pre_hook(lambda _, inputs: seen.append(tuple(inputs[0].shape)))
    method(batch_of(setup), step_of(0, setup))
    assert seen == [(16, 3, 32, 32), (24, 3, 16, 16)]


def test_one_view_or_one_image_is_refused():
    backbone = network()
    with pytest.raises(UsageError, match=r"simclr compares views .* makes 1"):
        simclr.Method(backbone, simclr.Config(), setup_for(backbone, sizes=(32,)))
    with pytest.raises(UsageError, match="Raise batch_size"):
        simclr.Method(backbone, simclr.Config(), setup_for(backbone, images=1))
