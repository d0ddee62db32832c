"""`compare`: is the difference between two results real, and may they be compared at all?"""

import dataclasses
import json

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.record_trees import IDS, LABELS, PREPROCESSING, change, make, write

import sslbench
from sslbench.cli.main import cli
from sslbench.errors import ResultError, UsageError
from sslbench.evaluation.beside import write_predicted
from sslbench.leaderboard import table
from sslbench.leaderboard.compare import compare, differing, left_out, pairs, with_holm
from sslbench.leaderboard.selective import selective
from sslbench.metrics.catalog import find
from sslbench.metrics.differences import sign_flip
from sslbench.metrics.intervals import Units
from sslbench.metrics.measure import SampleMeans
from sslbench.metrics.selective import ConformalSets
from sslbench.results import BenchmarkUsed, GroupValue, MetricValue, records
from sslbench.show.predictions import prediction, quality
from sslbench.targets.classes import Classes

RIGHT = np.arange(200) % 5 > 0
FAR = RIGHT & (np.arange(200) % 7 > 0)


@pytest.fixture
def three(tmp_path):
    near = RIGHT.copy()
    near[[1, 2, 3]], near[[5, 10]] = False, True
    return [write(make(n), r, tmp_path / n) for n, r in (("best", RIGHT), ("near", near), ("far", FAR))]


def test_a_real_difference_and_a_tie_are_told_apart(three):
    best, near, far = three
    found = compare(best, far)
    assert found.metric == "top1" and found.n == 200 and found.verdict == "A better"
    assert (
        found.difference == pytest.approx(found.value_a - found.value_b) == pytest.approx(100 * (RIGHT & ~FAR).mean())
    )
    assert 0 < found.low < found.difference < found.high and found.p_mcnemar == sign_flip(RIGHT * 1.0 - FAR)
    assert compare(far, best).verdict == "B better"
    assert (
        compare(best, near).verdict == "tied" and compare(best, near).p_mcnemar == 1.0 == compare(best, best).p_mcnemar
    )
    assert (compare(best, best).low, compare(best, best).high, compare(best, best).verdict) == (0, 0, "tied")


def test_the_command_names_differences_of_the_preprocessing(tmp_path):
    one = write(make("one", preprocessing=PREPROCESSING), RIGHT, tmp_path / "one")
    small = write(
        make("small", preprocessing=PREPROCESSING | {"crop": [192, 192], "origin": "flag"}), FAR, tmp_path / "b"
    )
    line = "preprocessed differently (A / B): crop [224, 224] / [192, 192]."
    assert line in CliRunner().invoke(cli, ["compare", str(one.file), str(small.file)]).output
    rounded = write(make("int8", preprocessing=PREPROCESSING, precision="int8"), RIGHT, tmp_path / "c")
    line = "The features were computed differently (A / B): fp32 / int8."
    assert line in CliRunner().invoke(cli, ["compare", str(one.file), str(rounded.file)]).output
    assert "preprocessed" not in CliRunner().invoke(cli, ["compare", str(one.file), str(one.file)]).output


def test_leaderboards_say_the_same_about_ties(three):
    cells = {row.label: row.cells[0].tied for row in table(three).rows}
    assert cells == {"best": True, **{one.weights.name: compare(three[0], one).verdict == "tied" for one in three[1:]}}


def test_by_other_metrics_and_where_less_is_better(three):
    best, _, far = (change(one, probabilities="scores") for one in three)
    found = compare(best, far, metric="macro_auroc", resamples=200)
    assert found.verdict == "A better" and found.p_mcnemar is None
    assert compare(best, far, metric="brier", resamples=200).verdict == "A better"
    assert compare(best, far, metric="brier", resamples=200).difference < 0
    with pytest.raises(ResultError, match="Did you mean 'top1'"):
        compare(best, far, metric="top11")


OTHER = {
    "protocol": {"protocol": "svm"},
    "protocol version": {"protocol__version": 2},
    "setting k": {"protocol__settings": {"k": [200], "temperature": 0.07}},
    "train data": {"data__train__fingerprint": "00" * 16},
    "test data": {"data__test__fingerprint": "00" * 16},
    "train samples used": {"data__train__n_used": 799},
    "test samples used": {"data__test__n_used": 199},
    "metric": {"headline": "balanced_accuracy"},
}


