import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import random_rows
from torch import nn

from sslbench.methods import barlow_twins
from sslbench.train.method import Batch, Setup, Step

SETTINGS = pytest.mark.parametrize("normalisation", ["paper", "vissl"])


def oracle(za, zb, *, off_diagonal, normalisation):
    """Equations 1 and 2 entry by entry; means and variances as each normalisation has them."""
    n, d = za.shape
    samples = {"paper": (za, zb), "vissl": (np.concatenate([za, zb]),) * 2}[normalisation]
    a, b = np.zeros_like(za), np.zeros_like(zb)
    for out, z, rows in zip((a, b), (za, zb), samples, strict=True):
        for j in range(d):
            mean = sum(rows[:, j]) / len(rows)
            variance = sum((v - mean) ** 2 for v in rows[:, j]) / len(rows)
            out[:, j] = (z[:, j] - mean) / np.sqrt(variance + 1e-5)
    total = 0.0
    for i in range(d):
        for j in range(d):
            c = sum(a[k, i] * b[k, j] for k in range(n)) / n
            total += (c - 1) ** 2 if i == j else off_diagonal * c**2
    return total


@SETTINGS
def test_the_loss_agrees_with_sums_over_all_entries(normalisation):
    za, zb = random_rows(7, 4, seed=1) * 3 + 5, random_rows(7, 4, seed=2)
    ours = barlow_twins.barlow_twins_loss(
        torch.from_numpy(za), torch.from_numpy(zb), off_diagonal=0.3, scale=0.5, normalisation=normalisation
    )
    assert ours.item() == pytest.approx(0.5 * oracle(za, zb, off_diagonal=0.3, normalisation=normalisation), rel=1e-10)


def test_the_two_normalisations_differ():
    za, zb = (torch.from_numpy(random_rows(7, 4, seed=seed) + 2 * seed) for seed in (1, 2))
    paper, vissl = (barlow_twins.barlow_twins_loss(za, zb, normalisation=n).item() for n in ("paper", "vissl"))
    assert abs(paper - vissl) > 0.01 * paper


def test_means_far_from_zero_do_not_cost_precision():
    za, zb = (random_rows(16, 8, seed=seed) + 1000 for seed in (1, 2))
    exact = barlow_twins.barlow_twins_loss(torch.from_numpy(za), torch.from_numpy(zb)).item()
    single = barlow_twins.barlow_twins_loss(torch.from_numpy(za).float(), torch.from_numpy(zb).float()).item()
    assert single == pytest.approx(exact, rel=1e-3)


def run_method(rank, images, normalisation):
    """Loss and gradients of one process, averaged as DistributedDataParallel does."""
    from sslbench.distributed.collectives import sum_, world_size

    torch.manual_seed(0)
    world = world_size()
    mine = torch.from_numpy(images)[:, rank * 8 // world : (rank + 1) * 8 // world]
    setup = Setup(12, (2, 2), mine.shape[1], 8, world, 8, 0, 10, 5, "linear")
    config = barlow_twins.Config(projector=(6,), normalisation=normalisation)
    method = barlow_twins.Method(nn.Flatten(), config, setup).double()
    loss = method(Batch(tuple(mine), None, torch.arange(mine.shape[1])), Step(0, 10, 5))
    loss.value.backward()
    gradients = [sum_(p.grad) / world for p in method.parameters()]
    return [(sum_(loss.value.detach().clone()) / world).numpy(), *(g.numpy() for g in gradients)]


@SETTINGS
def test_two_processes_do_what_one_does_with_both_their_batches(normalisation):
    images = random_rows(2, 8, 3, 2, 2, seed=3)
    two_processes.check_equal_to_one(run_method, images, normalisation, rtol=1e-9, atol=1e-12)
