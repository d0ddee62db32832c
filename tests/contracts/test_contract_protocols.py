"""What every protocol promises, tested on every protocol there is."""

import dataclasses

import numpy as np
import pytest
import torch

from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.config import describe
from sslbench.data.images import Arrays
from sslbench.data.labels import no_labels
from sslbench.data.source import Labels, Source
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.features.extract import ExtractSettings
from sslbench.names import find_module, list_names
from sslbench.results import Outcome

ALL = list_names("protocol")
ON_IMAGES = [name for name in ALL if getattr(find_module("protocol", name), "ON_IMAGES", False)]
PROTOCOLS = [name for name in ALL if name not in ON_IMAGES]
# What finds no class for a sample: clusters are compared with classes, and geometry knows of none.
NO_CLASSIFIERS = {"clustering": "ari", "geometry": "rankme"}
CLASSIFIERS = [name for name in PROTOCOLS if name not in NO_CLASSIFIERS]
NEED_LABELS = [name for name in PROTOCOLS if getattr(find_module("protocol", name), "NEEDS_LABELS", True)]
ONE_LABEL_ONLY = {"clustering", "lsr"}


def sample(n, seed, kind="single", classes=4):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    x = rng.normal(size=(n, 6)).astype(np.float32)
    x[np.arange(n), y] += 4
    if kind == "single":
        values = y.astype(np.int64)
    else:
        values = np.zeros((n, classes), dtype=np.int8)
        values[np.arange(n), y] = 1
        values[np.arange(n), (y + 1) % classes] = rng.integers(-1, 2, n)
    x.setflags(write=False)
    labels = Labels(kind, tuple(f"class {c}" for c in range(classes)), values)
    return Features(x, labels, tuple(f"{seed}-{i:04d}" for i in range(n)))


def run(name, kind="single", seed=0, train=None, test=None):
    module = find_module("protocol", name)
    return module.run(train or sample(80, 1, kind), test or sample(40, 2, kind), module.Settings(), seed=seed)


def test_the_protocols_are_the_expected_ones():
    assert ON_IMAGES == ["linear-online"]
    assert PROTOCOLS == ["clustering", "geometry", "knn", "linear", "low-shot", "lsr", "svm"]
    assert sorted(set(PROTOCOLS) - set(NEED_LABELS)) == ["geometry"]


@pytest.mark.parametrize("name", ALL)
def test_settings_are_frozen_documented_and_have_defaults(name):
    module = find_module("protocol", name)
    assert isinstance(module.VERSION, int) and module.VERSION >= 1
    assert module.__doc__
    settings = module.Settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(settings, dataclasses.fields(settings)[0].name, None)
    assert all(row.meaning for row in describe(module.Settings))
    module.check(settings, sample(80, 1).labels)


@pytest.mark.parametrize("name", sorted(ONE_LABEL_ONLY))
def test_what_needs_one_label_per_sample_says_so_before_any_work(name):
    module = find_module("protocol", name)
    with pytest.raises(DataError, match="several labels each"):
        module.check(module.Settings(), sample(80, 1, "multi").labels)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, kind) for n in CLASSIFIERS for kind in ("single", "multi") if kind == "single" or n not in ONE_LABEL_ONLY],
)
def test_an_outcome_is_complete_and_good_on_separated_classes(name, kind):
    outcome = run(name, kind)
    assert isinstance(outcome, Outcome)
    assert outcome.headline == {"single": "top1", "multi": "mAP"}[kind]
    assert outcome.scores.shape == (40, 4) and outcome.scores.dtype == np.float32
    value, low, high = outcome.metrics[outcome.headline]
    assert 0.8 < value <= 1
    assert 0 <= low <= value + 1e-9 and value - 1e-9 <= high <= 1
    assert set(outcome.per_class) == {f"class {c}" for c in range(4)}
    assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_same_input_and_seed_give_the_same_outcome(name):
    first, second = run(name), run(name)
    assert np.array_equal(first.scores, second.scores)
    assert repr(first.metrics) == repr(second.metrics), "as text, because NaN is not equal to itself"
    assert first.selected == second.selected


@pytest.mark.parametrize("name", PROTOCOLS)
def test_test_labels_decide_nothing(name):
    """Scores and what was selected are the same whatever the test labels are: nothing is chosen on test."""
    train, test = sample(80, 1), sample(40, 2)
    shuffled = np.random.default_rng(0).permutation(test.labels.values)
    other = dataclasses.replace(test, labels=dataclasses.replace(test.labels, values=shuffled))
    first, second = run(name, train=train, test=test), run(name, train=train, test=other)
    assert np.array_equal(first.scores, second.scores)
    assert first.selected == second.selected


