"""`compare`: is the difference between two results real, and may they be compared at all?"""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from make_results import IDS, LABELS, change, make, write

import sslbench
from sslbench import records
from sslbench.cli.main import cli
from sslbench.errors import ResultError
from sslbench.leaderboard import table
from sslbench.leaderboard.compare import compare, pairs, with_holm
from sslbench.leaderboard.differences import differing
from sslbench.metrics.intervals import mcnemar
from sslbench.results import BenchmarkUsed, Group, Metric

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
    assert 0 < found.low < found.difference < found.high and found.p_mcnemar == mcnemar(RIGHT, FAR)
    assert compare(far, best).verdict == "B better"
    assert (
        compare(best, near).verdict == "tied" and compare(best, near).p_mcnemar == 1.0 == compare(best, best).p_mcnemar
    )
    assert (compare(best, best).low, compare(best, best).high, compare(best, best).verdict) == (0, 0, "tied")


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


def test_two_versions_of_a_benchmark_are_refused_and_other_groups_too():
    used = [BenchmarkUsed(name="knn/x", version=v, sha256="") for v in (1, 2)]
    assert differing(make("a", benchmark=used[0]), make("b", benchmark=used[1])) == [
        ("benchmark", "knn/x v1", "knn/x v2")
    ]
    assert differing(make("a", benchmark=used[0]), make("b")) == []
    groups = [{"site": (Group(name=n, metric=Metric(value=1.0, n=9)),)} for n in ("x", "y")]
    one, other = (make("ab"[i], groups=groups[i]) for i in (0, 1))
    assert differing(one, other) == []
    assert differing(one, other, "worst_group(site).top1") == [("groups", "x 9", "y 9")]


def test_scores_must_be_there_and_of_the_same_samples(three, tmp_path):
    with pytest.raises(ResultError, match="no per-sample scores"):
        compare(three[0], make("a"))
    other = write(make("x"), RIGHT, tmp_path, ids=tuple(f"x{i}" for i in IDS))
    with pytest.raises(ResultError, match="not of the same test samples"):
        compare(three[0], other)


def test_pairs_of_folders_have_equal_layers_and_seeds_and_no_floors():
    one = [make("a", layer=layer, seed=seed) for layer in ("res4", "res5") for seed in (0, 1)]
    other = [make("b", layer="res5", seed=1), make("resnet50 untrained", weights__untrained=True, layer="res4")]
    assert pairs(one, other) == [(one[3], other[0])]
    assert pairs([make("a", layer="x")], [make("b", layer="y")]) != [], "one each: nothing to confuse"
    assert pairs(one, [make("b", layer="other")]) == []


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
    write(make("best", protocol="svm"), RIGHT, tmp_path / "best")
    write(make("far", protocol="svm"), FAR, tmp_path / "far")
    write(make("far", protocol="linear"), FAR, tmp_path / "far")
    output = run(tmp_path / "best", tmp_path / "far").output
    assert output.count("A better") == 2 and "2 comparisons" in output and "Holm p" in output
    done = run(tmp_path / "best", tmp_path / "best")
    assert isinstance(done.exception, ResultError) and "the same results" in str(done.exception)


def test_the_command_says_that_a_mean_over_draws_is_not_what_is_compared(three):
    changed = change(three[0], metrics={"top1": Metric(value=70.0)})
    scores = records.read_scores(three[0].file)
    again = records.read(records.write(changed, scores.scores, scores.ids, scores.labels, three[0].file.parent.parent))
    assert "the record of A has 70.00, a mean over draws" in run(again.file, three[2].file).output


def test_folders_without_anything_comparable_name_the_nearest(tmp_path):
    write(make("a"), RIGHT, tmp_path / "a")
    write(make("b", protocol__version=2), RIGHT, tmp_path / "b")
    error = str(run(tmp_path / "a", tmp_path / "b").exception)
    assert "protocol version: 1 / 2" in error


def test_from_python(three):
    assert sslbench.compare(three[0].file, three[2]).verdict == "A better"
    assert len(LABELS) == sslbench.compare(three[0], three[2]).n
