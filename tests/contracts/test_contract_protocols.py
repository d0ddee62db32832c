"""What every protocol promises, tested on every protocol there is, on samples of each kind of labels that it takes."""

import dataclasses
import functools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.reads import reads
from helpers.targets import kinds_of, needed_settings, target_of, with_other_targets
from torch import nn

from sslbench import protocols
from sslbench.backbones.in_memory import from_module
from sslbench.backbones.layers import resolve_layers
from sslbench.config import describe
from sslbench.errors import DataError, UsageError
from sslbench.evaluation.floors import guessing
from sslbench.features.array import ExtractSettings, Features
from sslbench.metrics.catalog import find as find_metric
from sslbench.metrics.summary import summarise
from sslbench.names import installed, list_names
from sslbench.preprocessing import Preprocessing
from sslbench.protocols import FeatureInputs, ImageInputs, OnFeatures, OnImages, OnSets, find
from sslbench.results import Outcome
from sslbench.runtime.seeds import seeded
from sslbench.targets import kinds
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.pixel_values import ReadValues
from sslbench.targets.texts import Texts
from sslbench_visbench.targets import Signals

ALL = {name: find(name) for name in list_names("protocol")}


def names_on(takes):
    return [name for name, protocol in ALL.items() if isinstance(protocol.kind, takes)]


ON_SAMPLES = [name for name in ALL if not ALL[name].kind.on_objects]
PROTOCOLS, ON_SETS = names_on(OnFeatures), names_on(OnSets)
TRAINED_ON_IMAGES = [name for name in names_on(OnImages) if ALL[name].kind.trains]
OF_CLASSES = [name for name in ON_SAMPLES if kinds()[kinds_of(ALL[name])[0]].of_classes]


def with_kinds(names):
    return pytest.mark.parametrize(("name", "kind"), [(n, kind) for n in names for kind in kinds_of(ALL[n])])


def run(name, kind=None, seed=0, train=None, test=None):
    """The outcome of a protocol on features."""
    protocol, target = ALL[name], target_of(ALL[name], kind)
    needed = needed_settings(protocol)
    with reads(*needed.values()) as found:  # files that settings name are among the inputs
        settings = protocol.settings(**needed)
        outcome = protocol.kind.run(train or target.train, test or target.test, settings, seed=seed)
    assert found == set(), "no input of the run, and in no key"
    return outcome


usual = functools.cache(run)
"""Outcomes on the samples of a kind of labels, each computed once."""


def assert_complete(outcome, labels, *, width=None):
    """An outcome has its headline, scores, classes, and intervals that hold their values, within bounds.

    NaN, such as a top5 of four classes, is no headline and no metric of pixels.
    """
    assert isinstance(outcome, Outcome) and outcome.headline in outcome.metrics
    width = len(labels.columns(labels.classes)) if width is None else width
    assert outcome.scores.shape == (len(labels.values), width) and outcome.scores.dtype == np.float32
    if width and (labels.of_classes or isinstance(labels, LabelMaps)):
        assert set(outcome.per_class) == set(labels.classes)
    pixels = labels.of_pixels
    for metric, (value, low, high) in outcome.metrics.items():
        least, most = find_metric(metric).bounds
        held = low - 1e-9 <= value <= high + 1e-9 and least - 1e-9 <= low and high <= most + 1e-9
        assert held or (np.isnan(value) and metric != outcome.headline and not pixels), metric
    assert set(outcome.chance or {}) <= set(outcome.metrics)
    assert all(note.endswith(".") for note in outcome.notes)


def assert_good(outcome, kind, target):
    """On separated samples a protocol leads with the metric of its labels and is as good as it has to be."""
    led = [metric for metric in (*target.good, kinds()[kind].metric) if metric in outcome.metrics]
    if not led:  # predicts no labels, but perhaps clusters that are scored by the classes
        assert kinds()[kind].of_classes or not outcome.scores.shape[1]
        return
    assert outcome.headline == led[0]
    if led[0] in target.good:
        value, direction = outcome.metrics[led[0]][0], find_metric(led[0]).direction
        assert direction * (value - target.good[led[0]]) > 0, value
        for floor in [outcome.floors[target.floor]] if target.floor else []:
            assert direction * (value - floor[led[0]]) > 0
    for metric in set(target.chance) & set(outcome.metrics):
        low, high = target.chance[metric]
        assert low - 1e-9 <= outcome.chance[metric] <= high + 1e-9


