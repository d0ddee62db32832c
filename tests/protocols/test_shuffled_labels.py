"""With labels that have nothing to do with the features, a protocol scores chance, and its interval says so.

A protocol that looked at the test labels, or an interval that is too short, would leave chance out too often.
"""

import numpy as np
import pytest
from protocol_samples import features

from sslbench.names import find_module, list_names

CLASSES, N_TRAIN, N_TEST, REPEATS = 4, 48, 120, 8
SMALLER = {
    "linear": {"c": (0.01, 1.0)},
    "svm": {"costs": (0.01, 0.1)},
    "low-shot": {"k": (4,), "draws": 2, "costs": (0.01, 0.1)},
    "lsr": {"k": (5,)},
}


def on_labelled_features(name):
    module = find_module("protocol", name)
    return not getattr(module, "ON_IMAGES", False) and getattr(module, "NEEDS_LABELS", True)


PROTOCOLS = [name for name in list_names("protocol") if on_labelled_features(name)]


def shuffled(seed):
    """Clusters, and labels that are dealt out over train and test without looking at them."""
    generator = np.random.default_rng(seed)
    cluster = np.arange(N_TRAIN + N_TEST) % CLASSES
    x = generator.normal(size=(len(cluster), 6)) + 3 * np.eye(CLASSES, 6)[cluster]
    labels = generator.permutation(cluster)
    parts = (slice(0, N_TRAIN), slice(N_TRAIN, None))
    return [features(x[part], labels[part], CLASSES) for part in parts]


def test_all_are_here():
    assert {"knn", "linear", "low-shot", "lsr", "svm"} <= set(PROTOCOLS)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_chance_lies_in_the_interval(name):
    module = find_module("protocol", name)
    settings = module.Settings(**SMALLER.get(name, {}))
    covered = values = 0
    for repeat in range(REPEATS):
        train, test = shuffled(repeat)
        outcome = module.run(train, test, settings, seed=repeat)
        if "top1" not in outcome.metrics:
            pytest.skip(f"{name} has no top-1")
        value, low, high = outcome.metrics["top1"]
        covered += low <= 1 / CLASSES <= high
        values += value / REPEATS
    # Eight intervals of 95 % leave chance out three times or more once in 170 runs; these seeds do not.
    assert covered >= REPEATS - 2
    assert abs(values - 1 / CLASSES) < 0.05
