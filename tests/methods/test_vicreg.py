import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import random_rows
from torch import nn

from sslbench.methods import vicreg
from sslbench.train.method import Batch, Setup, Step


def oracle(za, zb):
    """Equations 1 to 6 with weights 25, 25, 1, entry by entry."""
    n, d = za.shape
    invariance = sum((za[k, j] - zb[k, j]) ** 2 for k in range(n) for j in range(d)) / (n * d)
    variance = covariance = 0.0
    for z in (za, zb):
        c = [[0.0] * d for _ in range(d)]
        means = [sum(z[:, j]) / n for j in range(d)]
        for i in range(d):
            for j in range(d):
                c[i][j] = sum((z[k, i] - means[i]) * (z[k, j] - means[j]) for k in range(n)) / (n - 1)
        variance += sum(max(0.0, 1 - np.sqrt(c[j][j] + 1e-4)) for j in range(d)) / d
        covariance += sum(c[i][j] ** 2 for i in range(d) for j in range(d) if i != j) / d
    return 25 * invariance + 25 * variance / 2 + covariance


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_the_loss_agrees_with_sums_over_all_entries(scale):
    za, zb = random_rows(7, 4, seed=1) * scale + 2, random_rows(7, 4, seed=2) * scale
    ours = vicreg.vicreg_loss(torch.from_numpy(za), torch.from_numpy(zb))
    assert ours.item() == pytest.approx(oracle(za, zb), rel=1e-10)


def test_a_collapsed_batch_pays_for_its_variance():
    same = torch.ones(8, 4)
    invariance, variance, covariance = vicreg.vicreg_terms(same, same)
    assert (invariance.item(), covariance.item()) == (0, 0)
    assert variance.item() == pytest.approx(0.99)


def run_method(rank, images):
    """Loss and gradients of one process, averaged as DistributedDataParallel does."""
    from sslbench.distributed.collectives import sum_, world_size

    torch.manual_seed(0)
    world = world_size()
    mine = torch.from_numpy(images)[:, rank * 8 // world : (rank + 1) * 8 // world]
    setup = Setup(12, (2, 2), mine.shape[1], 8, world, 8, 0, 10, 5, "linear")
    method = vicreg.Method(nn.Flatten(), vicreg.Config(projector=(6,)), setup).double()
    loss = method(Batch(tuple(mine), None, torch.arange(mine.shape[1])), Step(0, 10, 5))
    loss.value.backward()
    gradients = [sum_(p.grad) / world for p in method.parameters()]
    return [(sum_(loss.value.detach().clone()) / world).numpy(), *(g.numpy() for g in gradients)]


def test_two_processes_do_what_one_does_with_both_their_batches():
    images = random_rows(2, 8, 3, 2, 2, seed=3)
    two_processes.check_equal_to_one(run_method, images, rtol=1e-9, atol=1e-12)
