"""Names and numbers of classes change no metric of any protocol, and no metric depends on the order of the samples."""

import dataclasses

import numpy as np
import pytest
from helpers.targets import text_file
from PIL import Image

from sslbench import evaluate
from sslbench.features.array import Features
from sslbench.metrics.groups import per_class
from sslbench.metrics.summary import summarise
from sslbench.names import list_names
from sslbench.protocols import OnFeatures, find
from sslbench.targets import kinds
from sslbench.targets.classes import Classes

CLASSES, N_TRAIN, N_TEST = 7, 84, 60
NAMES = tuple("ant bee cat dog eel fox gnu".split())
ORDER = np.array([4, 0, 6, 2, 1, 5, 3])
"""The new number of each class."""
RENAMED = tuple(f"{i}. {name}" for i, name in enumerate("yak owl elk cod bat ray pig".split()))
FEWER = {
    "k": {"low-shot": (2, 4), "lsr": (2, 4), "knn": (1, 3, 12), "clustering": (9,)},
    "c": (0.1, 1.0),
    "costs": (0.1, 1.0),
    "draws": 2,
    "restarts": 2,
}
"""Settings for few samples, where a protocol has them; of some, so that something is chosen."""
PROTOCOLS = [
    (name, kind)
    for name in list_names("protocol")
    if isinstance(find(name).kind, OnFeatures)
    for kind in ("single", "multi")
    if kinds()[kind] in find(name).kind.takes and find(name).kind.needs_labels
]


def samples(kind, n, seed):
    """Whole numbers, so that distances and votes tie; half of the labels follow from them."""
    rng = np.random.default_rng(seed)
    y = np.r_[np.arange(CLASSES).repeat(5), rng.integers(0, CLASSES, n)][-n:]
    rng.shuffle(y)
    x = rng.integers(-1, 2, (n, 4)) + np.where(rng.random(n) < 0.5, 1, 0)[:, None] * np.eye(CLASSES)[y][:, :4]
    values = y
    if kind == "multi":
        values = (rng.random((n, CLASSES)) < 0.3).astype(np.int8) | np.eye(CLASSES, dtype=np.int8)[y]
        values[rng.random((n, CLASSES)) < 0.05] = -1
    return Features(x.astype(np.float32), kinds()[kind](NAMES, values), tuple(f"{i:03d}.png" for i in range(n)))


def renumbered(part):
    """The same samples with other names and numbers of the classes."""
    labels, names = part.target, [""] * CLASSES
    for old, new in enumerate(ORDER):
        names[new] = RENAMED[old]
    values = ORDER[labels.values] if isinstance(labels, Classes) else labels.values[:, np.argsort(ORDER)]
    return dataclasses.replace(part, target=type(labels)(tuple(names), values))


def settings_of(name):
    protocol = find(name)
    known = {field.name for field in dataclasses.fields(protocol.settings)}
    chosen = {key: value.get(name) if key == "k" else value for key, value in FEWER.items() if key in known}
    if "text_features" in known:
        rng = np.random.default_rng(3)
        vectors = rng.normal(size=(CLASSES, 4))
        chosen["text_features"] = text_file(dict(zip((*NAMES, *RENAMED), (*vectors, *vectors), strict=True)))
    return protocol.settings(**{key: value for key, value in chosen.items() if value is not None})


@pytest.mark.parametrize(("name", "kind"), PROTOCOLS)
def test_names_and_numbers_of_classes_change_no_metric(name, kind):
    train, test, protocol, settings = samples(kind, N_TRAIN, 0), samples(kind, N_TEST, 1), find(name), settings_of(name)
    usual = protocol.kind.run(train, test, settings, seed=0)
    other = protocol.kind.run(renumbered(train), renumbered(test), settings, seed=0)
    assert usual.metrics.keys() == other.metrics.keys()
    for metric, interval in usual.metrics.items():
        np.testing.assert_allclose(other.metrics[metric], interval, atol=1e-6, err_msg=metric)
    named = dict(zip(NAMES, RENAMED, strict=True))
    for label, value in usual.per_class.items():
        np.testing.assert_allclose(other.per_class[named[label]], value, atol=1e-6, err_msg=label)
    for variant, values in usual.variants.items():
        assert other.variants[variant] == pytest.approx(values, abs=1e-6, nan_ok=True), variant


def counts_of(kind, n, rng):
    """Counts of each class as records keep them: those right, predicted and there, of places in images."""
    there, predicted = rng.integers(1, 4, (2, n, CLASSES))
    right = rng.integers(0, 2, (n, CLASSES))
    return np.stack([right, np.maximum(predicted, right), there], axis=1).astype(np.float32)


OF_COUNTS = ("map", "parts", "poses")
"""Kinds of targets whose scores are three counts of each class."""


