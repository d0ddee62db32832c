"""`sslbench run`: requests written by hand, by the launcher and into records."""

import json
from pathlib import Path

import pytest

from sslbench.evaluation.request import read_request, written
from sslbench.evaluation.settings import RunSettings
from sslbench.results.holes import read as read_holes
from sslbench.results.records import read_tree

QUICK = {"floors": False, "overlaps": False, "estimate": False}
PIXELS = {"version": 1, "weights": "pixels:2", "data": "sklearn:digits", "limit": 100, "run": QUICK}


@pytest.fixture
def run(sslbench, tmp_path, monkeypatch):
    """Runs requests written to a file."""
    monkeypatch.chdir(tmp_path)

    def run(content, *words):
        Path("job.yaml").write_text(json.dumps(content))  # JSON is YAML, without aliases
        return sslbench("run", "job.yaml", "--store", "s", *words)

    return run


def test_a_request_is_read_as_it_was_written():
    content = {
        **PIXELS,
        "title": "mine",
        "layers": ["pixels"],
        "preprocessing": {"resize": 8},
        "noise": [0.1],
        "tasks": [
            {"protocol": "knn", "benchmark": "knn/digits", "preset": "knn/dino", "settings": {"k": [3]}},
            {"protocol": "linear"},
        ],
    }
    request, settings, title = read_request(content, "here")
    assert written(request, settings, title) == content
    assert (request.tasks[0].settings.k, request.tasks[0].preset.modified, settings.floors) == ((3,), True, False)
    embeddings = {"version": 1, "features": "x.npy", "tasks": [{"protocol": "geometry"}]}
    request, settings, _ = read_request(embeddings, "here")
    assert (written(request, settings), settings) == (embeddings, RunSettings())


def test_several_requests_leave_holes_and_what_has_a_record_is_skipped(run):
    task = {"protocol": "knn", "settings": {"k": [3]}}
    wrong = {"protocol": "clustering", "settings": {"k": [9999]}}
    content = {
        "requests": [{**PIXELS, "title": "k=3", "tasks": [task]}, {**PIXELS, "title": "k=9999", "tasks": [wrong]}]
    }
    code, out, err = run(content, "--skip-existing")
    assert code == 1 and "knn" in out and "1 of 2 cells are holes" in err
    assert [(hole.weights, hole.benchmark) for hole in read_holes(Path("results"))] == [("pixels:2", "k=9999")]
    (record,) = read_tree(Path("results"))
    assert record.request == {**PIXELS, "tasks": [task]}
    assert "already computed" in run(content, "--skip-existing")[2]
    code, out, _ = run(content["requests"][0], "--dry-run")
    assert code == 0 and "[3]  [command line]" in out and "pixels:2" in out


def test_a_record_and_requests_of_features_and_pretraining_run(run, sslbench):
    code, _, err = run(PIXELS, "--dry-run")
    assert code == 2 and "--dry-run does not print" in err and not Path("s").exists()
    assert run(PIXELS, "--skip-existing")[0] == 2
    assert run(PIXELS)[1].startswith("train\tpixels\t100 x 12")
    settings = {"augment": "digits", "augment.size": 16, "batch_size": 16, "method.projector": [32, 16]}
    settings |= {"epochs": 1, "schedule.warmup_epochs": 0, "save_every": "1 update"}
    training = {"backbone": "resnet18w0.125", "limit": 32, "workers": 0, "device": "cpu", "out": "a"}
    code, _, err = run({"version": 1, "method": "simclr", "settings": settings, **training})
    assert code == 2 and "--store does not go with a request of pretraining" in err
    code, _, err = sslbench("run", "job.yaml")
    assert code == 0 and Path("a/weights.torch").is_file(), err
    code, out, err = sslbench("run", "a/config.yaml", "--dry-run")
    assert code == 0 and "resnet18w0.125" in out and "32 images" in out, err
    asked = {**PIXELS, "weights": "a/checkpoints", "tasks": [{"protocol": "knn"}]}
    code, out, err = run(asked, "--out", "r")
    assert code == 0 and "update" in out, err
    records = read_tree(Path("r"))
    assert len(records) == 2 and {Path(record.request["weights"]).parent.name for record in records} == {"checkpoints"}
    code, _, err = sslbench("run", records[0].file, "--out", "again")
    assert code == 0 and [record.id for record in read_tree(Path("again"))] == [records[0].id], err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": "my_net:make", "weights": "random"}, "--trust-code runs it"),
        ({"tasks": [{"protocol": "my_pkg.mine"}]}, "--trust-code runs it"),
        ({"data": "my_pkg.source:x"}, "--trust-code runs it"),
        ({"trust_pickle": True}, "--trust-code accepts it"),
        ({"wieghts": "a"}, "Did you mean 'weights'"),
        ({"version": 2}, "version should be 1"),
        ({"tasks": [{"protocol": "knn", "settings": {"kk": 3}}]}, "kk"),
        ({"run": {"seed": -1}}, "seed should be from 0"),
        ({"data": None}, "data"),
        ({"tasks": None}, "tasks should be a list"),
        ({"tasks": 3}, "tasks should be a list"),
        ({"tasks": {"protocol": "knn"}}, "tasks should be a list"),
        ({"tasks": [{"protocol": "knn", "settings": {"kk": 3}}]}, "request 1: task 1: settings: unknown key"),
        ({"baselines": ["random"]}, "baselines has no effect"),
        ({"format": "no_format"}, "no_format"),
        ({"requests": []}, "requests should be a list"),
        ({"requests": [PIXELS]}, "'version' has no effect beside requests"),
    ],
)
def test_mistakes_and_code_are_refused(run, change, message):
    code, out, err = run({**PIXELS, "tasks": [{"protocol": "knn"}], **change})
    assert (code, out) == (2, "") and message in err


def test_a_mistake_in_the_last_request_is_told_before_the_first_training(run, sslbench):
    training = {"version": 1, "method": "simclr", "out": "a", "limit": 32, "backbone": "resnet18w0.125"}
    wrong = {**PIXELS, "tasks": [{"protocol": "knn", "settings": {"kk": 3}}]}
    code, out, err = run({"requests": [training, wrong]})
    assert (code, out) == (2, "") and "request 2: task 1" in err and not Path("a").exists()