@pytest.mark.parametrize("key", OTHER)
def test_what_was_not_measured_in_the_same_way_is_refused_with_both_values(key, tmp_path):
    one, other = make("a"), make("b", **OTHER[key])
    assert [found[0] for found in differing(one, other)] == [key]
    with pytest.raises(ResultError, match=f"{key}: .* / "):
        compare(one, other)
    assert pairs([one], [other]) == []


def test_label_noise_is_named_beside_the_train_data():
    noisy = make("b", data__train__fingerprint="00" * 16, data__label_noise=0.4)
    assert differing(make("a"), noisy) == [
        ("train data", "photos/ (train) 77bb77bb", "photos/ (train), 40 % label noise 00000000")
    ]


def test_two_versions_of_a_benchmark_are_refused_and_other_groups_too():
    used = [BenchmarkUsed(name="knn/x", version=v, sha256="") for v in (1, 2)]
    assert differing(make("a", benchmark=used[0]), make("b", benchmark=used[1])) == [
        ("benchmark", "knn/x v1", "knn/x v2")
    ]
    assert differing(make("a", benchmark=used[0]), make("b")) == []
    groups = [{"site": (GroupValue(name=n, metric=MetricValue(value=1.0, n=9)),)} for n in ("x", "y")]
    one, other = (make("ab"[i], groups=groups[i]) for i in (0, 1))
    assert differing(one, other) == []
    assert differing(one, other, "worst_group(site).top1") == [("groups", "x 9", "y 9")]


def test_the_number_of_samples_is_that_of_the_metric(three):
    best, far = (change(one, metrics={"top1": dataclasses.replace(one.metrics["top1"], n=190)}) for one in three[::2])
    assert compare(best, far).n == 190, "of 200, 10 without a counted pixel, say"


def test_scores_must_be_there_and_of_the_same_samples(three, tmp_path):
    with pytest.raises(ResultError, match="no stored per-sample scores"):
        compare(three[0], make("a"))
    other = write(make("x"), RIGHT, tmp_path, ids=tuple(f"x{i}" for i in IDS))
    with pytest.raises(ResultError, match="different test samples"):
        compare(three[0], other)


def test_pairs_of_folders_have_equal_layers_and_seeds_and_no_floors():
    one = [make("a", layer=layer, seed=seed) for layer in ("res4", "res5") for seed in (0, 1)]
    other = [make("b", layer="res5", seed=1), make("resnet50 untrained", weights__untrained=True, layer="res4")]
    assert pairs(one, other) == [(one[3], other[0])]
    assert pairs([make("a", layer="x")], [make("b", layer="y")]) != [], "one each: nothing to confuse"
    assert pairs(one, [make("b", layer="other")]) == []
    three = [make(name) for name in "abc"]
    assert len(pairs(three, three)) == 3, "a folder with itself: each pair once"


def test_a_record_that_its_scores_contradict_is_refused_and_named_on_leaderboards(three):
    best, near, far = three
    best.file.write_text(best.file.read_text().replace('"value": 80.0', '"value": 88.0'))
    changed = records.read(best.file)
    assert changed.metrics["top1"].value == 88
    with pytest.raises(ResultError, match=r"the record says top1 88.00, what is stored beside it 80.00"):
        compare(near, changed)
    board = table([changed, near, far])
    assert [row.cells[0].tied for row in board.rows] == [True, None, None]
    (note,) = [note for note in board.notes if "the record says" in note]
    assert str(best.file) in note
    assert not table([near, far]).notes
    assert any("the record says" in note for note in table([changed]).notes) and not table([near]).notes


def test_a_users_own_metric_is_compared_in_whatever_unit_its_record_has_it(tmp_path):
    pair = []
    for name, right in (("a", RIGHT), ("b", FAR)):
        own = change(make(name), metrics={"my_rate": MetricValue(value=3.5, n=200)}, headline="my_rate")
        means = SampleMeans(("my_rate",), np.ones((1, 1)), right[:, None])
        scores = np.zeros((200, 3), np.float32)
        pair.append(records.read(records.write(own, scores, IDS, LABELS, tmp_path / name, means=means).file))
    found = compare(*pair)
    assert found.verdict == "different" and found.difference == pytest.approx(RIGHT.mean() - FAR.mean())


def test_three_results_are_referred_to_the_leaderboard(three):
    found = CliRunner().invoke(cli, ["compare", *(str(one.file) for one in three)])
    assert found.exit_code == 2 or isinstance(found.exception, UsageError)
    assert "sslbench leaderboard" in f"{found.output}{found.exception}"


