"""What every protocol promises, tested on every protocol there is."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.sample_maps import ArrayMaps, map_pictures, map_sample
from helpers.sample_places import bright_objects
from helpers.sample_tuples import tuple_sample
from helpers.sample_values import COLUMNS, ArrayValues, value_pictures
from scipy.stats import binom
from torch import nn

from sslbench import protocols
from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.config import describe
from sslbench.data.images import Arrays
from sslbench.data.labels import no_labels
from sslbench.data.source import Labels, Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.features.settings import ExtractSettings
from sslbench.labels import LABELS
from sslbench.metrics.summary import ROW_COLUMNS, summarise
from sslbench.names import list_names
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import OnFeatures, OnImages, OnObjects, OnSets, find
from sslbench.results import Outcome
from sslbench.runtime.seeds import seeded

ALL = {name: find(name) for name in list_names("protocol")}
ON_SAMPLES = [name for name, protocol in ALL.items() if not isinstance(protocol.kind, OnObjects)]
OF_TUPLES = [name for name in ON_SAMPLES if ALL[name].kind.label_kinds & {"points", "homography", "tracks"}]
ON_IMAGES = [name for name, p in ALL.items() if isinstance(p.kind, OnImages) and name not in OF_TUPLES]
CLASSES_ON_IMAGES = [name for name in ON_IMAGES if "single" in ALL[name].kind.label_kinds]
OBJECTS_ON_IMAGES = [name for name in ON_IMAGES if ALL[name].kind.label_kinds & {"boxes", "mask"}]
ON_SETS = [name for name, protocol in ALL.items() if isinstance(protocol.kind, OnSets)]
PROTOCOLS = [name for name, protocol in ALL.items() if isinstance(protocol.kind, OnFeatures)]
OF_PLACES = [name for name in ON_SAMPLES if ALL[name].kind.label_kinds == {"value"}]
OF_MAPS = [name for name in ON_SAMPLES if ALL[name].kind.label_kinds == {"map"}]
SMALLER = {
    "segmentation": {"steps": 60, "warmup_steps": 5},
    **{key: {"steps": 60, "warmup_steps": 6, "upsample": 1, "colours": "none"} for key in ("depth", "normals")},
}
"""Settings of protocols whose defaults take long."""
OF_VALUES = {name: kind for name in ON_SAMPLES for kind in ("depth", "normals") if ALL[name].kind.label_kinds == {kind}}
OF_COMPARISONS = {
    name: kind for name in ON_SAMPLES for kind in ("triplets", "camera_pairs") if ALL[name].kind.label_kinds == {kind}
}
"""Protocols on samples of several images: the kind of their labels."""
CITIES = np.array([[48.86, 2.35], [-33.87, 151.21], [40.71, -74.01], [-1.29, 36.82]])


def sample(n, seed, kind="single", classes=4):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % classes
    x = rng.normal(size=(n, 6)).astype(np.float32)
    x[np.arange(n), y] += 4
    if kind == "single":
        values = y.astype(np.int64)
    elif kind == "value":
        values = CITIES[y]
    else:
        values = np.zeros((n, classes), dtype=np.int8)
        values[np.arange(n), y] = 1
        values[np.arange(n), (y + 1) % classes] = rng.integers(-1, 2, n)
    x.setflags(write=False)
    names = ("lat", "lon") if kind == "value" else tuple(f"class {c}" for c in range(classes))
    labels = Labels(kind, names, values)
    return Features(x, labels, tuple(f"{seed}-{i:04d}" for i in range(n)))


def compared_sample(n, seed, kind):
    """Samples of several images with features from which the labels follow."""
    rng = np.random.default_rng(seed)
    if kind == "camera_pairs":
        half = rng.uniform(-0.5, 0.5, n)
        poses = np.column_stack([np.cos(half), np.zeros(n), np.zeros(n), np.sin(half)])
        features = np.column_stack([half, rng.normal(size=(n, 5))]).astype(np.float32)
        labels = Labels(kind, ("qw", "qx", "qy", "qz"), poses)
        return Features(features, labels, tuple(f"{seed}-{i:04d}" for i in range(n)), regions=2)
    values, x = rng.integers(0, 2, n), rng.normal(size=(n, 3, 6)).astype(np.float32)
    x[np.arange(n), 1 + values] += 2 * x[:, 0]
    ids = tuple(f"{seed}-{i:04d}" for i in range(n))
    return Features(x.reshape(n, -1), Labels(kind, ("left", "right"), values), ids, regions=3)


def train_sample(name, kind="single"):
    """Enough samples of labels that the protocol takes: a cell of the globe needs fifty."""
    if name in OBJECTS_ON_IMAGES:
        return bright_objects(8, 1, kind=min(ALL[name].kind.label_kinds))
    if ALL[name].kind.label_kinds & {"signal", "orientation", "boundaries"}:
        return bright_objects(8, 1, kind=min(ALL[name].kind.label_kinds))
    if name in OF_VALUES:
        return value_pictures(OF_VALUES[name], 80, 1)
    if name in OF_COMPARISONS:
        return compared_sample(80, 1, OF_COMPARISONS[name])
    if name in OF_MAPS:
        return map_sample(80, 1)
    if name in OF_TUPLES:
        return tuple_sample(name)
    return sample(240, 1, "value") if name in OF_PLACES else sample(80, 1, kind)


def sample_of_test(name, kind="single"):
    if name in OF_MAPS:
        return map_sample(40, 2)
    if name in OF_COMPARISONS:
        return compared_sample(40, 2, OF_COMPARISONS[name])
    return sample(40, 2, "value" if name in OF_PLACES else kind)


def run(name, kind="single", seed=0, train=None, test=None):
    protocol = ALL[name]
    train, test = train or train_sample(name, kind), test or sample_of_test(name, kind)
    return protocol.kind.run(train, test, protocol.settings(), seed=seed)


def test_every_module_of_the_package_is_a_protocol_of_each_kind_there_is():
    folder = Path(protocols.__file__).parent
    files = {f.stem for f in folder.iterdir() if f.suffix in ("", ".py") and f.name[0] != "_"}
    assert {name.replace("-", "_") for name in ALL} == files - {"protocol"}
    assert ON_IMAGES and ON_SETS and PROTOCOLS and len(ON_SAMPLES) < len(ALL)


def test_a_module_without_a_protocol_is_one_message(tmp_path, monkeypatch):
    (tmp_path / "no_protocol_here.py").write_text("VERSION = 1\n")
    (tmp_path / "pkg_of_protocols").mkdir()
    (tmp_path / "pkg_of_protocols" / "__init__.py").write_text("")
    (tmp_path / "pkg_of_protocols" / "mine.py").write_text("VERSION = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"'pkg_of_protocols.mine' .* is not a protocol\nAdd a line PROTOCOL"):
        find("pkg_of_protocols.mine")


@pytest.mark.parametrize("name", ALL)
def test_settings_are_frozen_documented_and_have_defaults(name):
    protocol = ALL[name]
    assert protocol.version >= 1 and 20 < len(protocol.summary) < 100 and protocol.summary.endswith(".")
    settings = protocol.settings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(settings, dataclasses.fields(settings)[0].name, None)
    assert all(row.meaning for row in describe(protocol.settings))


@pytest.mark.parametrize("name", ON_SAMPLES)
def test_the_default_settings_pass_the_check(name):
    ALL[name].kind.check(ALL[name].settings(), train_sample(name).labels)


@pytest.mark.parametrize("name", OF_PLACES)
def test_an_outcome_of_places_is_complete_and_good_on_separated_cities(name):
    outcome = run(name)
    assert outcome.headline == "accuracy@200km" and outcome.metrics["accuracy@200km"][0] > 0.8
    assert outcome.scores.shape == (40, 2) and outcome.scores.dtype == np.float32
    assert set(outcome.chance) <= set(outcome.metrics) and outcome.chance["accuracy@200km"] == pytest.approx(0.25)


@pytest.mark.parametrize("name", [name for name in OF_MAPS if name in PROTOCOLS])
def test_an_outcome_of_maps_is_complete_and_good_on_separated_classes(name):
    outcome = run(name)
    assert outcome.headline == "mIoU" and 0.7 < outcome.metrics["mIoU"][0] <= 1
    assert outcome.scores.shape == (40, 3 * 4) and set(outcome.per_class) == {f"class {c}" for c in range(4)}
    assert outcome.chance["mIoU"] < 0.1 and set(outcome.chance) == set(outcome.metrics)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if "multi" not in ALL[name].kind.label_kinds])
def test_what_needs_one_label_per_sample_says_so_before_any_work(name):
    with pytest.raises(DataError, match="several"):
        ALL[name].kind.check(ALL[name].settings(), sample(80, 1, "multi").labels)


@pytest.mark.parametrize(
    ("name", "kind"),
    [(n, kind) for n in PROTOCOLS for kind in ("single", "multi") if kind in ALL[n].kind.label_kinds],
)
def test_an_outcome_is_complete_and_good_on_separated_classes(name, kind):
    outcome = run(name, kind)
    assert isinstance(outcome, Outcome)
    if not {"top1", "mAP"} & set(outcome.metrics):
        pytest.skip("predicts no classes")
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
    assert np.array_equal(first.scores, second.scores, equal_nan=True)
    assert repr(first.metrics) == repr(second.metrics), "as text, because NaN is not equal to itself"
    assert first.selected == second.selected


@pytest.mark.parametrize("name", PROTOCOLS)
def test_test_labels_decide_nothing(name):
    """Scores and what was selected are the same whatever the test labels are: nothing is chosen on test."""
    train, test = train_sample(name), sample_of_test(name)
    shuffled = np.random.default_rng(0).permutation(test.labels.values)
    other = dataclasses.replace(test, labels=dataclasses.replace(test.labels, values=shuffled))
    first, second = run(name, train=train, test=test), run(name, train=train, test=other)
    assert np.array_equal(first.scores, second.scores, equal_nan=True)
    assert first.selected == second.selected


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_outcome_is_complete(name):
    outcome = run(name)
    assert outcome.headline in outcome.metrics and len(outcome.scores) == 40 and outcome.scores.dtype == np.float32
    kind = OF_COMPARISONS.get(name)
    columns = (len(ROW_COLUMNS[kind]),) if kind else (2,) if name in OF_PLACES else (12,) if name in OF_MAPS else (0, 4)
    assert outcome.scores.shape[1] in columns
    for value, low, high in outcome.metrics.values():
        assert np.isnan(value) or low - 1e-9 <= value <= high + 1e-9
    assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if not ALL[name].needs_labels])
def test_what_needs_no_labels_gives_the_same_without(name):
    parts = [dataclasses.replace(sample(n, n), labels=no_labels(n)) for n in (80, 40)]
    ALL[name].kind.check(ALL[name].settings(), parts[0].labels)
    with_labels, without = (
        run(name, train=sample(80, 80), test=sample(40, 40)),
        run(name, train=parts[0], test=parts[1]),
    )
    assert without.metrics.items() <= with_labels.metrics.items()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_features_that_are_not_finite_are_refused_with_their_ids(name):
    train = train_sample(name)
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


def small_network():
    """A network with parameters, for the protocols that train them."""
    with seeded(0):
        parts = (nn.Conv2d(3, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        module = nn.Sequential(*parts).eval().requires_grad_(False)
    plain = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    return from_module("small", module, plain)


def pictures_for(name, n, seed, kind="single"):
    """Pictures with the labels that a protocol takes."""
    if name in OF_VALUES:
        return value_pictures(OF_VALUES[name], n, seed)
    return map_pictures(n, seed) if name in OF_MAPS else pictures(n, seed, kind)


def run_on_images(name, folder, kind="single", train=None, test=None):
    protocol, backbone = ALL[name], small_network()
    settings = dataclasses.replace(protocol.settings(), batch_size=16, **SMALLER.get(name, {}))
    layers = resolve_layers(backbone, ["2"] if name in OF_MAPS or name in OF_VALUES else ())
    train = pictures_for(name, 80, 1, kind) if train is None else train
    rows = protocol.kind.rows(backbone, layers, train, settings, seed=0)
    outcomes = protocol.kind.run(
        backbone,
        layers,
        train,
        pictures_for(name, 40, 2, kind) if test is None else test,
        settings,
        seed=0,
        engine=ExtractSettings(torch.device("cpu"), workers=0),
        folder=folder,
    )
    assert tuple(outcomes) == rows
    return outcomes[rows[0]]


@pytest.mark.parametrize("name", [name for name in ON_IMAGES if name in OF_MAPS])
def test_an_outcome_on_images_of_maps_is_complete_and_good(name, tmp_path):
    outcome = run_on_images(name, tmp_path)
    assert outcome.headline == "mIoU" and 0.7 < outcome.metrics["mIoU"][0] <= 1
    assert outcome.scores.shape == (40, 3 * 4) and set(outcome.per_class) == {f"class {c}" for c in range(4)}
    for floor in (outcome.chance, outcome.floors["position only"], outcome.floors["pixels"]):
        assert set(floor) == set(outcome.metrics)
    assert outcome.chance["mIoU"] < 0.1
    for value, low, high in outcome.metrics.values():
        assert low <= value + 1e-9 and value - 1e-9 <= high
    assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", OF_VALUES)
def test_an_outcome_on_images_of_values_is_complete(name, tmp_path):
    outcome = run_on_images(name, tmp_path)
    assert outcome.headline in outcome.metrics and outcome.scores.shape == (40, COLUMNS[OF_VALUES[name]])
    for floor in (outcome.chance, outcome.floors["position only"], outcome.floors["pixels"]):
        assert set(floor) == set(outcome.metrics)
    for value, low, high in outcome.metrics.values():
        assert low <= value + 1e-9 and value - 1e-9 <= high
    assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", CLASSES_ON_IMAGES)
@pytest.mark.parametrize("kind", ["single", "multi"])
def test_an_outcome_on_images_is_complete_and_good(name, kind, tmp_path):
    outcome = run_on_images(name, tmp_path, kind)
    assert outcome.headline == {"single": "top1", "multi": "mAP"}[kind]
    assert outcome.scores.shape == (40, 4) and outcome.scores.dtype == np.float32
    value, low, high = outcome.metrics[outcome.headline]
    assert 0.8 < value <= 1 and low <= value + 1e-9 and value - 1e-9 <= high
    assert set(outcome.per_class) == {f"class {c}" for c in range(4)}
    assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", [*CLASSES_ON_IMAGES, *(n for n in ON_IMAGES if n in OF_MAPS or n in OF_VALUES)])
def test_on_images_the_same_input_gives_the_same_and_test_labels_decide_nothing(name, tmp_path):
    test = pictures_for(name, 40, 2)
    if test.pixel_values is not None:
        first, again = run_on_images(name, tmp_path / "a"), run_on_images(name, tmp_path / "b")
        assert np.array_equal(first.scores, again.scores)
        turned_values = ArrayValues(test.pixel_values.values[:, ::-1].copy())
        other = run_on_images(name, tmp_path / "c", test=dataclasses.replace(test, pixel_values=turned_values))
        assert first.selected == other.selected and not np.array_equal(first.scores, other.scores)
        return
    if test.maps is not None:
        first, second = run_on_images(name, tmp_path / "a"), run_on_images(name, tmp_path / "b", test=turned(test))
        predicted = [outcome.scores.reshape(40, 3, 4)[:, 1] for outcome in (first, second)]
        assert np.array_equal(*predicted) and first.selected == second.selected
        return
    shuffled = np.random.default_rng(0).permutation(test.labels.values)
    other = dataclasses.replace(test, labels=dataclasses.replace(test.labels, values=shuffled))
    first, second = run_on_images(name, tmp_path / "a"), run_on_images(name, tmp_path / "b", test=other)
    assert np.array_equal(first.scores, second.scores)
    assert first.selected == second.selected


def turned(source):
    """The same images with the label maps upside down."""
    return dataclasses.replace(source, maps=ArrayMaps(source.maps.maps[:, ::-1].copy()))


@pytest.mark.parametrize("name", CLASSES_ON_IMAGES)
def test_on_images_labels_without_meaning_are_predicted_at_chance(name, tmp_path):
    """Test labels are drawn apart from all else: a correct protocol fails once in a million runs, whatever its seed."""
    generator = np.random.default_rng(0)
    train, test = pictures(80, 1), pictures(40, 2)
    mixed = dataclasses.replace(train.labels, values=generator.permutation(train.labels.values))
    drawn = dataclasses.replace(test.labels, values=generator.integers(0, 4, 40))
    train, test = dataclasses.replace(train, labels=mixed), dataclasses.replace(test, labels=drawn)
    outcome = run_on_images(name, tmp_path, train=train, test=test)
    assert (outcome.scores.argmax(axis=1) == drawn.values).sum() <= binom.isf(1e-6, 40, 0.25)


def run_on_objects(name, source, folder):
    """Outcome of the features of a small network, in which objects differ from the background."""
    backbone, protocol = small_network(), ALL[name]
    layers = resolve_layers(backbone, ["0"])
    rows = protocol.kind.rows(backbone, layers, source, protocol.settings(), seed=0)
    engine = ExtractSettings(torch.device("cpu"), workers=0)
    options = {"seed": 0, "engine": engine, "folder": folder}
    outcomes = protocol.kind.run(backbone, layers, source, source, protocol.settings(), **options)
    assert tuple(outcomes) == rows
    return outcomes[rows[0]]


@pytest.mark.parametrize("name", OBJECTS_ON_IMAGES)
def test_an_outcome_on_objects_is_complete_good_and_always_the_same(name, tmp_path):
    source = train_sample(name)
    outcome, again = (run_on_objects(name, source, tmp_path) for _ in range(2))
    assert outcome.headline == LABELS[source.labels.kind].metric and len(outcome.scores) == 8
    assert np.array_equal(outcome.scores, again.scores) and outcome.picture == again.picture
    assert repr(outcome.metrics) == repr(again.metrics)
    value, low, high = outcome.metrics[outcome.headline]
    least = 0.8 if source.labels.kind == "boxes" else 0.6  # cells at the border of an object are larger than its edge
    assert least < value <= 1 and low <= value + 1e-9 and value - 1e-9 <= high
    assert value > outcome.floors["whole image"][outcome.headline]
    assert all(note.endswith(".") for note in outcome.notes) and not ALL[name].kind.trains


@pytest.mark.parametrize("name", OF_TUPLES)
def test_what_trains_nothing_is_complete_and_the_same_every_time(name, tmp_path):
    protocol, backbone, test = ALL[name], small_network(), tuple_sample(name)
    layers, engine = resolve_layers(backbone, ("0", "2")), ExtractSettings(torch.device("cpu"), workers=1)
    found = []
    for _ in range(2):
        settings = protocol.settings()
        rows = protocol.kind.rows(backbone, layers, test, settings, seed=0)
        arguments = {"seed": 0, "engine": engine, "folder": tmp_path / "nothing"}
        found.append(protocol.kind.run(backbone, layers, test, test, settings, **arguments))
        assert tuple(found[-1]) == rows and len(rows) == 2
    for row, outcome in found[0].items():
        assert outcome.headline == LABELS[test.labels.kind].metric and outcome.headline in outcome.metrics
        assert outcome.scores.shape == (len(test), len(ROW_COLUMNS[test.labels.kind]))
        assert np.array_equal(outcome.scores, found[1][row].scores)
        assert repr(outcome.metrics) == repr(found[1][row].metrics)
        for value, low, high in outcome.metrics.values():
            assert np.isnan(value) or low - 1e-9 <= value <= high + 1e-9
        assert set(outcome.chance) <= set(outcome.metrics) and outcome.headline in outcome.floors["pixels"]
        assert all(note.endswith(".") for note in outcome.notes)
        # Metrics follow from the rows alone, as comparisons and groups need.
        again, _, _ = summarise(test.labels.kind, test.labels.classes, test.labels.values, outcome.scores, seed=0)
        assert {name: again[name][0] for name in again} == pytest.approx(
            {name: outcome.metrics[name][0] for name in again}, nan_ok=True
        )
    assert not (tmp_path / "nothing").exists()


def run_on_sets(name, train=None, test=None):
    """Features of every set are those of the test image that its id ends in, with noise."""
    protocol = ALL[name]
    settings, small = protocol.settings(), Preprocessing(resize=(32, 32), crop=None)
    train, test = train or sample(80, 1), test or sample(40, 2)
    sets = {}
    for key, each in protocol.kind.open_sets(
        settings, pictures(80, 1), pictures(40, 2), small, lambda source: source
    ).items():
        own = np.array([test.ids.index(i.rpartition("/")[2]) for i in each.source.ids])
        noise = np.random.default_rng(3).normal(size=(len(own), 6)).astype(np.float32)
        sets[key] = Features(test.x[own] + noise, each.source.labels, each.source.ids)
    return protocol.kind.run(train, test, sets, settings, seed=0)


@pytest.mark.parametrize("name", ON_SETS)
def test_every_outcome_on_sets_is_complete(name):
    outcomes = run_on_sets(name)
    assert "" in outcomes
    for outcome in outcomes.values():
        assert outcome.headline in outcome.metrics and outcome.scores.shape == (40, 4)
        assert outcome.scores.dtype == np.float32 and set(outcome.per_class) == {f"class {c}" for c in range(4)}
        for value, low, high in outcome.metrics.values():
            assert np.isnan(value) or low - 1e-9 <= value <= high + 1e-9
        assert all(note.endswith(".") for note in outcome.notes)


@pytest.mark.parametrize("name", ON_SETS)
def test_on_sets_the_same_input_gives_the_same_and_test_labels_decide_nothing(name):
    test = sample(40, 2)
    shuffled = np.random.default_rng(0).permutation(test.labels.values)
    other = dataclasses.replace(test, labels=dataclasses.replace(test.labels, values=shuffled))
    first, second, relabelled = run_on_sets(name)[""], run_on_sets(name)[""], run_on_sets(name, test=other)[""]
    assert repr(first.metrics) == repr(second.metrics)
    assert np.array_equal(first.scores, relabelled.scores) and first.selected == relabelled.selected


@pytest.mark.parametrize("name", ON_SETS)
def test_on_sets_labels_without_meaning_are_predicted_at_chance(name):
    generator = np.random.default_rng(0)
    train, test = sample(80, 1), sample(40, 2)
    mixed = dataclasses.replace(train.labels, values=generator.permutation(train.labels.values))
    drawn = dataclasses.replace(test.labels, values=generator.integers(0, 4, 40))
    outcome = run_on_sets(name, dataclasses.replace(train, labels=mixed), dataclasses.replace(test, labels=drawn))[""]
    assert (outcome.scores.argmax(axis=1) == drawn.values).sum() <= binom.isf(1e-6, 40, 0.25)


@pytest.mark.parametrize("name", ON_SETS)
def test_on_sets_features_that_are_not_finite_are_refused_with_their_ids(name):
    train = sample(80, 1)
    x = np.array(train.x)
    x[7, 2] = np.nan
    with pytest.raises(DataError, match="1-0007"):
        run_on_sets(name, dataclasses.replace(train, x=x))
