import dataclasses

import numpy as np
import pytest
import torch
from helpers import two_processes
from helpers.training_samples import batch_of, gradient, network, random_rows, setup_for, step_of, train

from sslbench.errors import UsageError
from sslbench.methods import supervised
from sslbench.methods._parts.losses import cross_entropy, multi_label_loss, top1


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equals_the_formula(smoothing):
    logits, labels = random_rows(6, 4), np.array([0, 3, 1, -1, 2, 0])
    terms = []
    for row, label in zip(logits, labels, strict=True):
        if label >= 0:
            target = np.full(4, smoothing / 4)
            target[label] += 1 - smoothing
            terms.append(-(target * np.log(np.exp(row) / np.exp(row).sum())).sum())
    ours = cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels), smoothing)
    assert ours.item() == pytest.approx(np.mean(terms), rel=1e-12)


def test_top1_is_a_percentage():
    assert top1(torch.eye(4), torch.tensor([0, 1, 2, 0])).item() == 75


@pytest.mark.parametrize("classes", [0, 1])
def test_data_without_classes_is_refused(classes):
    backbone = network()
    with pytest.raises(UsageError, match="one of at least two classes"):
        supervised.Method(backbone, supervised.Config(), setup_for(backbone, sizes=(32,), classes=classes))


def test_a_batch_without_labels_is_refused():
    setup = setup_for(network(), sizes=(32,))
    method = supervised.Method(network(), supervised.Config(), setup)
    with pytest.raises(UsageError, match="without labels"):
        method(dataclasses.replace(batch_of(setup), labels=None), step_of(0, setup))


TARGETS = np.array([[1, 0, -1], [0, 0, -1], [-1, 1, -1], [1, 1, -1], [0, 0, -1], [-1, 0, -1]], np.int8)


def slow_multi_label(logits, targets):
    """VISSL's: every class is divided by its known labels; one without any counts nothing."""
    total = 0.0
    for c in range(targets.shape[1]):
        terms = []
        for z, y in zip(logits[:, c], targets[:, c], strict=True):
            if y >= 0:
                terms.append(-np.log(1 / (1 + np.exp(-z))) if y else -np.log(1 - 1 / (1 + np.exp(-z))))
        total += np.mean(terms) if terms else 0.0
    return total


def test_the_loss_of_several_labels_equals_the_formula():
    logits, targets = random_rows(6, 3), torch.from_numpy(TARGETS)
    value, slope = gradient(lambda x: multi_label_loss(x, targets), logits)
    assert value == pytest.approx(slow_multi_label(logits, TARGETS), rel=1e-12)
    for at in [(0, 0), (3, 1), (2, 0), (1, 2)]:
        step = np.zeros_like(logits)
        step[at] = 1e-6
        numeric = (slow_multi_label(logits + step, TARGETS) - slow_multi_label(logits - step, TARGETS)) / 2e-6
        assert slope[at] == pytest.approx(numeric, rel=1e-6, abs=1e-9)


def _half_of_the_labels(rank, logits):
    mine = slice(3 * rank, 3 * rank + 3)
    return gradient(lambda x: multi_label_loss(x, torch.from_numpy(TARGETS[mine])), logits[mine])


def test_two_processes_equal_one_where_labels_are_missing():
    logits = random_rows(6, 3)
    value, slope = gradient(lambda x: multi_label_loss(x, torch.from_numpy(TARGETS)), logits)
    (first, first_slope), (second, second_slope) = two_processes.run(_half_of_the_labels, logits)
    assert (first + second) / 2 == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(np.concatenate([first_slope, second_slope]) / 2, slope, atol=1e-15)


def test_smoothing_of_several_labels_is_refused():
    setup = setup_for(network(), sizes=(32,), classes=0, targets=torch.ones(100, 4, dtype=torch.int8))
    with pytest.raises(UsageError, match="label_smoothing has no effect"):
        supervised.Method(network(), supervised.Config(label_smoothing=0.1), setup)


def test_trains_on_several_labels():
    targets = torch.randint(-1, 2, (100, 4), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    setup = setup_for(network(), sizes=(32,), classes=0, targets=targets)
    losses = train(supervised.Method(network(), supervised.Config(), setup).train(), batch_of(setup), setup, 20)
    assert np.mean(losses[10:]) < np.mean(losses[:10])