def test_several_comparisons_are_corrected(three):
    found = with_holm([compare(three[0], three[2]), compare(three[0], three[1])])
    assert [one.p_holm for one in found] == [pytest.approx(2 * found[0].p_mcnemar), 1.0]
    assert with_holm(found[:1])[0].p_holm == found[0].p_holm


def run(*words):
    done = CliRunner().invoke(cli, ["compare", *map(str, words)])
    return done


def test_the_command_compares_records_and_folders(three, tmp_path):
    best, _, far = three
    assert "A better" in run(best.file, far.file).output
    (found,) = json.loads(run(best.file, far.file, "--json").output)
    assert found["verdict"] == "A better" and found["a"]["weights"] == "best" and found["p_holm"] is None
    assert "left out" not in run(tmp_path / "best", tmp_path / "far").output
    write(make("best", protocol="svm"), RIGHT, tmp_path / "best")
    write(make("far", protocol="svm"), FAR, tmp_path / "far")
    write(make("far", protocol="linear"), FAR, tmp_path / "far")
    done = run(tmp_path / "best", tmp_path / "far")
    (line,) = [line for line in done.stderr.splitlines() if "left out" in line]
    assert "1 result without" in line and "far (linear); the nearest two differ in (A / B) protocol: knn / " in line
    done_json = run(tmp_path / "far", tmp_path / "near", "--json")
    assert len(json.loads(done_json.stdout)) == 1 and "2 results without" in done_json.stderr
    output = done.output
    assert output.count("A better") == 2 and "2 comparisons" in output and "Holm p" in output
    done = run(tmp_path / "best", tmp_path / "best")
    assert isinstance(done.exception, ResultError) and "the same results" in str(done.exception)


def test_the_reason_of_what_is_left_out_is_not_looked_for_in_all_pairs_of_two_large_folders(monkeypatch):
    looked_at = []

    def counted(*given):
        looked_at.append(given)
        return differing(*given)

    monkeypatch.setattr("sslbench.leaderboard.compare.differing", counted)
    sides = [[make(name, layer=f"{name}{i}", seed=seed) for i in range(20)] for seed, name in enumerate("ab")]
    assert left_out(*sides, []).startswith("40 results")
    assert len(looked_at) <= 3 * 20


def test_a_seed_and_a_layer_without_a_counterpart_are_told(tmp_path):
    one = [make("a", layer=layer, seed=seed) for layer, seed in (("res4", 0), ("res5", 0), ("res5", 1))]
    other = [make("b", layer="res5", seed=0)]
    matched = pairs(one, other)
    assert [(a.layer, a.seed) for a, _ in matched] == [("res5", 0)]
    line = "2 results without a comparable counterpart left out: a (knn); the nearest two differ in (A / B) "
    assert left_out(one, other, matched) == f"{line}layer: res4 / res5"
    assert left_out(one[2:], [*one[2:], *other], []).endswith("seed: 1 / 0")
    assert left_out(one[1:2], other, matched) == ""


def drawn(name, folder, rights, **changes):
    """A record of several draws; (R, 200) where each is right."""
    scores = [np.eye(3, dtype=np.float32)[np.where(right, LABELS, (LABELS + 1) % 3)] for right in rights]
    settings = {"draws": len(rights), **changes.pop("settings", {})}
    result = make(name, protocol="low-shot", protocol__settings=settings, **changes)
    result = change(result, metrics={"top1": MetricValue(value=100.0 * float(np.mean(rights)), n=200)})
    places = np.where(np.asarray(rights), 0, 2).astype(np.uint16)
    kept = changes.pop("kept", True)
    kept_draws = scores if kept else ()
    return records.read(records.write(result, scores[0], IDS, LABELS, folder, draws=kept_draws, places=places).file)


def test_means_over_draws_are_compared_by_all_draws(tmp_path):
    """A is better on the first draw only; what is compared is the value of the record."""
    better, worse = np.arange(200) < 180, np.arange(200) < 120
    a = drawn("a", tmp_path, [better, worse, worse])
    b = drawn("b", tmp_path, [worse, better, worse])
    found = compare(a, b)
    assert (found.value_a, found.value_b) == pytest.approx((a.metrics["top1"].value, b.metrics["top1"].value))
    assert found.verdict == "tied" and found.p_mcnemar is None
    assert compare(a, b, metric="balanced_accuracy", resamples=50).verdict == "tied"
    c = drawn("c", tmp_path, [worse & (np.arange(200) > 30)] * 3)
    assert compare(drawn("d", tmp_path, [better] * 3), c).verdict == "A better"
    assert "Means over draws" in run(a.file, b.file).output
    cells = {row.label: row.cells[0].tied for row in table([a, b, c]).rows}
    assert cells == {"a": True, "b": True, "c": True}, "A's draws differ by 30 points"
    cells = {row.label: row.cells[0].tied for row in table([drawn("d", tmp_path, [better] * 3), c]).rows}
    assert cells == {"d": True, "c": False}