@pytest.mark.parametrize("kind", ["single", "multi", *OF_COUNTS])
@pytest.mark.parametrize("probabilities", [None, "scores"])
def test_metrics_of_scores_depend_on_no_order_of_classes_or_samples(kind, probabilities):
    rng, back = np.random.default_rng(0), np.argsort(ORDER)
    rows = rng.permutation(N_TEST)
    if kind in OF_COUNTS:
        counts = counts_of(kind, N_TEST, rng)
        values = np.zeros((N_TEST, 0), np.int8)
        cases = [(values, each.reshape(N_TEST, -1)) for each in (counts, counts[:, :, back], counts[rows])]
    else:
        labels = samples(kind, N_TEST, 2).target.values
        scores = rng.integers(0, 4, (N_TEST, CLASSES)) / 4  # most are equal to others
        moved = ORDER[labels] if kind == "single" else labels[:, back]
        cases = [(labels, scores), (moved, scores[:, back]), (labels[rows], scores[rows])]
    found = [
        summarise(kinds()[kind], NAMES, values, scores, seed=0, resamples=50, probabilities=probabilities)[0]
        for values, scores in cases
    ]
    for metric, (value, low, high) in found[0].items():
        np.testing.assert_allclose(found[1][metric], (value, low, high), atol=1e-9, err_msg=metric)
        np.testing.assert_allclose(found[2][metric][0], value, atol=1e-9, err_msg=metric)


@pytest.mark.parametrize("kind", ["single", "multi"])
def test_metrics_of_a_class_do_not_depend_on_its_number(kind):
    labels, scores = samples(kind, N_TEST, 2).target, np.random.default_rng(0).integers(0, 4, (N_TEST, CLASSES)) / 4
    moved = renumbered(samples(kind, N_TEST, 2)).target
    usual = per_class(NAMES, labels.values, scores)
    other = per_class(moved.classes, moved.values, scores[:, np.argsort(ORDER)])
    named = dict(zip(NAMES, RENAMED, strict=True))
    for metric, values in usual.items():
        np.testing.assert_allclose(
            [other[metric][named[name]] for name in NAMES], list(values.values()), err_msg=metric
        )


SMALL = {
    "clustering": {"restarts": 2},
    "finetune": {"epochs": 1, "batch_size": 8, "lr": (1e-4,), "augment": "none"},
    "linear-online": {"epochs": 1, "batch_size": 8},
    "low-shot": {"k": (2, 3), "draws": 2},
    "lsr": {"k": (2,), "draws": 2},
    "robustness": {"corrupt": ("gaussian_noise",), "severities": (3,), "rotations": (), "scales": ()},
}


OF_CLASSES = [n for n in list_names("protocol") if Classes in getattr(find(n).kind, "takes", ())]


@pytest.fixture(scope="module")
def renamed_folders(tmp_path_factory):
    """The same images in class folders of two names, of which the second turn the order round."""
    root, rng = tmp_path_factory.mktemp("names"), np.random.default_rng(0)
    means = rng.normal(size=(4, 4, 4, 3))
    for number in range(4):
        for i in range(11 + number % 2):
            pixels = np.clip(128 + 25 * means[number] + 60 * rng.normal(size=(4, 4, 3)), 0, 255).astype(np.uint8)
            for name, taken in (("a", f"{number}"), ("b", f"{9 - number}. class")):
                (root / name / taken).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).resize((32, 32)).save(root / name / taken / f"{i}.png")
    return root


@pytest.mark.parametrize("name", [name for name in OF_CLASSES if not find(name).kind.of_groups])
def test_names_of_class_folders_move_no_metric(name, renamed_folders):
    """Splits, hold-outs, folds, starts and first weights are drawn from files, not from an order of folders."""
    on_images = not isinstance(find(name).kind, OnFeatures)
    how = {"resize": 32, "crop": 32, "device": "cpu", "floors": False, "overlaps": False, "out": None, "limit": 40}
    model = {"model": "random", "backbone": "resnet18w0.125"} if on_images else {"model": "pixels:8"}
    if not on_images:
        how = {key: value for key, value in how.items() if key not in ("resize", "crop")}
    settings = SMALL.get(name, {})
    if "text_features" in find(name).settings.__dataclass_fields__:
        vectors, names = (
            np.random.default_rng(3).normal(size=(4, 192)),
            [*"0123", *(f"{9 - i}. class" for i in range(4))],
        )
        settings = {"text_features": text_file(dict(zip(names, (*vectors, *vectors), strict=True)))}
    usual, other = (
        evaluate(train=str(renamed_folders / part), protocols=name, settings={name: settings}, **model, **how)
        for part in "ab"
    )
    for metric, value in usual[0].metrics.items():
        assert other[0].metrics[metric].value == pytest.approx(value.value, abs=2e-3, nan_ok=True), metric