@pytest.mark.parametrize(("name", "headline"), NO_CLASSIFIERS.items())
def test_an_outcome_without_predictions_is_complete_too(name, headline):
    outcome = run(name)
    assert outcome.headline == headline and len(outcome.scores) == 40 and outcome.scores.dtype == np.float32
    assert outcome.scores.shape[1] in (0, 4)
    for value, low, high in outcome.metrics.values():
        assert np.isnan(value) or low - 1e-9 <= value <= high + 1e-9
    assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", sorted(set(PROTOCOLS) - set(NEED_LABELS)))
def test_what_needs_no_labels_gives_the_same_without(name):
    parts = [dataclasses.replace(sample(n, n), labels=no_labels(n)) for n in (80, 40)]
    module = find_module("protocol", name)
    module.check(module.Settings(), parts[0].labels)
    with_labels, without = (
        run(name, train=sample(80, 80), test=sample(40, 40)),
        run(name, train=parts[0], test=parts[1]),
    )
    assert without.metrics.items() <= with_labels.metrics.items()


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_shuffled_labels_score_at_chance(name):
    train = sample(400, 1)
    shuffled = np.random.default_rng(5).permutation(train.labels.values)
    train = dataclasses.replace(train, labels=dataclasses.replace(train.labels, values=shuffled))
    value, _, _ = run(name, train=train, test=sample(400, 2)).metrics["top1"]
    assert abs(value - 0.25) < 0.1


@pytest.mark.parametrize("name", PROTOCOLS)
def test_features_that_are_not_finite_are_refused_with_their_ids(name):
    train = sample(80, 1)
    x = np.array(train.x)
    x[7, 2] = np.nan
    with pytest.raises(DataError, match="1-0007"):
        run(name, train=dataclasses.replace(train, x=x))


def pictures(n, seed, kind="single"):
    """The same samples as pictures of 8 x 8 pixels, each class with a colour of its own."""
    labels = sample(n, seed, kind).labels
    colours = np.array([[250, 10, 10], [10, 250, 10], [10, 10, 250], [250, 250, 250]])
    noise = np.random.default_rng(seed).integers(-10, 6, (n, 8, 8, 3))
    array = (colours[np.arange(n) % 4][:, None, None, :] + noise).astype(np.uint8)
    ids = tuple(f"{seed}-{i:04d}" for i in range(n))
    return Source(f"pictures {seed}", ids, labels, Arrays(array, f"pictures {seed}"))


def run_on_images(name, folder, kind="single", test=None):
    module, backbone = find_module("protocol", name), load_backbone("pixels:4")
    settings = dataclasses.replace(module.Settings(), batch_size=16)
    layers = resolve_layers(backbone, ())
    train = pictures(80, 1, kind)
    rows = module.check_images(backbone, layers, train, settings, seed=0)
    outcomes = module.run_on_images(
        backbone,
        layers,
        train,
        pictures(40, 2, kind) if test is None else test,
        settings,
        seed=0,
        engine=ExtractSettings(torch.device("cpu"), workers=0),
        folder=folder,
    )
    assert tuple(outcomes) == rows
    return outcomes[rows[0]]


@pytest.mark.parametrize("name", ON_IMAGES)
@pytest.mark.parametrize("kind", ["single", "multi"])
def test_an_outcome_on_images_is_complete_and_good(name, kind, tmp_path):
    outcome = run_on_images(name, tmp_path, kind)
    assert outcome.headline == {"single": "top1", "multi": "mAP"}[kind]
    assert outcome.scores.shape == (40, 4) and outcome.scores.dtype == np.float32
    value, low, high = outcome.metrics[outcome.headline]
    assert 0.8 < value <= 1 and low <= value + 1e-9 and value - 1e-9 <= high
    assert set(outcome.per_class) == {f"class {c}" for c in range(4)}
    assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", ON_IMAGES)
def test_on_images_the_same_input_gives_the_same_and_test_labels_decide_nothing(name, tmp_path):
    test = pictures(40, 2)
    shuffled = np.random.default_rng(0).permutation(test.labels.values)
    other = dataclasses.replace(test, labels=dataclasses.replace(test.labels, values=shuffled))
    first, second = run_on_images(name, tmp_path / "a"), run_on_images(name, tmp_path / "b", test=other)
    assert np.array_equal(first.scores, second.scores)
    assert first.selected == second.selected
