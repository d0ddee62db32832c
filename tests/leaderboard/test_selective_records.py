"""`selective`: the errors that a classifier knows of, and sets of classes calibrated on another record."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from helpers.record_trees import CLASSES, LABELS, change, make

from sslbench.cli.main import cli
from sslbench.leaderboard.selective import selective
from sslbench.metrics.answers import softmax
from sslbench.metrics.robustness import response_rate_statistic
from sslbench.metrics.selective import ConformalSets
from sslbench.results import records


def write(result, folder, seed=0, start=0, **stored):
    """A record of a classifier that is right for most of 200 samples."""
    logits = 2 * np.eye(3)[LABELS] + np.random.default_rng(seed).normal(size=(200, 3))
    ids = [f"{start + i}.png" for i in range(200)]
    if start:
        test = {"data__test__fingerprint": f"{start:032x}", "data__test__name": "more/"}
        result = change(result, **test)
    written = records.write(result, logits.astype(np.float32), ids, LABELS, folder, **stored)
    return records.read(written.file)


@pytest.fixture
def pair(tmp_path):
    linear = make(protocol="linear", probabilities="softmax")
    return write(linear, tmp_path / "test"), write(linear, tmp_path / "calibration", seed=1, start=200)


def run(*arguments):
    done = CliRunner().invoke(cli, ["selective", *map(str, arguments)])
    return done.exit_code, done.output if done.exception is None or isinstance(done.exception, SystemExit) else str(
        done.exception
    )


def test_the_command_prints_what_the_scores_give(pair):
    result, calibration = pair
    code, out = run(result.file, "--calibration", calibration.file, "--json")
    assert code == 0, out
    found = json.loads(out)
    p = softmax(records.read_scores(result.file).scores)
    right = p.argmax(axis=1) == LABELS
    aurra = response_rate_statistic(p.max(axis=1), right)(np.ones((1, 200)))[0, 0]
    metric = found["metrics"]["aurc"]
    assert metric["value"] == pytest.approx(100 * (1 - aurra)) and metric["low"] < metric["value"] < metric["high"]
    lac, aps, raps = found["sets"]
    assert [each["rule"]["rule"] for each in found["sets"]] == ["lac", "aps", "raps"] and lac["calibrated"] == 200
    low, high = lac["likely_coverage"]
    assert all(low <= each["metrics"]["set_coverage"]["value"] <= high for each in (lac, aps, raps))
    assert 1 < lac["metrics"]["set_size"]["value"] <= aps["metrics"]["set_size"]["value"] < 3
    text = run(result.file, "--calibration", calibration.file)[1]
    assert "200 samples" in text and f"{metric['value']:.2f}" in text and "calibrated on 200 samples" in text


def test_without_probabilities_the_margin_is_the_confidence(tmp_path):
    result = write(make(protocol="svm"), tmp_path)
    found = selective(result)
    best = np.sort(records.read_scores(result.file).scores, axis=1)
    right = records.read_scores(result.file).scores.argmax(axis=1) == LABELS
    aurra = response_rate_statistic(best[:, 2] - best[:, 1], right)(np.ones((1, 200)))[0, 0]
    assert found.metrics["aurc"][0] == pytest.approx(100 * (1 - aurra)) and "second" in found.confidence


def test_several_draws_are_averaged(tmp_path):
    linear = make(protocol="linear", probabilities="softmax", protocol__settings={"draws": 2})
    draws = [
        np.random.default_rng(i).normal(size=(200, 3)).astype(np.float32) + 2 * np.eye(3, dtype="f4")[LABELS]
        for i in (0, 7)
    ]
    result = records.read(
        records.write(linear, draws[0], [str(i) for i in range(200)], LABELS, tmp_path, draws=draws).file
    )
    alone = [
        selective(write(make(protocol="linear", probabilities="softmax"), tmp_path / str(i), seed=i)) for i in (0, 7)
    ]
    found = selective(result)
    assert found.trainings == 2
    assert found.metrics["aurc"][0] == pytest.approx(np.mean([each.metrics["aurc"][0] for each in alone]), rel=1e-5)


def test_groups_widen_the_intervals_and_have_no_likely_coverage(pair, tmp_path):
    result, calibration = pair
    grouped = write(result, tmp_path / "grouped", groups=np.arange(200) // 10)
    found = selective(grouped, calibration, rules=())
    assert found.metrics["aurc"][0] == pytest.approx(selective(result).metrics["aurc"][0])
    (sets,) = selective(grouped, calibration, rules=[ConformalSets("lac", 0.1)]).sets
    assert sets.likely is None


MISTAKES = {
    "another network": ({"weights__sha256": "11" * 32}, "differs: weights, layer or preprocessing"),
    "other settings": ({"protocol__settings": {"k": [1]}}, "differs: settings"),
    "another train part": ({"data__train__fingerprint": "22" * 16}, "differs: train"),
    "another seed": ({"seed": 5}, "differs: seed"),
}


@pytest.mark.parametrize("changes, message", MISTAKES.values(), ids=MISTAKES)
def test_a_calibration_by_another_classifier_is_refused(pair, tmp_path, changes, message):
    other = write(change(pair[0], **changes), tmp_path / "other", seed=1, start=200)
    code, out = run(pair[0].file, "--calibration", other.file)
    assert code != 0 and message in out


def test_calibration_on_reported_or_trained_samples_is_refused(pair, tmp_path):
    result, calibration = pair
    assert "share 200 samples, such as '0.png'" in run(result.file, "--calibration", result.file)[1]
    # the same relative names in another folder are other samples
    renamed = write(change(result, data__test__fingerprint="ab" * 16), tmp_path / "b", seed=1)
    assert run(result.file, "--calibration", renamed.file)[0] == 0
    train = calibration.data.test.fingerprint
    of_train = [
        write(change(each, data__train__fingerprint=train), tmp_path / f"t{i}", seed=i, start=200 * i)
        for i, each in enumerate(pair)
    ]
    assert "are those of train" in run(of_train[0].file, "--calibration", of_train[1].file)[1]


def test_other_records_and_flags_without_effect_are_refused(pair, tmp_path):
    result, _ = pair
    assert "--alpha is of sets of classes, which need --calibration" in run(result.file, "--alpha", "0.2")[1]
    assert run(result.file, "--alpha", "1")[0] == 2
    svm = write(make(protocol="svm"), tmp_path / "svm")
    other = write(make(protocol="svm"), tmp_path / "svm2", seed=1, start=200)
    assert "svm gives no probabilities" in run(svm.file, "--calibration", other.file)[1]
    multi = change(make(), data__labels="multi")
    written = records.write(multi, np.zeros((2, 3), np.float32), ["a", "b"], np.zeros((2, 3), np.int8), tmp_path / "m")
    assert "has labels of kind 'multi'" in run(written.file)[1]
    (written.file.parent / result.scores_file).unlink(missing_ok=True)
    bare = records.write_without_scores(make(), tmp_path / "bare")
    assert "has no scores beside it" in run(bare.file)[1] and len(CLASSES) == 3
