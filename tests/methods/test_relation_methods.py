"""TiCo, ReSSL and W-MSE against slow formulas."""

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, unit

from sslbench.errors import UsageError
from sslbench.methods import ressl, tico, wmse


def slow_tico(z, targets, covariance, beta, rho):
    """Algorithm 1, row by row; the loss and the new covariance."""
    z, targets = unit(z), unit(targets)
    new = beta * covariance + (1 - beta) * sum(np.outer(row, row) for row in z) / len(z)
    near = np.mean([row @ target for row, target in zip(z, targets, strict=True)])
    return 1 - near + rho * np.mean([row @ new @ row for row in z]), new


def test_tico_is_its_algorithm():
    z, targets = random_rows(6, 4, seed=1), random_rows(6, 4, seed=2)
    start = np.eye(4) * 0.1
    wanted, covariance = slow_tico(z, targets, start, 0.9, 8.0)
    new = tico.next_covariance(torch.from_numpy(start), torch.from_numpy(z), 0.9)
    np.testing.assert_allclose(new.numpy(), covariance, rtol=1e-12)
    value, slope = gradient(lambda x: tico.tico_loss(x, torch.from_numpy(targets), new, 8.0), z)
    assert value == pytest.approx(wanted, rel=1e-12)
    shift = np.zeros_like(z)
    shift[2, 1] = 1e-6

    def fixed(x):  # the covariance has no gradient
        x = unit(x)
        return 1 - np.mean(np.sum(x * unit(targets), axis=1)) + 8 * np.mean([row @ covariance @ row for row in x])

    assert slope[2, 1] == pytest.approx((fixed(z + shift) - fixed(z - shift)) / 2e-6, rel=1e-5)


def _covariance_of_one(rank, z):
    mine = torch.from_numpy(z[3 * rank : 3 * rank + 3])
    return tico.next_covariance(torch.zeros(4, 4, dtype=torch.float64), mine, 0.5).numpy()


def test_covariance_of_two_processes_is_that_of_one():
    z = random_rows(6, 4)
    wanted = tico.next_covariance(torch.zeros(4, 4, dtype=torch.float64), torch.from_numpy(z), 0.5).numpy()
    for found in two_processes.run(_covariance_of_one, z):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def slow_relations(query, key, queue, student, teacher):
    """Eq. 5, image by image."""
    terms = []
    for q, k in zip(query, key, strict=True):
        target, guess = np.exp(queue @ k / teacher), np.exp(queue @ q / student)
        terms.append(-np.sum(target / target.sum() * np.log(guess / guess.sum())))
    return float(np.mean(terms))


def test_relations_are_the_formula():
    q, k, queue = (unit(random_rows(n, 5, seed=n)) for n in (4, 4, 11))
    k = k[::-1].copy()
    loss = lambda x: ressl.relation_loss(  # noqa: E731
        x, torch.from_numpy(k), torch.from_numpy(queue), student_temperature=0.1, teacher_temperature=0.04
    )
    value, slope = gradient(loss, q)
    assert value == pytest.approx(slow_relations(q, k, queue, 0.1, 0.04), rel=1e-12)
    shift = np.zeros_like(q)
    shift[1, 1] = 1e-6
    wanted = [slow_relations(q + sign * shift, k, queue, 0.1, 0.04) for sign in (1, -1)]
    assert slope[1, 1] == pytest.approx((wanted[0] - wanted[1]) / 2e-6, rel=1e-4)


def test_teacher_of_ressl_follows_and_its_keys_fill_the_queue():
    setup = setup_for(network())
    method = ressl.Method(network(), ressl.Config(queue=16, projector=(16, 8), momentum=0.5, final_momentum=0.5), setup)
    before = method.teacher_projector[0].weight.clone()
    with torch.no_grad():
        method.projector[0].weight.add_(1.0)
    method(batch_of(setup), step_of(0, setup))
    method.after_update(step_of(0, setup))
    torch.testing.assert_close(method.teacher_projector[0].weight, before + 0.5)
    assert not torch.equal(method.queue[:8], method.queue[8:])


def test_whitened_rows_have_the_identity_as_covariance():
    rows = torch.from_numpy(random_rows(40, 6) @ random_rows(6, 6, seed=1))
    z = wmse.whitened(rows)
    torch.testing.assert_close(z.mean(dim=0), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(z.T @ z / 39, torch.eye(6, dtype=torch.float64), rtol=0, atol=1e-10)


def test_whitening_loss_is_the_distance_of_whitened_unit_vectors():
    views = random_rows(2, 24, 4)
    slices = torch.randperm(24, generator=torch.Generator().manual_seed(0)).view(2, 12)
    terms = []
    for rows in slices.numpy():
        white = []
        for view in views[:, rows]:
            factor = np.linalg.cholesky(np.cov(view.T))
            white.append(unit((view - view.mean(axis=0)) @ np.linalg.inv(factor).T))
        terms += [np.sum((a - b) ** 2) for a, b in zip(*white, strict=True)]
    value = wmse.whitening_loss(torch.from_numpy(views), slices)
    assert value.item() == pytest.approx(np.mean(terms), rel=1e-10)


def test_a_singular_covariance_is_no_number():
    assert wmse.whitened(torch.zeros(8, 3)).isnan().all()


def test_what_cannot_be_trained_is_refused():
    backbone = network()
    with pytest.raises(UsageError, match=r"slice=8 must be above the 64 dimensions"):
        wmse.Method(backbone, wmse.Config(slice=8), setup_for(backbone))
    with pytest.raises(UsageError, match=r"ressl: queue=12 is no multiple"):
        ressl.Method(backbone, ressl.Config(queue=12), setup_for(backbone))
