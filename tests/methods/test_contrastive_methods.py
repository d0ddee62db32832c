"""DCL, SupCon and NNCLR against slow formulas."""

import math

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, unit

from sslbench.errors import UsageError
from sslbench.methods import dcl, nnclr, supcon


def slow_decoupled(views, temperature, sigma=None):
    """Eq. 6, pair by pair, with eq. 7's weights."""
    z, terms = unit(views), []
    pairs = [(v, w) for v in range(len(z)) for w in range(len(z)) if v != w]
    for v, w in pairs:
        cosines = [z[v, i] @ z[w, i] for i in range(z.shape[1])]
        for i, cosine in enumerate(cosines):
            negatives = sum(
                math.exp(z[v, i] @ z[u, j] / temperature) for u in range(len(z)) for j in range(z.shape[1]) if j != i
            )
            weight = 1.0
            if sigma is not None:
                weight = 2 - math.exp(cosine / sigma) / np.mean([math.exp(c / sigma) for c in cosines])
            terms.append(-weight * cosine / temperature + math.log(negatives))
    return float(np.mean(terms))


@pytest.mark.parametrize("sigma", [None, 0.5])
@pytest.mark.parametrize("views", [2, 3])
def test_decoupled_loss_is_the_formula(views, sigma):
    x = random_rows(views, 5, 6)
    value, slope = gradient(lambda x: dcl.decoupled(x, 0.2, sigma), x)
    assert value == pytest.approx(slow_decoupled(x, 0.2, sigma), rel=1e-12)
    if sigma is None:  # the weights have no gradient
        shift = np.zeros_like(x)
        shift[1, 2, 3] = 1e-6
        wanted = (slow_decoupled(x + shift, 0.2) - slow_decoupled(x - shift, 0.2)) / 2e-6
        assert slope[1, 2, 3] == pytest.approx(wanted, rel=1e-5)


def slow_supervised(views, labels, temperature, summation):
    """Eq. 2 and 3, anchor by anchor."""
    z = unit(views).reshape(-1, views.shape[-1])
    of = np.tile(labels, len(views))
    terms = []
    for i, anchor in enumerate(z):
        e = np.exp(z @ anchor / temperature)
        others = e.sum() - e[i]
        positives = [p for p in range(len(z)) if p != i and of[p] == of[i]]
        if summation == "outside":
            terms.append(-np.mean([math.log(e[p] / others) for p in positives]))
        else:
            terms.append(-math.log(np.mean([e[p] / others for p in positives])))
    return float(np.mean(terms))


@pytest.mark.parametrize("summation", ["outside", "inside"])
def test_supervised_loss_is_the_formula(summation):
    x, labels = random_rows(2, 6, 5), np.array([0, 1, 0, 2, 1, 0])
    loss = lambda x: supcon.supervised_contrastive(x, torch.from_numpy(labels), 0.3, summation)  # noqa: E731
    value, slope = gradient(loss, x)
    assert value == pytest.approx(slow_supervised(x, labels, 0.3, summation), rel=1e-12)
    shift = np.zeros_like(x)
    shift[0, 4, 1] = 1e-6
    wanted = [slow_supervised(x + sign * shift, labels, 0.3, summation) for sign in (1, -1)]
    assert slope[0, 4, 1] == pytest.approx((wanted[0] - wanted[1]) / 2e-6, rel=1e-5)


def test_supervised_loss_without_shared_classes_is_that_of_simclr():
    from sslbench.methods.simclr import nt_xent

    x = torch.from_numpy(random_rows(2, 6, 5))
    torch.testing.assert_close(supcon.supervised_contrastive(x, torch.arange(6), 0.3), nt_xent(x, 0.3))


def slow_neighbours(z, predictions, queue, temperature):
    """Eq. 3, image by image."""
    z, p, terms = unit(z), unit(predictions), []
    for i, anchor in enumerate(z):
        neighbour = queue[max(range(len(queue)), key=lambda k: queue[k] @ anchor)]
        e = [math.exp(neighbour @ row / temperature) for row in p]
        terms.append(-math.log(e[i] / sum(e)))
    return float(np.mean(terms))


def test_loss_of_neighbours_is_the_formula():
    z, p, queue = random_rows(5, 4, seed=1), random_rows(5, 4, seed=2), unit(random_rows(9, 4, seed=3))
    neighbours = nnclr.nearest(torch.from_numpy(unit(z)), torch.from_numpy(queue))
    value, _ = gradient(
        lambda x: nnclr.cross_view_contrast(neighbours, torch.nn.functional.normalize(x, dim=1), 0.2), p
    )
    assert value == pytest.approx(slow_neighbours(z, p, queue, 0.2), rel=1e-12)


def _one_of_two(rank, x, labels, queue):
    mine, own = x[:, 3 * rank : 3 * rank + 3], torch.from_numpy(labels[3 * rank : 3 * rank + 3])
    rows = torch.from_numpy(unit(queue))
    losses = (
        lambda x: dcl.decoupled(x, 0.2, 0.5),
        lambda x: supcon.supervised_contrastive(x, own, 0.2),
        lambda x: nnclr.cross_view_contrast(
            nnclr.nearest(torch.nn.functional.normalize(x[0].detach(), dim=1), rows),
            torch.nn.functional.normalize(x[1], dim=1),
            0.2,
        ),
    )
    return [gradient(loss, mine) for loss in losses]


def test_two_processes_equal_one():
    x, labels, queue = random_rows(2, 6, 4), np.array([0, 1, 0, 1, 2, 0]), random_rows(7, 4, seed=5)
    rows = torch.from_numpy(unit(queue))
    whole = [
        gradient(lambda x: dcl.decoupled(x, 0.2, 0.5), x),
        gradient(lambda x: supcon.supervised_contrastive(x, torch.from_numpy(labels), 0.2), x),
        gradient(
            lambda x: nnclr.cross_view_contrast(
                nnclr.nearest(torch.nn.functional.normalize(x[0].detach(), dim=1), rows),
                torch.nn.functional.normalize(x[1], dim=1),
                0.2,
            ),
            x,
        ),
    ]
    for (value, slope), *parts in zip(whole, *two_processes.run(_one_of_two, x, labels, queue), strict=True):
        assert sum(part[0] for part in parts) / 2 == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(np.concatenate([part[1] for part in parts], axis=1) / 2, slope, atol=1e-14)


def test_queue_of_nnclr_holds_the_newest_embeddings():
    setup = setup_for(network())
    method = nnclr.Method(network(), nnclr.Config(queue=16, projector=(16, 8), predictor=(8,)), setup)
    method.train()
    first = method(batch_of(setup), step_of(0, setup)).embeddings
    method.after_update(step_of(0, setup))
    second = method(batch_of(setup, seed=1), step_of(1, setup)).embeddings
    method.after_update(step_of(1, setup))
    torch.testing.assert_close(method.queue, torch.cat([first, second]))


def test_what_cannot_be_trained_is_refused():
    backbone = network()
    with pytest.raises(UsageError, match="supcon needs data in which every image"):
        supcon.Method(backbone, supcon.Config(), setup_for(backbone, classes=0))
    with pytest.raises(UsageError, match=r"nnclr: queue=12 is no multiple of images_per_update=8"):
        nnclr.Method(backbone, nnclr.Config(queue=12), setup_for(backbone))
    with pytest.raises(UsageError, match="dcl compares views"):
        dcl.Method(backbone, dcl.Config(), setup_for(backbone, sizes=(32,)))
