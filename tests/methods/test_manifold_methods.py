"""MMCR, EMP-SSL, DirectCLR and SMoG against slow formulas."""

import math

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, unit

from sslbench.errors import UsageError
from sslbench.methods import directclr, emp_ssl, mmcr, smog
from sslbench.train.method import find_method


def slope_at(slow, x, place):
    """Central difference of a slow formula."""
    shift = np.zeros_like(x)
    shift[place] = 1e-6
    return (slow(x + shift) - slow(x - shift)) / 2e-6


def slow_capacity(views, targets, weight):
    """Section 2, by singular values; the authors' momentum form."""
    z, fixed = unit(views), unit(targets)
    centroids = np.array([(z[:, i].mean(0) + fixed[:, i].mean(0)) / 2 for i in range(z.shape[1])])
    spread = np.mean([np.linalg.svd(z[:, i], compute_uv=False).sum() for i in range(z.shape[1])])
    return weight * spread - np.linalg.svd(centroids, compute_uv=False).sum()


@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize("images", [3, 7])  # fewer and more than dimensions
def test_mmcr_is_the_formula(images, weight):
    x, targets = random_rows(3, images, 5, seed=1), random_rows(3, images, 5, seed=2)
    value, slope = gradient(lambda x: mmcr.mmcr_loss(x, torch.from_numpy(targets), weight), x)
    assert value == pytest.approx(slow_capacity(x, targets, weight), rel=1e-10)
    wanted = slope_at(lambda x: slow_capacity(x, targets, weight), x, (1, 2, 3))
    assert slope[1, 2, 3] == pytest.approx(wanted, rel=1e-5)


def slow_coding_rate(views, weight, epsilon):
    """Eq. 3 with the factors of the authors' code: eigenvalues in place of a determinant, cosines one by one."""
    z, terms = unit(views), []
    cosines = [unit(z[v, i]) @ unit(z[:, i].mean(0)) for v in range(len(z)) for i in range(z.shape[1])]
    for patch in z:
        n, d = patch.shape
        eigenvalues = np.linalg.eigvalsh(sum(np.outer(row, row) for row in patch))
        terms.append(sum(math.log(1 + d / (n * epsilon) * each) for each in eigenvalues) / 2)
    return -weight * np.mean(cosines) - np.mean(terms)


def test_emp_ssl_is_the_formula():
    x = random_rows(4, 6, 5)
    value, slope = gradient(lambda x: emp_ssl.emp_ssl_loss(x, invariance_weight=20.0, epsilon=0.1), x)
    assert value == pytest.approx(slow_coding_rate(x, 20, 0.1), rel=1e-10)
    wanted = slope_at(lambda x: slow_coding_rate(x, 20, 0.1), x, (2, 4, 1))
    assert slope[2, 4, 1] == pytest.approx(wanted, rel=1e-5)


def slow_direct(views, dimensions, temperature):
    """InfoNCE of both directions, image by image, on the first dimensions."""
    a, b = unit(views[..., :dimensions])
    terms = []
    for here, there in ((a, b), (b, a)):
        for i, anchor in enumerate(here):
            e = [math.exp(anchor @ row / temperature) for row in there]
            terms.append(-math.log(e[i] / sum(e)))
    return np.mean(terms)


def test_directclr_contrasts_the_first_dimensions_alone():
    x = random_rows(2, 5, 8)
    value, slope = gradient(lambda x: directclr.directclr_loss(*x, 3, 0.2), x)
    assert value == pytest.approx(slow_direct(x, 3, 0.2), rel=1e-10)
    assert slope[1, 2, 1] == pytest.approx(slope_at(lambda x: slow_direct(x, 3, 0.2), x, (1, 2, 1)), rel=1e-5)
    assert not slope[..., 3:].any()


def slow_groups(groups, z, beta):
    """Groups after an update, one by one, and the group of each embedding before it."""
    own = [max(range(len(groups)), key=lambda k: groups[k] @ row) for row in z]
    new = groups.copy()
    for k in set(own):
        new[k] = unit(
            beta * groups[k] + (1 - beta) * np.mean([row for row, at in zip(z, own, strict=True) if at == k], 0)
        )
    return new, own


def slow_grouping(z, predictions, groups, labels, beta, temperature):
    """Eq. 4 with groups that have moved with the embeddings."""
    groups, _ = slow_groups(groups, z, beta)
    terms = []
    for prediction, label in zip(unit(predictions), labels, strict=True):
        e = np.exp(groups @ prediction / temperature)
        terms.append(-math.log(e[label] / e.sum()))
    return np.mean(terms)


