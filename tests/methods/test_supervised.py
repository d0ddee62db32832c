import dataclasses

import numpy as np
import pytest
import torch
from training_samples import batch_of, check_contract, network, random_rows, setup_for, step_of

from sslbench.errors import UsageError
from sslbench.methods import supervised
from sslbench.methods._parts.classification import cross_entropy, top1


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


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_trains(smoothing):
    setup = setup_for(network(), sizes=(32,))
    config = supervised.Config(label_smoothing=smoothing)
    check_contract(lambda: supervised.Method(network(), config, setup), setup)


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
