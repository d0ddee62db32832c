"""`sslbench reproduce`: a record's command again, and published numbers."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.sample_record import sample

from sslbench.leaderboard.published import published_runs
from sslbench.library.benchmarks import load_benchmark
from sslbench.library.presets import family_of, load_preset
from sslbench.results import MetricValue
from sslbench.results.records import read, read_tree, working_folder
from sslbench.results.reruns import Change, compare_rerun

EVAL = ("eval", "knn", "lsr", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")


@pytest.fixture
def record(world, shared):
    """The record of kNN, as if made in the current folder; the same command has run lsr too."""
    shutil.rmtree("photos")
    shared.copy("records", world)
    for file in Path("results").rglob("*.json"):
        file.write_text(file.read_text().replace(str(shared("records")), str(world)))
    return next(r.file for r in read_tree(Path("results")) if r.protocol.name == "knn")


def changed(record, **values):
    content = json.loads(record.read_text())
    for key, value in values.items():
        *folders, last = key.split("__")
        inner = content
        for folder in folders:
            inner = inner[folder]
        inner[last] = value
    record.write_text(json.dumps(content))


def test_a_record_is_reproduced_from_another_folder_and_nothing_is_written(record, sslbench, tmp_path, monkeypatch):
    record = record.absolute()
    assert sslbench(*EVAL, "knn.k=3", "--no-floors", "--out", "elsewhere")[0] == 0  # the store has the features now
    before = {path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts}
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, out, err = sslbench("reproduce", record, "--trust-code")
    assert code == 0, err
    assert "reproduced: " in out and "DIFFERS" not in out
    assert "images in" in err, "encoded again, not found in the store"
    assert {path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts} == before


def test_a_changed_number_is_found(record, sslbench):
    value = read(record).metrics["top1"].value
    changed(record, metrics__top1__value=value - 5)
    code, out, said = sslbench("reproduce", record, "--trust-code", "--json")
    assert "the record was edited" in said
    found = json.loads(out)
    assert code == 1 and not found["reproduced"] and found["inputs"] == []
    assert [m["name"] for m in found["metrics"] if not m["agrees"]] == ["top1"]
    assert sslbench("reproduce", record, "--trust-code", "--tolerance", "6")[0] == 0


def test_an_interval_that_was_changed_is_found(record, sslbench):
    changed(record, metrics__top1__low=1.0)
    code, out, _ = sslbench("reproduce", record, "--trust-code")
    assert code == 1 and "DIFFERS, its interval too" in out


def test_a_record_of_a_sweep_holds_the_request_of_its_run(world, sslbench):
    words = (*EVAL[3:], "--no-floors", "--no-overlaps", "--no-estimate", "--out", "swept")
    assert sslbench("sweep", "knn", "k=1,3", *words)[0] == 0
    for result in read_tree(Path("swept")):
        assert result.command.startswith("sslbench sweep knn k=1,3")
        code, out, err = sslbench("reproduce", result.file, "--trust-code")
        assert code == 0 and "not the same" not in out, err


def test_nothing_that_is_checked_is_read(world, sslbench):
    """Not trainings finished before, their mean or a floor in the folder that gets the new records."""
    small = ("epochs=1", "batch_size=12", "augment=none", "seeds=2", "baseline=true", "--no-estimate")
    code, _, err = sslbench("eval", "finetune", *small, *EVAL[3:], "--out", "results")
    assert code == 0, err
    found = {(r.weights.untrained, r.seeds, r.seed): r.file for r in read_tree(Path("results"))}
    mean, training, floor = found[False, 2, 0], found[False, 1, 1], found[True, 2, 0]
    shutil.copytree("results", "right")
    values = {file: read(file).metrics["top1"].value for file in found.values()}
    for file in found.values():
        changed(file, metrics__top1__value=99.0, metrics__top1__low=98.0, metrics__top1__high=100.0)
    shutil.copytree("results", "again")  # as a run would have left it there
    for file in (mean, training):
        code, out, err = sslbench("reproduce", file, "--trust-code", "--out", "again")
        assert code == 1 and "NOT reproduced" in out and "not the same" not in out and "finished before" not in err
        new = Path("again") / file.relative_to("results")
        assert read(new).metrics["top1"].value == pytest.approx(values[file])
    for file in (training, floor):
        assert sslbench("reproduce", Path("right") / file.relative_to("results"), "--trust-code")[0] == 0
    code, _, err = sslbench("reproduce", mean, "--trust-code", "--out", "results")
    assert code == 2 and "holds results" in err and "itself" in err


def test_other_data_and_weights_are_not_a_reproduction(record, sslbench):
    shutil.copytree("photos", "more")
    shutil.copy("photos/train/red/0.png", "more/train/red/another.png")
    code, out, _ = sslbench("reproduce", record, "--trust-code", "--data", "more", "--tolerance", "100")
    assert code == 1 and "not the same: data.train.fingerprint" in out
    shutil.move("w.pth", "moved.pth")
    assert sslbench("reproduce", record, "--trust-code", "--weights", "moved.pth")[0] == 0
    code, _, err = sslbench("reproduce", record, "--trust-code")
    assert code == 1 and "w.pth" in err


def test_settings_that_only_one_record_has_are_differences():
    one = sample()
    other = dataclasses.replace(one, preprocessing={**one.preprocessing, "squash": True})
    assert compare_rerun(one, other).inputs == (Change("preprocessing.squash", None, True),)
    assert compare_rerun(other, one).inputs == (Change("preprocessing.squash", True, None),)


def test_rates_agree_within_points_and_other_metrics_within_a_share_of_their_value():
    def record(**values):
        metrics = {name: MetricValue(value=value, n=4) for name, value in {"top1": 75.0, **values}.items()}
        return dataclasses.replace(sample(), metrics=metrics)

    before = record(abs_rel=3.0, rmse=-8.0, mae=4.0, top5=None, nll=None, rankme=2.0, own=1.0)
    after = record(abs_rel=3.5, rmse=-7.96875, mae=4.0625, top5=None, nll=1.0, rankme=None)
    found = {each.name: each for each in compare_rerun(before, after, tolerance=0.5).metrics}
    agreeing = {name: each.agrees for name, each in found.items()}
    assert agreeing == {
        **{"top1": True, "abs_rel": True, "rmse": True, "mae": False},
        **{"top5": True, "nll": False, "rankme": False, "own": False},
    }
    tolerances = [found[name].tolerance for name in ("abs_rel", "rmse", "nll", "own")]
    assert tolerances == pytest.approx([0.5, 0.04, 0.5, 0.5])
    assert (found["own"].before, found["own"].after) == (1, None)


def test_code_and_pickles_that_a_record_names_run_only_on_request(record, sslbench):
    code, _, err = sslbench("reproduce", record)
    assert code == 2 and "tiny_net_of_the_tests" in err and "--trust-code" in err
    changed(record, request__trust_pickle=True, request__backbone="resnet18")
    code, _, err = sslbench("reproduce", record)
    assert code == 2 and "--trust-pickle" in err and "--trust-code" in err


def test_a_record_without_a_request_says_so(record, sslbench):
    changed(record, request=None, command="sslbench.evaluate(...)")
    code, _, err = sslbench("reproduce", record)
    assert code == 1 and "sslbench.evaluate(...)" in err and "sslbench compare" in err


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 2, "version should be 1"),
        ("tasks", [{"protocol": "knn", "setings": {}}], "Did you mean 'settings'"),
        ("tasks", [{"protocol": "knnn"}], "Did you mean 'knn'"),
        ("weights", None, "weights"),
        ("run", {"sed": 3}, "Did you mean 'seed'"),
        ("data", "https://me:***@host/x.tar", "does not hold the secrets of addresses"),
    ],
)
def test_a_damaged_request_is_one_message(record, sslbench, key, value, message):
    changed(record, **{f"request__{key}": value})
    code, out, err = sslbench("reproduce", record, "--trust-code")
    assert code == 2 and not out and message in err


@pytest.fixture(scope="module")
def runs():
    """Published runs, for which all benchmarks are read."""
    return published_runs()


def test_flags_without_effect_are_refused(record, sslbench, runs, monkeypatch):
    assert sslbench("reproduce")[0] == 2
    assert "--backbone" in sslbench("reproduce", record, "--backbone", "resnet50")[2]
    name = next(iter(runs))
    monkeypatch.setattr("sslbench.leaderboard.published.published_runs", lambda: runs)
    assert "--tolerance" in sslbench("reproduce", "--published", name, "--tolerance", "1")[2]
    code, _, err = sslbench("reproduce", "--published", name)
    assert code == 2 and "--weights is missing" in err
    code, _, err = sslbench("reproduce", "--published", name + "x", "--weights", "w.pth")
    assert code == 2 and name in err


def test_every_listed_published_number_has_a_preset_of_its_benchmarks_protocol(sslbench, runs):
    code, out, _ = sslbench("list", "published")
    assert code == 0 and out.split() == sorted(runs)
    for run in runs.values():
        assert load_benchmark(run.benchmark)
        assert not run.preset or (load_preset(run.preset) and family_of(run.preset) == family_of(run.benchmark))
    assert {family_of(run.benchmark) for run in runs.values()} >= {
        "knn",
        "linear",
        "segmentation",
        "depth",
        "detection",
    }


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_record_holds_the_commit_and_whether_files_are_changed(world, sslbench):
    git = ("git", "-c", "user.name=n", "-c", "user.email=e@example.org")
    for words in (("init", "-q"), ("add", "tiny_net_of_the_tests.py"), ("commit", "-q", "-m", "net")):
        subprocess.run([*git, *words], check=True, cwd=world)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], cwd=world, capture_output=True, text=True).stdout.strip()
    found = working_folder()
    assert (found.path, found.commit, found.changed) == (str(world), commit, False)
    (world / "sub").mkdir()
    Path("tiny_net_of_the_tests.py").write_text("# changed\n" + Path("tiny_net_of_the_tests.py").read_text())
    with contextlib.chdir("sub"):
        assert working_folder().changed is True
