"""`sslbench eval --suite` and several weights, as a user types them."""

import json
import os
from typing import NamedTuple

import pytest
from helpers import two_processes

from sslbench.cli.commands.eval import command
from sslbench.cli.commands.eval.check import expand
from sslbench.errors import UsageError
from sslbench.results.holes import read


class Outcome(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(sslbench, tmp_path, monkeypatch):
    """Runs a command in a folder of its own, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    return lambda *words: Outcome(*sslbench(*words))


@pytest.mark.parametrize(
    ("args", "weights", "words"),
    [
        ("knn --weights a b c --data d", "a b c", "knn"),
        ("-w a b knn linear k=3", "a b", "knn linear k=3"),
        ("--weights a --suite small", "a", ""),
        ("--weights a --data d --weights b", "a b", ""),
        ("--weights=a --suite s --weights=b", "a b", ""),
        ("--weights knn knn", "knn", "knn"),
        ("knn --data d", "", "knn"),
        ("--weights https://host/a?b=c https://host/d?e=f k=3", "https://host/a?b=c https://host/d?e=f", "k=3"),
    ],
)
def test_words_after_weights_are_weights_until_a_flag_a_protocol_or_a_setting(args, weights, words):
    params = command.make_context("eval", args.split()).params
    assert (params["weights"], params["words"]) == (tuple(weights.split()), tuple(words.split()))


def test_a_file_may_have_an_equals_sign_in_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=0.1.torch").touch()
    assert command.make_context("eval", ["--weights", "a", "lr=0.1.torch", "k=3"]).params["weights"] == (
        "a",
        "lr=0.1.torch",
    )


def test_weights_without_a_value_are_clicks_own_error(run):
    result = run("eval", "knn", "--weights")
    assert result.code == 2 and "weights" in result.err


def test_patterns_are_expanded_and_nothing_is_named_twice(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w[1].torch").touch()
    pattern = f"{tmp_path}/*/w*.torch"
    first = str(tmp_path / "a" / "w[1].torch")
    assert expand([pattern, "random", first]) == [first, str(tmp_path / "b" / "w[1].torch"), "random"]
    assert expand([first]) == [first]
    with pytest.raises(UsageError, match="no file matches this pattern"):
        expand([f"{tmp_path}/*.pth"])


def test_a_suite_leaves_holes_with_their_remedy_and_exits_with_1(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    (tmp_path / "benchmarks" / "suites").mkdir(parents=True)
    suite = "title: t\nbenchmarks: [knn/digits, knn/dtd, knn/voc07]\n"
    (tmp_path / "benchmarks" / "suites" / "mine.yaml").write_text(suite)
    command = ("eval", "--suite", "mine", "--weights", "pixels:2", "pixels:3", "--no-floors", "--out", "out")
    result = run(*command)
    assert result.code == 1
    assert "4 of 6 cells are holes" in result.err and "www.robots.ox.ac.uk/~vgg/data/dtd" in result.err
    assert "pixels:2, pixels:3 on knn/voc07: needs --data" in result.err and "pixels:3" in result.out
    assert [(h.weights, h.benchmark) for h in read(tmp_path / "out")] == [
        *(("pixels:2", "knn/dtd"), ("pixels:2", "knn/voc07"), ("pixels:3", "knn/dtd"), ("pixels:3", "knn/voc07"))
    ]
    records = sorted((tmp_path / "out" / "knn").glob("*.json"))
    assert len(records) == 2 and json.loads(records[0].read_text())["benchmark"]["name"] == "knn/digits"
    stamps = [file.stat().st_mtime_ns for file in records]
    again = run(*command, "knn")
    assert again.err.count("already computed") == 1 and [file.stat().st_mtime_ns for file in records] == stamps
    board = run("leaderboard", "out", "--published")
    assert (
        board.code == 0 and "Hole: pixels:2, pixels:3 on knn/dtd" in board.out and "No published numbers" in board.out
    )


def suite_in(rank, folder):
    """What `sslbench eval --suite mine` in that folder exits with."""
    from sslbench.cli.main import main

    os.chdir(folder)
    os.environ["SSLBENCH_CACHE"] = f"{folder}/cache"
    with pytest.raises(SystemExit) as ended:
        main(["eval", "--suite", "mine.yaml", "--weights", "pixels:2", "--no-floors", "--out", "out", "--workers", "0"])
    return ended.value.code


def test_of_two_processes_only_the_first_tells_of_a_hole(tmp_path):
    (tmp_path / "mine.yaml").write_text("title: t\nbenchmarks: [knn/dtd, knn/digits]\n")
    assert two_processes.run(suite_in, str(tmp_path)) == [1, 0], "torchrun would kill the first when the second fails"
    assert [hole.benchmark for hole in read(tmp_path / "out")] == ["knn/dtd"]
    assert len(list((tmp_path / "out" / "knn").glob("*.json"))) == 1


def test_several_weights_need_no_suite_and_the_backbone_is_not_for_pixels(run, tmp_path):
    result = run(
        *(
            "eval",
            "knn",
            "--weights",
            "pixels:2",
            "random",
            "--backbone",
            "resnet18w0.25_cifar",
            "--data",
            "sklearn:digits",
        ),
        *("--dry-run", "--no-floors"),
    )
    assert result.code == 0 and "pixels:2 on knn" in result.out and "random on knn" in result.out


def test_a_mistake_in_the_command_stops_before_any_cell(run):
    result = run("eval", "--suite", "digits", "--weights", "pixels:2", "pixels:3", "knn.kk=3")
    assert result.code == 2 and "knn has no setting 'kk'" in result.err
    result = run("eval", "--suite", "digitz", "--weights", "pixels:2")
    assert result.code == 2 and "Did you mean 'digits'" in result.err


def test_a_suite_with_detection_has_a_hole_for_weights_without_a_network(run, tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    (tmp_path / "benchmarks" / "suites").mkdir(parents=True)
    (tmp_path / "benchmarks" / "suites" / "m.yaml").write_text("title: t\nbenchmarks: [knn/digits, detection/toy]\n")
    result = run("eval", "--suite", "m", "--weights", "pixels:2", "--no-floors")
    assert result.code == 1 and "pixels:2 on detection/toy: a detector needs a network" in result.err
