import dataclasses
import functools

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import gradient, made, random_rows, step_of

from sslbench.errors import UsageError
from sslbench.methods import lejepa

CONFIG = lejepa.Config(projector=(32, 16), directions=64)
CROPS = (32, 32, 16, 16)
VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=2,embed_dim=48,num_heads=3"


make = functools.partial(made, lejepa, CONFIG, sizes=CROPS)


def oracle_sigreg(embeddings, directions, knots, largest):
    """View by view and direction by direction, the integral over both halves by the trapezoidal rule."""
    grid = np.linspace(-largest, largest, 2 * knots - 1)
    found = []
    for view in embeddings:
        for direction in directions.T:
            x = view @ direction
            squares = [abs(np.exp(1j * t * x).mean() - np.exp(-t * t / 2)) ** 2 * np.exp(-t * t / 2) for t in grid]
            found.append(len(view) * np.trapezoid(squares, grid))
    return np.mean(found)


def rows_and_directions():
    directions = random_rows(4, 5, seed=2)
    return random_rows(2, 6, 4, seed=1), directions / np.linalg.norm(directions, axis=0)


def test_sigreg_agrees_with_integrals_of_complex_numbers_and_its_gradient_with_differences():
    rows, directions = rows_and_directions()
    d = torch.from_numpy(directions)
    value, ours = gradient(lambda x: lejepa.sigreg(x, d, knots=9, largest=2.0), rows)
    assert value == pytest.approx(oracle_sigreg(rows, directions, 9, 2.0), rel=1e-10)
    for index in list(np.ndindex(rows.shape))[::5]:
        step = np.zeros_like(rows)
        step[index] = 1e-5
        up, down = (oracle_sigreg(rows + sign * step, directions, 9, 2.0) for sign in (1, -1))
        assert ours[index] == pytest.approx((up - down) / 2e-5, abs=1e-7)


def test_the_prediction_agrees_with_a_loop_and_its_gradient_with_differences():
    rows = random_rows(4, 3, 2)

    def oracle(x):
        return np.mean([(view[i] - x[:2, i].mean(0)) ** 2 for view in x for i in range(3)])

    value, ours = gradient(lambda x: lejepa.prediction_loss(x, 2), rows)
    assert value == pytest.approx(oracle(rows), rel=1e-12)
    for index in np.ndindex(rows.shape):
        step = np.zeros_like(rows)
        step[index] = 1e-5
        assert ours[index] == pytest.approx((oracle(rows + step) - oracle(rows - step)) / 2e-5, abs=1e-8)


def test_normal_embeddings_have_the_smallest_value():
    torch.manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(8, 100), dim=0)
    normal = torch.randn(1, 4000, 8)
    values = [lejepa.sigreg(x, directions).item() for x in (normal, normal * 2, normal + 1, normal * 0, normal.sign())]
    assert min(values) == values[0] < 1.5
    assert min(values[1:4]) > 100


def test_the_loss_is_the_weighted_sum_of_its_parts():
    method, setup, batch = make(dataclasses.replace(CONFIG, weight=0.3))
    loss = method(batch, step_of(0, setup))
    torch.testing.assert_close(loss.value.detach(), 0.7 * loss.parts["prediction"] + 0.3 * loss.parts["sigreg"])


@pytest.mark.parametrize(("sizes", "changes", "setup", "message"), [
    ((32,), {}, {}, "makes 1 in all"),
    (CROPS, {"large_views": 5}, {}, "mean of 5"),
    (CROPS, {}, {"batch_size": 1}, "one image"),
])  # fmt: skip
def test_what_cannot_be_trained_is_refused(sizes, changes, setup, message):
    with pytest.raises(UsageError, match=message):
        make(dataclasses.replace(CONFIG, **changes), sizes=sizes, **setup)


def run_loss(rank, rows, directions):
    """SIGReg and its averaged gradient: each process has half of the images."""
    from sslbench.distributed.collectives import sum_, world_size

    world = world_size()
    share = slice(rank * 6 // world, (rank + 1) * 6 // world)
    x = torch.from_numpy(rows.copy()).requires_grad_()
    value = lejepa.sigreg(x[:, share], torch.from_numpy(directions))
    value.backward()
    return [part.numpy() / world for part in (sum_(value.detach().clone()), sum_(x.grad))]


def test_two_processes_do_what_one_does_with_both_their_batches():
    rows, directions = rows_and_directions()
    alone = run_loss(0, rows, directions)
    for results in two_processes.run(run_loss, rows, directions):
        for ours, wanted in zip(results, alone, strict=True):
            np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-12)