def assert_same(first, second):
    """Metrics are compared as text, because NaN is not equal to itself."""
    assert np.array_equal(first.scores, second.scores, equal_nan=True) and first.selected == second.selected
    assert repr(first.metrics) == repr(second.metrics) and first.picture == second.picture


def assert_test_decided_nothing(first, second, test):
    """Two outcomes of other test targets: the choice is the same, and the predictions, as far as scores have them."""
    assert first.selected == second.selected
    if isinstance(test.target, ReadValues | Signals | Texts):  # errors, and ranks of the right answers
        assert not np.array_equal(first.scores, second.scores)
        return
    scores = [first.scores, second.scores]
    if isinstance(test.target, LabelMaps):  # areas: of both, predicted, labelled
        scores = [each.reshape(len(each), 3, -1)[:, 1] for each in scores]
    assert np.array_equal(*scores, equal_nan=True)


def test_every_module_of_the_package_is_a_protocol_of_each_kind_there_is():
    folder = Path(protocols.__file__).parent
    files = {f.stem for f in folder.iterdir() if f.suffix in ("", ".py") and f.name[0] != "_"}
    assert {name.replace("-", "_") for name in set(ALL) - set(installed("protocol"))} == files - {"protocol"}
    assert TRAINED_ON_IMAGES and ON_SETS and PROTOCOLS and len(ON_SAMPLES) < len(ALL)


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


@with_kinds(ON_SAMPLES)
def test_the_default_settings_pass_the_check(name, kind):
    settings = ALL[name].settings(**needed_settings(ALL[name]))
    ALL[name].kind.check(settings, target_of(ALL[name], kind).train.target)


@pytest.mark.parametrize("name", [name for name in ON_SAMPLES if not any(k.of_classes for k in ALL[name].kind.takes)])
def test_targets_of_another_kind_are_refused_with_the_words_for_them(name):
    protocol, every = ALL[name], {kind: other for other in ON_SAMPLES for kind in kinds_of(ALL[other])}
    for kind in every.keys() - set(kinds_of(protocol)):
        target = target_of(ALL[every[kind]], kind).train.target
        with pytest.raises(DataError, match=rf"{name}.* samples have {re.escape(target.title)}"):
            protocol.kind.check(protocol.settings(), target)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if MultiLabel not in ALL[name].kind.takes])
def test_what_needs_one_label_per_sample_says_so_before_any_work(name):
    several = next(
        target_of(other, "multi") for other in ALL.values() if MultiLabel in getattr(other.kind, "takes", ())
    )
    with pytest.raises(DataError, match="several"):
        ALL[name].kind.check(ALL[name].settings(), several.train.target)


@with_kinds(PROTOCOLS)
def test_every_outcome_is_complete_and_good_on_separated_samples(name, kind):
    outcome, target = usual(name, kind), target_of(ALL[name], kind)
    leads = {*target.good, kinds()[kind].metric} & outcome.metrics.keys()
    width = None if leads or outcome.scores.shape[1] else 0  # predicts no labels
    assert_complete(outcome, target.test.target, width=width)
    assert_good(outcome, kind, target)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_same_input_and_seed_give_the_same_outcome_and_test_labels_decide_nothing(name):
    first, test = usual(name, kinds_of(ALL[name])[0]), target_of(ALL[name]).test
    assert_same(first, run(name))
    assert_test_decided_nothing(first, run(name, test=with_other_targets(test)), test)


def with_renamed_classes(part):
    """The same samples; the classes have other names, in another order."""
    order = np.array([2, 0, 3, 1])
    values = (
        part.target.values[:, order] if isinstance(part.target, MultiLabel) else np.argsort(order)[part.target.values]
    )
    return dataclasses.replace(part, target=part.target.changed(classes=tuple("wxyz"), values=values))


@pytest.mark.parametrize(
    "name",
    # Few images of each class are drawn class after class, so another order draws others.
    [name for name in PROTOCOLS if name in OF_CLASSES and "draws" not in ALL[name].settings.__dataclass_fields__],
)
def test_names_and_order_of_the_classes_do_not_matter_to_the_leading_metric(name):
    outcome, target = usual(name, kinds_of(ALL[name])[0]), target_of(ALL[name])
    renamed = run(name, train=with_renamed_classes(target.train), test=with_renamed_classes(target.test))
    assert renamed.metrics[outcome.headline][0] == pytest.approx(outcome.metrics[outcome.headline][0], abs=1e-6)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if not ALL[name].kind.needs_labels])