def test_draws_whose_scores_were_not_kept_are_refused_and_not_compared_by_the_first(tmp_path):
    right = RIGHT[None].repeat(3, axis=0)
    old = drawn("old", tmp_path, right)
    scores = records.read_scores(old.file)
    old = records.read(records.write(old, scores.scores, scores.ids, scores.labels, tmp_path).file)
    with pytest.raises(ResultError, match="is a mean over 3 draws, but only the scores of the first are stored"):
        compare(old, drawn("new", tmp_path, right))
    assert [row.cells[0].tied for row in table([old, drawn("new", tmp_path, right)]).rows] == [True, None]


def test_of_draws_that_are_too_large_the_places_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "_DRAWS_UP_TO", 1000)
    rights = np.random.default_rng(0).random((3, 200)) < 0.6
    a, b = drawn("a", tmp_path, rights), drawn("b", tmp_path, rights & (np.arange(200) > 60))
    assert records.read_scores(a.file).draws == () and records.read_scores(a.file).places.shape == (3, 200)
    assert compare(a, b).verdict == "A better"
    with pytest.raises(ResultError, match="too large to store"):
        compare(
            change(a, metrics={"top1": MetricValue(value=1.0), "macro_f1": MetricValue(value=1.0)}),
            b,
            metric="macro_f1",
        )


def test_several_seeds_are_tested_by_all_of_them(tmp_path):
    """On seed 0 alone the one is far better; over all seeds the other is, by the mean and by the test."""
    high, low = np.arange(200) < 190, np.arange(200) < 100
    rights = {"a": [high, low, low, low], "b": [low, high, high, high]}
    found = [
        write(make(name, seed=seed), right, tmp_path / name / str(seed))
        for name, each in rights.items()
        for seed, right in enumerate(each)
    ]
    rows = {row.label: row for row in table(found).rows}
    assert rows["b"].cells[0].best and rows["a"].cells[0].metrics["top1"].value == pytest.approx(61.25)
    assert rows["a"].cells[0].tied, "four seeds that differ by 45 points say nothing"
    steady = [write(make("c", seed=seed), low, tmp_path / "c" / str(seed)) for seed in range(4)]
    cells = {row.label: row.cells[0].tied for row in table([f for f in found if f.weights.name == "a"] + steady).rows}
    assert cells == {"a": True, "c": True}
    sure = [write(make("d", seed=seed), high, tmp_path / "d" / str(seed)) for seed in range(4)]
    cells = {row.label: row.cells[0].tied for row in table(sure + steady).rows}
    assert cells == {"d": True, "c": False}


def test_groups_are_kept_together_and_must_be_the_same(tmp_path):
    """Six of ten groups are lost; as 200 single samples that would be a clear difference."""
    groups = np.repeat(np.arange(10), 20)
    lost = ~np.isin(groups, [0, 1, 2]) | (np.arange(200) % 20 == 0)

    def grouped(name, right, of):
        scores = np.eye(3, dtype=np.float32)[np.where(right, LABELS, (LABELS + 1) % 3)]
        return records.read(
            records.write(make(name, 100 * right.mean()), scores, IDS, LABELS, tmp_path / name, groups=of).file
        )

    a, b = grouped("a", np.ones(200, bool), groups), grouped("b", lost, groups)
    np.testing.assert_array_equal(records.read_scores(a.file).groups, groups)
    found = compare(a, b)
    assert found.verdict == "tied" and found.groups == 10 and found.p_mcnemar == 0.25
    assert "form 10 groups" in run(a.file, b.file).output
    alone = [grouped(f"{name} alone", right, None) for name, right in (("a", np.ones(200, bool)), ("b", lost))]
    assert compare(*alone).verdict == "A better"
    with pytest.raises(ResultError, match="different test samples or groups"):
        compare(a, alone[1])


