"""Target that have nothing to do with the features: a protocol scores chance, and its intervals cover it.

A protocol that looked at the test labels, or an interval that is too short, would leave chance out too often. Target
of test are drawn independently of everything that a protocol may use, so the number of right predictions has a binomial
distribution whatever the protocol does. Each assertion fails for a correct protocol with a probability of at most
ALARM.
"""

import dataclasses

import numpy as np
import pytest
from helpers.protocol_samples import features
from scipy.stats import binom

from sslbench.names import list_names
from sslbench.protocols import OnFeatures, find
from sslbench.targets.classes import Classes

ALARM = 1e-6
CLASSES, N_TRAIN, N_TEST, REPEATS = 4, 48, 120, 8
SMALLER = {"c": (0.01, 1.0), "costs": (0.01, 0.1), "draws": 2}
"""Settings for few samples, where a protocol has them."""


def predicts_classes(protocol):
    kind = protocol.kind
    return isinstance(kind, OnFeatures) and kind.needs_labels and Classes in kind.takes and not kind.own_classes


PROTOCOLS = [name for name in list_names("protocol") if predicts_classes(find(name))]
"""Those that predict something else have tests of their chance levels of their own."""


def settings_of(protocol):
    fields = {field.name for field in dataclasses.fields(protocol.settings)}
    smaller = {name: value for name, value in SMALLER.items() if name in fields}
    return protocol.settings(**smaller, **({"k": (4,)} if {"k", "draws"} <= fields else {}))  # images per class


def shuffled(seed):
    """Clusters; the labels of train are permuted, those of test drawn at random."""
    generator = np.random.default_rng(seed)
    cluster = np.arange(N_TRAIN + N_TEST) % CLASSES
    x = generator.normal(size=(len(cluster), 6)) + 3 * np.eye(CLASSES, 6)[cluster]
    train = features(x[:N_TRAIN], generator.permutation(cluster[:N_TRAIN]), CLASSES)
    return train, features(x[N_TRAIN:], generator.integers(0, CLASSES, N_TEST), CLASSES)


def range_of_chance(n):
    """The numbers of right predictions out of n that chance gives but with a probability of ALARM."""
    return binom.ppf(ALARM / 2, n, 1 / CLASSES), binom.isf(ALARM / 2, n, 1 / CLASSES)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_labels_without_meaning_are_predicted_at_chance(name):
    protocol = find(name)
    right = missed = 0
    for repeat in range(REPEATS):
        train, test = shuffled(repeat)
        outcome = protocol.kind.run(train, test, settings_of(protocol), seed=repeat)
        assert outcome.scores.shape == (N_TEST, CLASSES)
        right += int((outcome.scores.argmax(axis=1) == test.target.values).sum())
        if "top1" in outcome.metrics:
            _, low, high = outcome.metrics["top1"]
            missed += not low <= 1 / CLASSES <= high
    low, high = range_of_chance(REPEATS * N_TEST)
    assert low <= right <= high
    # Intervals of 95 % that in fact cover 90 % on so few samples.
    assert missed <= binom.isf(ALARM, REPEATS, 0.1)


def test_a_protocol_that_sees_a_tenth_of_the_test_labels_is_found():
    _, high = range_of_chance(REPEATS * N_TEST)
    assert high < REPEATS * N_TEST * (0.1 + 0.9 / CLASSES)