def test_what_needs_no_labels_gives_the_same_without(name):
    assert usual(name, "none").metrics.items() <= usual(name, kinds_of(ALL[name])[0]).metrics.items()


@pytest.mark.parametrize("name", PROTOCOLS)
def test_features_that_are_not_finite_are_refused_with_their_ids(name):
    train = target_of(ALL[name]).train
    x = np.array(train.x)
    x[7, 2] = np.nan
    with pytest.raises(DataError, match="1-0007"):
        run(name, train=dataclasses.replace(train, x=x))


@functools.cache
def small_network():
    """A network with parameters, for the protocols that train them."""
    with seeded(0):
        parts = (nn.Conv2d(3, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        module = nn.Sequential(*parts).eval().requires_grad_(False)
    plain = Preprocessing(resize=None, crop=None, mean=(0.5,) * 3, std=(0.25,) * 3, origin="test")
    return from_module("small", module, plain)


def run_on_images(name, folder, kind=None, *, train=None, test=None):
    """The outcomes of a protocol on images, by layer; one that uses one part takes test alone."""
    protocol, target, backbone = ALL[name], target_of(ALL[name], kind), small_network()
    layers, engine = resolve_layers(backbone, target.layers), ExtractSettings(torch.device("cpu"), workers=0)
    fields = {field.name for field in dataclasses.fields(protocol.settings)}
    settings = protocol.settings(**{field: value for field, value in target.quick.items() if field in fields})
    test = test or target.pictures(target.n[1], 2)
    train = train or (test if protocol.kind.part(settings) else target.pictures(target.n[0], 1))
    rows = protocol.kind.rows(backbone, layers, train, settings, seed=0)
    with reads(folder) as found:
        outcomes = protocol.kind.run(ImageInputs(settings, 0, train, test, backbone, layers, engine, folder, None))
    assert found == set(), "no input of the run, and in no key"
    assert tuple(outcomes) == rows and len(rows) == max(1, len(target.layers))
    return outcomes


@pytest.fixture(scope="module")
def usual_on_images(tmp_path_factory):
    """Outcomes on the samples of a kind of labels, each computed once."""
    return functools.cache(lambda name, kind: run_on_images(name, tmp_path_factory.mktemp("usual"), kind))


@with_kinds(TRAINED_ON_IMAGES)
def test_an_outcome_on_images_is_complete_and_good(name, kind, usual_on_images):
    (outcome,) = usual_on_images(name, kind).values()
    target = target_of(ALL[name], kind)
    assert_complete(outcome, target.pictures(target.n[1], 2).target)
    assert_good(outcome, kind, target)
    if kinds()[kind].of_pixels:
        assert set(outcome.floors) >= {"position only", "pixels"}
        assert all(set(floor) == set(outcome.metrics) for floor in (outcome.chance, *outcome.floors.values()))


@pytest.mark.parametrize("name", TRAINED_ON_IMAGES)
def test_on_images_the_same_input_gives_the_same_and_test_labels_decide_nothing(name, usual_on_images, tmp_path):
    kind, target = kinds_of(ALL[name])[0], target_of(ALL[name])
    test = target.pictures(target.n[1], 2)
    (first,) = usual_on_images(name, kind).values()
    if isinstance(test.target, ReadValues | Signals):  # otherwise equal predictions of another run show it
        (again,) = run_on_images(name, tmp_path / "again").values()
        assert_same(first, again)
    (other,) = run_on_images(name, tmp_path / "other", test=with_other_targets(test)).values()
    assert_test_decided_nothing(first, other, test)


@with_kinds([name for name in names_on(OnImages) if name not in TRAINED_ON_IMAGES])
def test_what_trains_nothing_is_complete_good_and_the_same_every_time(name, kind, tmp_path):
    target = target_of(ALL[name], kind)
    test = target.test
    found, again = (run_on_images(name, tmp_path / "nothing", kind, test=test) for _ in range(2))
    for row, outcome in found.items():
        assert_complete(outcome, test.target)
        assert_good(outcome, kind, target)
        assert_same(outcome, again[row])
        assert outcome.floors and all(outcome.headline in floor for floor in outcome.floors.values())
        # Metrics follow from the rows alone, as comparisons and groups need.
        metrics, _, _ = summarise(kinds()[kind], test.target.classes, test.target.values, outcome.scores, seed=0)
        own = {metric: values[0] for metric, values in metrics.items()}
        assert own == pytest.approx({metric: outcome.metrics[metric][0] for metric in own}, nan_ok=True)
    assert not (tmp_path / "nothing").exists()


def run_on_sets(name, train=None, test=None):
    """Features of every set are those of the test image that its id ends in, with noise."""
    protocol, target = ALL[name], target_of(ALL[name])
    settings, small = protocol.settings(), Preprocessing(resize=(32, 32), crop=None)
    train, test = train or target.train, test or target.test
    pictures = (target.pictures(n, seed) for seed, n in enumerate(target.n, 1))
    sets = {}
    for key, each in protocol.kind.open_sets(settings, *pictures, small, lambda source: source).items():
        own = np.array([test.ids.index(i.rpartition("/")[2]) for i in each.source.ids])
        noise = np.random.default_rng(3).normal(size=(len(own), 6)).astype(np.float32)
        sets[key] = Features(test.x[own] + noise, each.source.target, each.source.ids)
    return protocol.kind.run(FeatureInputs(settings, 0, train, test, sets, None, "cpu"))


usual_on_sets = functools.cache(run_on_sets)


@pytest.mark.parametrize("name", ON_SETS)
def test_every_outcome_on_sets_is_complete(name):
    outcomes, labels = usual_on_sets(name), target_of(ALL[name]).test.target
    assert "" in outcomes
    for outcome in outcomes.values():
        assert_complete(outcome, labels)


@pytest.mark.parametrize("name", ON_SETS)
def test_on_sets_the_same_input_gives_the_same_and_test_labels_decide_nothing(name):
    test = target_of(ALL[name]).test
    first = usual_on_sets(name)[""]
    assert_same(first, run_on_sets(name)[""])
    assert_test_decided_nothing(first, run_on_sets(name, test=with_other_targets(test))[""], test)


@pytest.mark.parametrize("name", ON_SETS)
def test_on_sets_features_that_are_not_finite_are_refused_with_their_ids(name):
    train = target_of(ALL[name]).train
    x = np.array(train.x)
    x[7, 2] = np.nan
    with pytest.raises(DataError, match="1-0007"):
        run_on_sets(name, dataclasses.replace(train, x=x))


def chance_of(outcome, train, test):
    """The best value of the leading metric that needs no features: guessing, a constant, positions in images."""
    metric = find_metric(outcome.headline)
    stated = [outcome.chance or {}, *(floor for name, floor in outcome.floors.items() if name != "pixels")]
    levels = [floor[metric.name] for floor in stated if metric.name in floor]
    guessed = guessing(train.target, test.target).values()
    levels += [floor[metric.name] / metric.scale for floor in guessed if metric.name in floor]
    assert levels, f"no floor of {metric.name} is stated that needs no features"
    return max(levels, key=lambda level: metric.direction * level)


OF_IMAGES = ("orientation",)
"""Kinds of targets that are computed from the images, so that those of other images cannot be given."""
SHUFFLED = [
    pytest.param(name, kind, id=f"{name}-{kind}")
    for name in ON_SAMPLES
    if ALL[name].kind.needs_labels
    for kind in kinds_of(ALL[name])[: 1 if name in TRAINED_ON_IMAGES else None]
    if kind not in OF_IMAGES
]


@pytest.mark.parametrize(("name", "kind"), SHUFFLED)
def test_targets_of_other_samples_are_predicted_at_chance(name, kind, usual_on_images, tmp_path):
    """The leading metric is nearer to chance than to its value with the samples' own targets."""
    target, protocol = target_of(ALL[name], kind), ALL[name].kind
    make = target.pictures if isinstance(protocol, OnImages) else target.features
    train, test = (with_other_targets(make(n, seed)) for seed, n in enumerate(target.n, 1))
    if isinstance(protocol, OnImages):
        train = train if protocol.part(ALL[name].settings()) is None else test
        found, own = run_on_images(name, tmp_path, kind, train=train, test=test), usual_on_images(name, kind)
    elif isinstance(protocol, OnSets):
        found, own = run_on_sets(name, train, test), usual_on_sets(name)
    else:
        found, own = {"": run(name, kind, train=train, test=test)}, {"": usual(name, kind)}
    for row, outcome in found.items():
        leading, chance = outcome.headline, chance_of(outcome, train, test)
        (value, _, _), (true, _, _) = outcome.metrics[leading], own[row].metrics[leading]
        direction = find_metric(leading).direction
        assert direction * (value - chance) < direction * (true - chance) / 2, (value, chance, true)