def test_folders_without_anything_comparable_name_the_nearest(tmp_path):
    write(make("a"), RIGHT, tmp_path / "a")
    write(make("b", protocol__version=2), RIGHT, tmp_path / "b")
    error = str(run(tmp_path / "a", tmp_path / "b").exception)
    assert "protocol version: 1 / 2" in error


def test_from_python(three):
    assert sslbench.compare(three[0].file, three[2]).verdict == "A better"
    assert len(LABELS) == sslbench.compare(three[0], three[2]).n


def test_scores_in_half_precision_are_compared_and_named(tmp_path):
    names, generator = tuple(f"{c:03d}" for c in range(120)), np.random.default_rng(0)
    labels = np.arange(200) % 120
    found = []
    for name, skill in (("good", 3.0), ("bad", 1.0)):
        scores = (generator.normal(size=(200, 120)) + skill * np.eye(120)[labels]).astype(np.float32)
        top1 = 100 * float((scores.argmax(axis=1) == labels).mean())
        result = make(name, top1, data__test__classes=names, data__train__classes=names)
        result = change(result, metrics={**result.metrics, "mAP": MetricValue(value=50.0)})
        found.append(records.read(records.write(result, scores, IDS, labels, tmp_path / name).file))
        by_top1 = compare(found[-1], found[-1])
        assert by_top1.value_a == pytest.approx(top1) and not by_top1.half
    assert compare(*found).verdict == "A better"
    by_map = compare(*found, metric="mAP", resamples=20)
    assert by_map.half and by_map.value_a > by_map.value_b
    paths = [str(result.file) for result in found]
    assert "half precision" in CliRunner().invoke(cli, ["compare", *paths, "--metric", "mAP"]).output
    assert "half precision" not in CliRunner().invoke(cli, ["compare", *paths]).output


def class_values(labels, scores):
    """All metrics of logits, by name."""
    measures = Classes.measures(labels, scores, Units.of(len(labels), None), "softmax")
    once = np.ones((1, len(labels)))
    return {n: v for each in measures for n, v in zip(each.names, each.statistic(once)[0].tolist(), strict=True)}


def test_of_too_many_scores_the_best_are_stored_and_all_that_reads_them_agrees(tmp_path, monkeypatch):
    names, generator = tuple(f"{c:03d}" for c in range(300)), np.random.default_rng(0)
    labels, found = np.arange(200) % 300, {True: [], False: []}
    for name, skill in (("good", 3.0), ("bad", 1.0)):
        scores = (generator.normal(size=(200, 300)) + skill * np.eye(300)[labels]).astype(np.float32)
        values = class_values(labels, scores)
        metrics = {name: MetricValue(value=find(name).recorded(value)) for name, value in values.items()}
        result = make(name, protocol="linear", data__test__classes=names, data__train__classes=names)
        result = change(result, metrics=metrics, probabilities="softmax")
        for best, most in ((False, 60_000), (True, 59_999)):
            monkeypatch.setattr(records, "_HALF_FROM", 1000)
            monkeypatch.setattr(records, "WHOLE_UP_TO", most)
            written = records.write(result, scores, IDS, labels, tmp_path / f"{name}{best}")
            again = records.read_scores(written.file)
            records.write(result, again.scores, again.ids, labels, tmp_path / f"{name}{best}")
            write_predicted(written, records.read_scores(written.file))
            found[best].append(records.read(written.file))
    for metric in ("top1", "macro_f1", "nll"):
        whole, best = (compare(*found[each], metric=metric, resamples=20) for each in (False, True))
        assert (best.difference, best.low, best.high) == (whole.difference, whole.low, whole.high)
    predicted = [found[each][0].file.with_suffix(records.PREDICTIONS_CSV).read_text() for each in (False, True)]
    assert predicted[0] == predicted[1] and predicted[0].count("\n") == 201
    whole, best = (selective(found[each][0], resamples=20) for each in (False, True))
    assert best.metrics == whole.metrics
    with pytest.raises(ResultError, match="'mAP' ranks all samples by each class"):
        compare(*found[True], metric="mAP")
    with pytest.raises(ResultError, match="256 best ones of each sample are stored, and sets need"):
        selective(found[True][0], found[True][1], rules=[ConformalSets("lac", 0.1)])
    of_whole, of_best = (records.read_scores(found[each][0].file).scores for each in (False, True))
    truth = Classes(names, labels)
    assert np.array_equal(quality(Classes, labels, of_whole), quality(Classes, labels, of_best))
    assert all(prediction(result, truth, of_whole, i) == prediction(result, truth, of_best, i) for i in range(20))