def test_groups_move_with_the_embeddings_and_pass_their_gradient_on():
    groups, predictions = unit(random_rows(5, 4, seed=1)), random_rows(7, 4, seed=2)
    z = unit(random_rows(7, 4, seed=3))
    labels = np.array([0, 1, 2, 3, 4, 0, 1])

    def loss(z):
        moved = smog.moved_groups(torch.from_numpy(groups), z, 0.7)
        return smog.group_loss(torch.from_numpy(predictions), moved, torch.from_numpy(labels), 0.2)

    slow = lambda z: slow_grouping(z, predictions, groups, labels, 0.7, 0.2)  # noqa: E731
    value, slope = gradient(loss, z)
    assert value == pytest.approx(slow(z), rel=1e-10)
    assert slope[3, 2] == pytest.approx(slope_at(slow, z, (3, 2)), rel=1e-5)


def _one_of_two(rank, x, targets, groups):
    share = slice(3 * rank, 3 * rank + 3)
    fixed = torch.from_numpy(targets[:, share])
    start = torch.from_numpy(groups)
    return [
        gradient(loss, x[:, share])
        for loss in (
            lambda x: mmcr.mmcr_loss(x, fixed, 0.2),
            emp_ssl.emp_ssl_loss,
            lambda x: directclr.directclr_loss(*x, 3, 0.2),
            lambda x: smog.moved_groups(start, torch.nn.functional.normalize(x[0], dim=1), 0.6)[:, 0].sum(),
        )
    ]


def test_two_processes_equal_one():
    x, targets, groups = random_rows(2, 6, 4), random_rows(2, 6, 4, seed=1), unit(random_rows(3, 4, seed=2))
    fixed, start = torch.from_numpy(targets), torch.from_numpy(groups)
    whole = [
        gradient(loss, x)
        for loss in (
            lambda x: mmcr.mmcr_loss(x, fixed, 0.2),
            emp_ssl.emp_ssl_loss,
            lambda x: directclr.directclr_loss(*x, 3, 0.2),
            lambda x: smog.moved_groups(start, torch.nn.functional.normalize(x[0], dim=1), 0.6)[:, 0].sum(),
        )
    ]
    for (value, slope), *parts in zip(whole, *two_processes.run(_one_of_two, x, targets, groups), strict=True):
        assert sum(part[0] for part in parts) / 2 == pytest.approx(value, rel=1e-10)
        np.testing.assert_allclose(np.concatenate([part[1] for part in parts], axis=1) / 2, slope, atol=1e-12)


def test_smog_takes_groups_and_momentum_network_anew_after_some_updates():
    setup = setup_for(network())
    config = smog.Config(groups=3, queue=16, reset_every=2, projector=(16, 8), predictor=(8,))
    method = smog.Method(network(), config, setup).train()
    found = []
    for index in range(2):
        before = method.groups.clone()
        with torch.no_grad():
            method.projector[0].weight.add_(1.0)
        found.append(method(batch_of(setup, seed=index), step_of(index, setup)).embeddings)
        assert not torch.equal(method.groups, before)
        method.after_update(step_of(index, setup))
        same = torch.equal(method.target_projector[0].weight, method.projector[0].weight)
        assert same == (index == 1)
    rows = torch.cat(found)
    torch.testing.assert_close(method.queue, rows)
    # Groups of k-means: each is the direction of the mean of its rows.
    own = (rows @ method.groups.T).argmax(dim=1)
    for k in own.unique():
        torch.testing.assert_close(method.groups[k], torch.nn.functional.normalize(rows[own == k].mean(0), dim=0))


def test_the_views_of_smog_take_turns():
    setup = setup_for(network())
    config = smog.Config(groups=3, queue=16, reset_every=2, projector=(16, 8), predictor=(8,))
    method, batch = smog.Method(network(), config, setup).eval(), batch_of(setup)
    with torch.no_grad():
        for index, view in enumerate(batch.views):
            wanted = torch.nn.functional.normalize(method.projector(method.backbone(view)), dim=1)
            torch.testing.assert_close(method(batch, step_of(index, setup)).embeddings, wanted)


def test_what_cannot_be_trained_is_refused():
    backbone = network()
    with pytest.raises(UsageError, match=r"dimensions=65, but the output of resnet18w0\.125 has 64"):
        directclr.Method(backbone, directclr.Config(dimensions=65), setup_for(backbone))
    with pytest.raises(UsageError, match="smog: queue=12 is no multiple"):
        smog.Method(backbone, smog.Config(queue=12), setup_for(backbone))
    for changes in ({"groups": 17}, {"reset_every": 1}):
        with pytest.raises(UsageError, match=r"queue=16 must be at least the \d+ groups and at most the \d+ images"):
            smog.Method(backbone, smog.Config(**{"groups": 3, "queue": 16, **changes}), setup_for(backbone))
    for name in ("mmcr", "emp_ssl", "smog", "directclr"):
        module = find_method(name)
        with pytest.raises(UsageError, match=f"{name} (takes 2 views|compares views)") as error:
            module(backbone, module.config_type(), setup_for(backbone, sizes=(32,)))
        assert "Set augment=" in error.value.remedy
