"""Scores of more than 100 classes lie in half precision; predicted classes and ranks are those of the scores."""

import dataclasses

import numpy as np
import pytest

from sslbench.metrics.classification import places
from sslbench.metrics.intervals import Units
from sslbench.metrics.summary import one_measure
from sslbench.results import records
from sslbench.targets.classes import Classes

N, CLASSES = 400, 120
NAMES = tuple(f"class {c:03d}" for c in range(CLASSES))
IDS = tuple(f"{i:04d}.png" for i in range(N))


@pytest.fixture
def many(result):
    """A record with many classes."""
    parts = {name: dataclasses.replace(part, classes=NAMES) for name, part in (("test", result.data.test),)}
    return dataclasses.replace(result, data=dataclasses.replace(result.data, **parts))


def scores_like(kind, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, CLASSES, N)
    scores = generator.normal(size=(N, CLASSES)) + 2 * np.eye(CLASSES)[labels]
    if kind == "shares":  # of kNN: from 1 down to where half precision has no digits left
        scores = np.exp(scores * 4)
        scores /= scores.sum(axis=1, keepdims=True)
    if kind == "close":  # the first classes of most samples are equal in half precision
        scores = 1000 + scores / 100
    return (scores * 1e6 if kind == "huge" else scores).astype(np.float32), labels


@pytest.mark.parametrize("kind", ["logits", "shares", "huge", "close"])
def test_predictions_and_ranks_are_exact_and_values_have_eleven_digits(many, tmp_path, kind):
    scores, labels = scores_like(kind)
    found = records.read_scores(records.write(many, scores, IDS, labels, tmp_path).file)
    assert found.half and found.scores.dtype == np.float32
    np.testing.assert_array_equal(found.scores.argmax(axis=1), scores.argmax(axis=1))
    np.testing.assert_array_equal(found.places[0], places(labels, scores))
    assert Classes.headline(labels, found.scores) == Classes.headline(labels, scores)
    np.testing.assert_allclose(found.scores, scores, rtol=2**-10, atol=1e-11)
    if kind != "close":
        for metric in ("mAP", "macro_auroc"):
            both = [one_measure(metric, Classes, labels, each, Units.of(N, None)) for each in (scores, found.scores)]
            column = both[0].names.index(metric)
            one, other = (each.statistic(np.ones((1, N)))[0, column] for each in both)
            assert other == pytest.approx(one, abs=1e-3)


def test_the_file_has_half_the_size_and_all_draws(many, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_COMPRESSED_UP_TO", 0)
    draws = tuple(scores_like("logits", seed)[0] for seed in range(3))
    labels = scores_like("logits")[1]
    written = records.write(many, draws[0], IDS, labels, tmp_path / "half", draws=draws)
    half = records.scores_path(written)
    monkeypatch.setattr(records, "_HALF_FROM", CLASSES + 1)
    single = records.scores_path(records.write(many, draws[0], IDS, labels, tmp_path / "single", draws=draws))
    assert half.stat().st_size < 0.6 * single.stat().st_size
    found = records.read_scores(half)
    assert not records.read_scores(single).half and len(found.draws) == 3
    for one, other in zip(draws, found.draws, strict=True):
        np.testing.assert_array_equal(one.argmax(axis=1), other.argmax(axis=1))


def test_scores_that_are_all_zero_are_kept(many, tmp_path):
    scores = np.zeros((N, CLASSES), np.float32)
    found = records.read_scores(records.write(many, scores, IDS, np.arange(N) % CLASSES, tmp_path).file)
    assert found.half and (found.scores == 0).all()


def test_reading_and_writing_again_changes_nothing(many, tmp_path):
    scores, labels = scores_like("shares")
    once = records.read_scores(records.write(many, scores, IDS, labels, tmp_path / "a").file)
    twice = records.read_scores(records.write(many, once.scores, IDS, labels, tmp_path / "b", places=once.places).file)
    np.testing.assert_array_equal(once.scores, twice.scores)
    np.testing.assert_array_equal(once.places, twice.places)


def test_scores_that_lie_elsewhere_already_are_linked(many, tmp_path):
    scores, labels = scores_like("logits")
    first = records.scores_path(records.write(many, scores, IDS, labels, tmp_path / "a"))
    second = records.scores_path(records.write(many, scores, IDS, labels, tmp_path / "b", same_as=first))
    assert first.samefile(second)
    records.write(many, -scores, IDS, labels, tmp_path / "b")  # a later record replaces the link, not the file
    np.testing.assert_array_equal(records.read_scores(first).scores.argmax(axis=1), scores.argmax(axis=1))
    gone = records.write(many, scores, IDS, labels, tmp_path / "c", same_as=tmp_path / "missing.npz")
    assert records.read_scores(gone.file).ids == IDS


def test_few_classes_and_counts_stay_in_single_precision(result, tmp_path):
    parts = dataclasses.replace(result.data.test, classes=NAMES[:2])
    small = dataclasses.replace(result, data=dataclasses.replace(result.data, test=parts))
    scores = scores_like("logits")[0][:, :2]
    found = records.read_scores(records.write(small, scores, IDS, np.arange(N) % 2, tmp_path / "a").file)
    assert not found.half and found.places is None
    np.testing.assert_array_equal(found.scores, scores)
    maps = dataclasses.replace(result.data, labels="map", test=dataclasses.replace(result.data.test, classes=NAMES))
    counts = np.arange(2 * 3 * CLASSES, dtype=np.float32).reshape(2, -1) * 12345
    labels = np.zeros((2, 0), np.int8)
    found = records.read_scores(
        records.write(dataclasses.replace(result, data=maps), counts, IDS[:2], labels, tmp_path / "b").file
    )
    assert not found.half
    np.testing.assert_array_equal(found.scores, counts)
