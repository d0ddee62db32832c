"""Records: what is written is read again, damaged ones are refused, scores in half precision."""

import dataclasses
import json
import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from helpers.sample_record import IDS, LABELS, SCORES, identified
from hypothesis import given
from hypothesis import strategies as st

import sslbench
from sslbench.errors import ResultError
from sslbench.identity import comparability_key
from sslbench.metrics.answers import BestScores, places
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import SampleMeans
from sslbench.metrics.summary import one_measure
from sslbench.results import (
    SCHEMA,
    Costs,
    GroupValue,
    MetricValue,
    Outcome,
    Stage,
    canonical,
    mean_metric,
    percent_metrics,
    plain,
    records,
)
from sslbench.targets.classes import Classes


def put(result, folder, labels=LABELS):
    return records.write(result, SCORES, IDS, labels, folder).file


def edited(path, **changes):
    """The file with some of its keys changed."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


def test_what_is_written_is_read_back(result, tmp_path):
    path = put(result, tmp_path / "new" / "results")
    back = records.read(path)
    assert back == dataclasses.replace(result, scores_file=back.scores_file)
    assert path.relative_to(tmp_path / "new" / "results") == Path("knn") / f"my-net.torch-{result.id}.json"
    assert records.scores_path(back) == path.parent / back.scores_file
    scores = records.read_scores(path)
    assert scores.ids == IDS and scores.classes == ("cat", "dog")
    assert scores.scores.dtype == np.float32 and np.array_equal(scores.scores, SCORES)
    assert np.array_equal(scores.labels, LABELS)
    assert sorted(f.name for f in path.parent.iterdir()) == sorted([path.name, back.scores_file])


def test_writing_returns_the_record_that_reading_returns(result, tmp_path):
    written = records.write(result, SCORES, IDS, LABELS, tmp_path)
    assert records.read(written.file) == written and records.scores_path(written).is_file()
    assert records.read(written.file).file == written.file
    without = records.write_without_scores(result, tmp_path / "other")
    assert without.scores_file is None and records.read(without.file) == without


def test_draws_come_back_in_their_order(result, tmp_path):
    draws = tuple(SCORES + np.float32(i) for i in range(12))  # of the names draw2 and draw10
    path = records.write(result, draws[0], IDS, LABELS, tmp_path, draws=draws).file
    np.testing.assert_array_equal(records.read_scores(path).draws, draws)


def test_the_text_has_the_metrics_and_the_notes(result):
    lines = str(result).splitlines()
    assert lines[0] == result.title() and any("75.0" in line for line in lines) and lines[-1] == result.notes[0]


def test_multi_label_scores_keep_their_ignored_labels(result, tmp_path):
    labels = np.array([[1, 0], [0, -1], [1, 1], [0, 0]], dtype=np.int8)
    back = records.read_scores(put(result, tmp_path, labels))
    assert back.labels.dtype == np.int8 and np.array_equal(back.labels, labels)


def test_nan_of_other_programs_is_not_computable(result, tmp_path):
    path = records.write_without_scores(result, tmp_path).file
    content = json.loads(path.read_text())
    content["metrics"][result.headline] |= {"value": math.nan, "low": 91.24, "high": math.inf}
    path.write_text(json.dumps(content))
    metric = records.read(path).metrics[result.headline]
    assert (metric.value, metric.high, str(metric)) == (None, None, "n/a")


def test_the_file_is_plain_json_without_nan(result, tmp_path):
    odd = dataclasses.replace(
        result,
        train=float("nan"),
        selected={"k": np.int64(20), "scores": np.array([0.5, np.nan]), "grid": (1, 2)},
        per_class={"cat": np.float32(50.0), "dog": math.nan},
    )
    path = put(odd, tmp_path)

    def refuse(constant):
        raise AssertionError(constant)

    content = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    assert content["train"] is None and content["per_class"] == {"cat": 50.0, "dog": None}
    assert content["selected"] == {"k": 20, "scores": [0.5, None], "grid": [1, 2]}
    assert content["schema"] == SCHEMA and next(iter(content)) == "schema"
    assert "file" not in content


def test_the_same_measurement_again_replaces_the_record_of_that_name(result, tmp_path):
    first = put(result, tmp_path)
    assert put(dataclasses.replace(result, command="again"), tmp_path) == first
    assert records.read(first).command == "again"
    renamed = dataclasses.replace(result, weights=dataclasses.replace(result.weights, name="copy.torch"))
    second = put(renamed, tmp_path)
    assert [r.file for r in records.read_tree(tmp_path)] == [second, first]
    assert records.read(first).id == records.read(second).id
    for path in (first, second):
        assert np.array_equal(records.read_scores(path).scores, SCORES)
    assert len(list(second.parent.iterdir())) == 4


def test_another_measurement_of_the_same_weights_stands_beside_it(result, tmp_path):
    put(result, tmp_path)
    put(identified(dataclasses.replace(result, layer="res4")), tmp_path)
    assert len(records.read_tree(tmp_path)) == 2


@pytest.mark.parametrize("broken", ["scores", "json"])
def test_a_failed_write_leaves_the_old_record_whole(result, tmp_path, monkeypatch, broken):
    path = put(result, tmp_path)
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    replace = Path.replace

    def fail(self, target):
        if str(target).endswith(".npz" if broken == "scores" else ".json"):
            raise OSError(28, "No space left on device")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ResultError, match="No space left on device"):
        put(dataclasses.replace(result, command="again"), tmp_path)
    after = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    assert after[path.name] == before[path.name] and after.keys() == before.keys()


def test_whoever_sees_a_record_finds_its_scores(result, tmp_path, monkeypatch):
    order = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, target: (order.append(target.suffix), replace(self, target))[1])
    put(result, tmp_path)
    assert order == [".npz", ".json"]


def test_arrays_that_do_not_fit_are_refused_before_anything_is_written(result, tmp_path):
    with pytest.raises(ValueError, match="4 ids"):
        records.write(result, SCORES[:3], IDS, LABELS, tmp_path)
    with pytest.raises(ValueError, match="2 classes"):
        records.write(result, np.zeros((4, 3), np.float32), IDS, LABELS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_message(result, tmp_path):
    (tmp_path / "results").write_text("a file")
    with pytest.raises(ResultError, match="cannot write"):
        put(result, tmp_path / "results")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": SCHEMA + 1}, "newer sslbench"),
        ({"schema": "1"}, "is not a result record"),
        ({"schema": 0}, "is not a result record"),
        ({"preprocesing": {}}, "Did you mean 'preprocessing'"),
        ({"seed": "zero"}, "a whole number"),
        ({"file": "/etc/passwd"}, "is not a result record"),
        ({"headline": "top3"}, "headline 'top3' is not among the metrics"),
        ({"weights": {"name": "x"}}, "is missing"),
    ],
)
def test_a_record_that_is_wrong_is_refused_by_name(result, tmp_path, changes, message):
    path = edited(put(result, tmp_path), **changes)
    with pytest.raises(ResultError, match=message) as error:
        records.read(path)
    assert str(path) in str(error.value)
    with pytest.raises(ResultError, match=message):
        records.read_tree(tmp_path)


def test_a_record_with_an_unknown_kind_of_labels_is_refused(result, tmp_path):
    path = put(result, tmp_path)
    path = edited(path, data=json.loads(path.read_text())["data"] | {"labels": "singel"})
    with pytest.raises(ResultError, match=f"^{path}: data: labels: 'singel' is not possible") as error:
        records.read(path)
    assert error.value.remedy == "Did you mean 'single' or 'signal'?"


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b'{"schema": 1', b"\xff\xfe\x00", b"{}"])
def test_a_file_that_is_no_record_is_refused_by_name(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=r"other\.json"):
        records.read_tree(tmp_path)


def test_a_tree_is_read_in_a_stable_order_and_hidden_files_are_passed_over(result, tmp_path):
    folder = tmp_path / ".hidden" / "results"
    for layer in ("res5", "res2", "res4"):
        put(identified(dataclasses.replace(result, layer=layer)), folder)
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / "x.json").write_text("half")
    (folder / "._copy.json").write_text("resource fork")
    found = records.read_tree(folder)
    assert [r.file for r in found] == sorted(r.file for r in found) and len(found) == 3
    assert records.read_tree(found[0].file) == found[:1]


def test_a_tree_with_deep_folders_and_links_to_itself_is_read_once(result, tmp_path):
    put(result, tmp_path / "tree")
    (tmp_path / "tree" / "again").symlink_to(tmp_path / "tree", target_is_directory=True)
    deep = str(tmp_path / "tree")
    for _ in range(1100):  # more than Python lets functions call each other
        deep += "/d"
        os.mkdir(deep)  # noqa: PTH102 - a Path of so many parts is slow
    try:
        assert len(records.read_tree(tmp_path / "tree")) == 1
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "tree" / "d")], check=True)  # shutil cannot


def test_a_folder_that_is_not_there_is_one_message(tmp_path):
    with pytest.raises(ResultError, match="no folder of results"):
        records.read_tree(tmp_path / "resluts")
    assert records.read_tree(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 cut off"])
def test_damaged_scores_are_named(tmp_path, content):
    path = tmp_path / "x.scores.npz"
    path.write_bytes(content)
    with pytest.raises(ResultError, match=r"x\.scores\.npz"):
        records.read_scores(path)


def test_scores_never_run_pickled_code(tmp_path):
    path = tmp_path / "x.scores.npz"
    objects = np.array([{"a": 1}, None], dtype=object)
    np.savez(path, ids=objects, scores=np.zeros((2, 1), np.float32), labels=np.zeros(2), classes=np.array(["a"]))
    with pytest.raises(ResultError, match="allow_pickle=False"):
        records.read_scores(path)


def test_one_best_score_per_sample_is_too_few(tmp_path):
    path, best = tmp_path / "x.scores.npz", BestScores.of(LABELS, SCORES, None, kept=1)
    parts = {f"best_{name}": part for name, part in best.arrays().items()}
    np.savez(path, ids=np.array(IDS), labels=LABELS, classes=np.array(["a", "b"]), **parts)
    with pytest.raises(ResultError, match=r"x\.scores\.npz.*at least two"):
        records.read_scores(path)


def test_cut_scores_are_named(result, tmp_path):
    path = put(result, tmp_path).with_suffix(".scores.npz")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ResultError, match="damaged"):
        records.read_scores(path)


def test_a_metric_without_an_interval_is_no_outcome():
    with pytest.raises(ValueError, match="not enough values"):
        percent_metrics(Outcome({"top1": (0.9, 0.8)}, "top1", SCORES, {}), 4)


def test_fractions_become_percent():
    outcome = Outcome(
        metrics={"top1": (0.9164, 0.9, 0.93), "top5": (math.nan, math.nan, math.nan)},
        headline="top1",
        scores=SCORES,
        per_class={},
    )
    found = percent_metrics(outcome, 1017)
    assert found["top1"] == MetricValue(
        value=pytest.approx(91.64), low=pytest.approx(90.0), high=pytest.approx(93.0), n=1017
    )
    assert found["top5"] == MetricValue(value=None, n=1017)


JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(JSON_LIKE)
def test_any_value_has_one_text_and_is_json(value):
    text = canonical(value)
    assert json.loads(text, parse_constant=lambda _: pytest.fail("not JSON")) == plain(value)
    assert canonical(json.loads(text)) == text


@given(st.text())
def test_any_name_makes_a_file_name(name):
    made = records.slug(name)
    assert made and len(made) <= 60 and not made.startswith((".", "-")) and not set(made) & set('/\\:*?"<>| \n')


def test_versions_are_found_without_imports():
    found = records.versions()
    assert found["sslbench"] and found["torch"] and found["python"].count(".") == 2


LATER = ("per_class_metrics", "groups", "probabilities", "costs", "preset")


def test_a_record_without_the_later_fields_is_read(result, tmp_path):
    path = records.write(result, SCORES, IDS, LABELS, tmp_path).file
    content = json.loads(path.read_text(encoding="utf-8"))
    for name in LATER:
        del content[name]
    path.write_text(json.dumps(content), encoding="utf-8")
    found = records.read(path)
    assert found.groups == found.per_class_metrics == {} and found.costs is found.probabilities is None
    assert found.metrics == result.metrics and content["schema"] == SCHEMA


def test_groups_costs_and_classes_survive_writing_and_reading(result, tmp_path):
    full = dataclasses.replace(
        result,
        groups={"site": (GroupValue(name="south", metric=MetricValue(value=1.5, low=None, high=2.0, n=7)),)},
        costs=Costs(parameters=5, gflops=0.5, stages={"knn": Stage(seconds=0.1, ram_mib=30.0)}),
        per_class_metrics={"f1": {"cat": 50.0, "dog": None}},
        probabilities="softmax",
    )
    found = records.read(records.write(full, SCORES, IDS, LABELS, tmp_path).file)
    assert all(getattr(found, name) == getattr(full, name) for name in LATER)
    assert identified(full).id == result.id
    assert comparability_key(full) == comparability_key(result)


def test_losses_are_not_turned_into_percent():
    values = {"top1": (0.5, 0.4, 0.6), "nll": (1.5, 1.0, 2.0), "brier": (0.5, math.nan, 0.6), "rank": (9.0, 8.0, 10.0)}
    outcome = Outcome(values, "top1", np.zeros((2, 2), np.float32), {}, absolute=frozenset({"rank"}))
    found = percent_metrics(outcome, 10)
    assert found["top1"].value == 50 and found["nll"].value == 1.5 and found["rank"].value == 9
    assert found["brier"] == MetricValue(value=0.5, low=None, high=0.6, n=10)


N, CLASSES = 400, 120
NAMES = tuple(f"class {c:03d}" for c in range(CLASSES))
MANY_IDS = tuple(f"{i:04d}.png" for i in range(N))


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
    found = records.read_scores(records.write(many, scores, MANY_IDS, labels, tmp_path).file)
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
    written = records.write(many, draws[0], MANY_IDS, labels, tmp_path / "half", draws=draws)
    half = records.scores_path(written)
    monkeypatch.setattr(records, "_HALF_FROM", CLASSES + 1)
    single = records.scores_path(records.write(many, draws[0], MANY_IDS, labels, tmp_path / "single", draws=draws))
    assert half.stat().st_size < 0.6 * single.stat().st_size
    found = records.read_scores(half)
    assert not records.read_scores(single).half and len(found.draws) == 3
    for one, other in zip(draws, found.draws, strict=True):
        np.testing.assert_array_equal(one.argmax(axis=1), other.argmax(axis=1))


def test_scores_that_are_all_zero_are_kept(many, tmp_path):
    scores = np.zeros((N, CLASSES), np.float32)
    found = records.read_scores(records.write(many, scores, MANY_IDS, np.arange(N) % CLASSES, tmp_path).file)
    assert found.half and (found.scores == 0).all()


def test_reading_and_writing_again_changes_nothing(many, tmp_path):
    scores, labels = scores_like("shares")
    once = records.read_scores(records.write(many, scores, MANY_IDS, labels, tmp_path / "a").file)
    twice = records.read_scores(
        records.write(many, once.scores, MANY_IDS, labels, tmp_path / "b", places=once.places).file
    )
    np.testing.assert_array_equal(once.scores, twice.scores)
    np.testing.assert_array_equal(once.places, twice.places)


def test_scores_that_lie_elsewhere_already_are_linked(many, tmp_path):
    scores, labels = scores_like("logits")
    first = records.scores_path(records.write(many, scores, MANY_IDS, labels, tmp_path / "a"))
    second = records.scores_path(records.write(many, scores, MANY_IDS, labels, tmp_path / "b", same_as=first))
    assert first.samefile(second)
    records.write(many, -scores, MANY_IDS, labels, tmp_path / "b")  # a later record replaces the link, not the file
    np.testing.assert_array_equal(records.read_scores(first).scores.argmax(axis=1), scores.argmax(axis=1))
    gone = records.write(many, scores, MANY_IDS, labels, tmp_path / "c", same_as=tmp_path / "missing.npz")
    assert records.read_scores(gone.file).ids == MANY_IDS


def test_few_classes_and_counts_stay_in_single_precision(result, tmp_path):
    parts = dataclasses.replace(result.data.test, classes=NAMES[:2])
    small = dataclasses.replace(result, data=dataclasses.replace(result.data, test=parts))
    scores = scores_like("logits")[0][:, :2]
    found = records.read_scores(records.write(small, scores, MANY_IDS, np.arange(N) % 2, tmp_path / "a").file)
    assert not found.half and found.places is None
    np.testing.assert_array_equal(found.scores, scores)
    maps = dataclasses.replace(result.data, labels="map", test=dataclasses.replace(result.data.test, classes=NAMES))
    counts = np.arange(2 * 3 * CLASSES, dtype=np.float32).reshape(2, -1) * 12345
    labels = np.zeros((2, 0), np.int8)
    found = records.read_scores(
        records.write(dataclasses.replace(result, data=maps), counts, MANY_IDS[:2], labels, tmp_path / "b").file
    )
    assert not found.half
    np.testing.assert_array_equal(found.scores, counts)


def test_r2_of_older_records_is_read_in_the_unit_of_today(tmp_path):
    values, kept = np.arange(6.0)[:, None], []
    pair = (np.eye(6, dtype=np.float32), values + 0.5), (np.eye(6, dtype=np.float32) * 2, values + 0.5)
    (new,) = sslbench.evaluate(None, *pair, protocols="linear", out=tmp_path)
    content = json.loads(new.file.read_text())
    for key in ("value", "low", "high"):
        kept.append(content["metrics"]["r2"][key])
        content["metrics"]["r2"][key] *= 100
    content["train"] *= 100
    content["per_class"] = {name: 100 * value for name, value in content["per_class"].items()}
    content["floors"]["chance"]["r2"] *= 100
    content |= {"schema": 1, "checksum": None}
    new.file.write_text(json.dumps(content))
    old = records.read(new.file)
    assert [old.metrics["r2"].value, old.metrics["r2"].low, old.metrics["r2"].high] == pytest.approx(kept)
    assert old.metrics["mae"] == new.metrics["mae"] and old.metrics["r2"].n == 6
    assert old.train == pytest.approx(new.train) and old.per_class == pytest.approx(new.per_class)
    assert old.floors["chance"]["r2"] == pytest.approx(new.floors["chance"]["r2"])


def test_the_interval_of_a_mean_ends_where_the_metric_does():
    each = [MetricValue(value=value, low=value - 5.0, high=value + 5.0) for value in (-40.0, 40.0)]
    mean = mean_metric("ari", each)  # from -1 to 1, in percent
    assert (mean.low, mean.value, mean.high) == (-100, 0, 100)
    assert mean_metric("ari", each[:1] * 2).low == -45


@pytest.mark.parametrize("number", [1, 8, 9, 64, 73])
def test_outcomes_of_many_means_come_back(result, tmp_path, number):
    outcomes = np.random.default_rng(number).random((len(IDS), number)) < 0.5
    means = SampleMeans(("my_rate",), np.full((1, number), 1 / number), outcomes)
    found = records.read_scores(records.write(result, SCORES, IDS, LABELS, tmp_path, means=means).file).means
    assert found.metrics == means.metrics
    np.testing.assert_array_equal(found.weights, means.weights)
    np.testing.assert_array_equal(found.outcomes, outcomes)
