"""Suites, sweeps, written requests and presets."""

import json
import os
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import two_processes

from sslbench.cli.commands import sweep
from sslbench.cli.commands.eval import command
from sslbench.cli.commands.eval.check import expand
from sslbench.cli.words import combinations, split_sweep, typed
from sslbench.errors import UsageError
from sslbench.evaluation.request import RunSettings, read_request, written
from sslbench.results.holes import read
from sslbench.results.holes import read as read_holes
from sslbench.results.records import read_tree


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
    assert "knn/voc07 needs --data" in result.err and "pixels:3" in result.out
    assert [(h.weights, h.benchmark) for h in read(tmp_path / "out")] == [
        *(("pixels:2", "knn/dtd"), ("pixels:2", "knn/voc07"), ("pixels:3", "knn/dtd"), ("pixels:3", "knn/voc07"))
    ]
    records = sorted((tmp_path / "out" / "knn").glob("*.json"))
    assert len(records) == 2 and json.loads(records[0].read_text())["benchmark"]["name"] == "knn/digits"
    stamps = [file.stat().st_mtime_ns for file in records]
    again = run(*command, "knn")
    assert again.err.count("already computed") == 2 and [file.stat().st_mtime_ns for file in records] == stamps
    board = run("leaderboard", "out", "--published")
    assert board.code == 0 and "Hole: pixels:2 on knn/dtd" in board.out and "No published numbers" in board.out


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


@pytest.fixture(autouse=True)
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").touch()


def runs(text):
    with sweep.command.make_context("sweep", shlex.split(text)) as ctx:
        return sweep.plan(ctx)[0]


def test_values_to_try_and_lists():
    names, values = split_sweep(["knn", "k=10,20", "seed=[1,2]", "linear.x=a"])
    assert (names, values) == (["knn"], {"k": [10, 20], "seed": [[1, 2]], "linear.x": ["a"]})
    assert list(combinations({"a": [1, 2], "b": [3]})) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    with pytest.raises(UsageError, match="twice"):
        split_sweep(["k=10,10"])


@pytest.mark.parametrize(
    "value",
    [
        *(
            "a",
            "a,b",
            "it's",
            'say "x"',
            "a\\",
            "a\\'b",
            "x y",
            "null",
            "true",
            "10",
            "1e-3",
            "",
            "[1]",
            "{a}",
            "a=b",
            "${x}",
        ),
        *(1e-05, 3, True, None, [1, "a,b"], {"a": "b,c"}, ["it's", "10"]),
    ],
)
def test_a_value_is_typed_as_it_is_read(value):
    assert split_sweep([f"x={typed(value)}"])[1]["x"] == [value]


def test_a_setting_multiplies_the_runs_of_the_protocols_that_have_it():
    found = runs("knn geometry --weights a.pth b.pth --data photos/ k=10,20 seed=0,1")
    labels = sorted((cell.weights, cell.benchmark, run.seed) for cell, run in found)
    assert labels == sorted(
        (weights, f"{label} seed={seed}", seed)
        for weights in ("a.pth", "b.pth")
        for label in ("knn k=10", "knn k=20", "geometry")
        for seed in (0, 1)
    )
    first = next(run for run in found if run[0].benchmark == "knn k=20 seed=1")
    assert first[0].requests[0].tasks[0].settings.k == (20,)
    (written,) = sweep._written(first)
    assert (written["weights"], written["title"], written["run"]) == ("a.pth", "knn k=20 seed=1", {"seed": 1})


def test_a_setting_of_one_protocol_by_its_prefix():
    found = runs("knn low-shot --weights pixels knn.k=[10,20],[5] --seed 3")
    assert [cell.benchmark for cell, _ in found] == ["knn knn.k=[10,20]", "knn knn.k=[5]", "low-shot"]
    assert {run.seed for _, run in found} == {3}


def test_suites_and_presets_are_swept():
    found = runs("linear --suite small --weights pixels seed=0,1")
    assert len({cell.benchmark for cell, _ in found}) == len(found) > 2
    assert len({cell.benchmark.partition(" ")[0] for cell, _ in found}) * 2 == len(found)
    presets = runs("--preset knn/dino --weights pixels --data photos/ temperature=0.07,0.1")
    assert [cell.benchmark for cell, _ in presets] == ["knn/dino temperature=0.07", "knn/dino temperature=0.1"]


MISTAKES = [
    ("knn --weights pixels kk=1,2", "there is no setting 'kk'"),
    ("knn --weights pixels seed=1 --seed 2", "same setting"),
    ("knn k=10", "--weights is missing"),
    ("knn --weights pixels k=5,0", "knn: k should be one or several different numbers of at least 1"),
    ("--weights pixels", "no protocol is named"),
]


def test_mistakes():
    for text, message in MISTAKES:
        with pytest.raises(UsageError, match=message):
            runs(text)


QUICK = {"floors": False, "overlaps": False, "estimate": False}
PIXELS = {"version": 1, "weights": "pixels:2", "data": "sklearn:digits", "limit": 100, "run": QUICK}


@pytest.fixture
def run_written(sslbench, tmp_path, monkeypatch):
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


def test_several_requests_leave_holes_and_what_has_a_record_is_skipped(run_written):
    task = {"protocol": "knn", "settings": {"k": [3]}}
    wrong = {"protocol": "knn", "settings": {"k": [9999]}}
    content = {
        "requests": [{**PIXELS, "title": "k=3", "tasks": [task]}, {**PIXELS, "title": "k=9999", "tasks": [wrong]}]
    }
    code, out, err = run_written(content, "--skip-existing")
    assert code == 1 and "knn" in out and "1 of 2 cells are holes" in err
    assert [(hole.weights, hole.benchmark) for hole in read_holes(Path("results"))] == [("pixels:2", "k=9999")]
    (record,) = read_tree(Path("results"))
    assert record.request == {**PIXELS, "tasks": [task]}
    assert "already computed" in run_written(content, "--skip-existing")[2]
    code, out, _ = run_written(content["requests"][0], "--dry-run")
    assert code == 0 and "[3]  [command line]" in out and "pixels:2" in out


def test_a_record_and_requests_of_features_and_pretraining_run(run_written, sslbench):
    assert run_written(PIXELS)[1].startswith("train\tpixels\t100 x 12")
    settings = {"augment": "digits", "augment.size": 16, "batch_size": 16, "method.projector": [32, 16]}
    settings |= {"epochs": 1, "schedule.warmup_epochs": 0, "save_every": "1 update"}
    training = {"backbone": "resnet18w0.125", "limit": 32, "workers": 0, "device": "cpu", "out": "a"}
    code, _, err = run_written({"version": 1, "method": "simclr", "settings": settings, **training})
    assert code == 0 and Path("a/weights.torch").is_file(), err
    code, out, err = sslbench("run", "a/config.yaml", "--dry-run")
    assert code == 0 and "resnet18w0.125" in out and "32 images" in out, err
    asked = {**PIXELS, "weights": "a/checkpoints", "tasks": [{"protocol": "knn"}]}
    code, out, err = run_written(asked, "--out", "r")
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
    ],
)
def test_mistakes_and_code_are_refused(run_written, change, message):
    code, out, err = run_written({**PIXELS, "tasks": [{"protocol": "knn"}], **change})
    assert (code, out) == (2, "") and message in err


RUN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos", "--no-floors")


def only_record(world, protocol):
    (file,) = (world / "results" / protocol).glob("*.json")
    return json.loads(file.read_text())


def test_a_preset_sets_the_protocol_and_stands_in_the_record_with_its_source(world, sslbench):
    code, out, err = sslbench("eval", "knn", "--preset", "dino", *RUN)
    assert code == 0, err
    assert "knn (knn/dino)" in out
    record = only_record(world, "knn")
    assert record["protocol"]["settings"]["k"] == [20] and record["preprocessing"]["interpolation"] == "bicubic"
    assert record["preset"]["name"] == "knn/dino" and "2104.14294" in record["preset"]["source"]
    assert record["preset"]["modified"] is False


def test_settings_on_top_win_and_mark_the_row(world, sslbench):
    code, out, err = sslbench("eval", "knn", "--preset", "knn/dino", *RUN, "k=3")
    assert code == 0, err
    assert "modified" in out
    record = only_record(world, "knn")
    assert record["protocol"]["settings"]["k"] == [3] and record["preset"]["modified"] is True
    _, out, _ = sslbench("leaderboard", "results", "--csv", "board.csv")
    assert "preset knn/dino modified" in (world / "board.csv").read_text()


def test_the_same_value_as_the_presets_is_no_change(world, sslbench):
    sslbench("eval", "--preset", "knn/dino", *RUN, "k=20")
    assert only_record(world, "knn")["preset"]["modified"] is False


def test_several_presets_run_together_and_a_protocol_without_one_keeps_its_defaults(world, sslbench):
    presets = ("--preset", "knn/npid", "--preset", "lsr/big_vision")
    images = ("--resize", "16x16", "--crop", "none", "--interpolation", "bilinear")
    code, _, err = sslbench("eval", "knn", "lsr", "linear", *presets, *RUN, *images, "knn.k=5", "lsr.k=[1,5]")
    assert code == 0, err
    assert err.count("images in") == 2, "both parts of the data, encoded once for all three"
    assert only_record(world, "lsr")["preset"]["name"] == "lsr/big_vision"
    assert only_record(world, "linear")["preset"] is None


def test_dry_run_names_the_preset_as_the_origin(world, sslbench):
    code, out, err = sslbench(
        "eval", "--preset", "knn/dino", *RUN, "--dry-run", "temperature=0.1", "--resize", "20", "--crop", "none"
    )
    assert code == 0, err
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert lines["k"].endswith("[preset knn/dino]") and lines["interpolation"].endswith("[preset knn/dino]")
    assert lines["temperature"].endswith("[command line]") and lines["resize"].endswith("[asked for]")
    assert "knn (knn/dino v2" in out


def test_a_resize_that_does_not_fill_the_crop_of_a_preset_is_refused(world, sslbench):
    code, _, err = sslbench("eval", "--preset", "knn/dino", *RUN, "--resize", "20")
    assert code == 2 and "20x20 do not fill the centre crop of 224x224 (knn/dino)" in err and "--crop none" in err


def test_layers_of_a_preset_are_used_unless_others_are_asked_for(world, sslbench, monkeypatch):
    folder = world / "own" / "benchmarks" / "presets" / "knn"
    folder.mkdir(parents=True)
    text = "title: t\nsource: a paper of 2026\nprotocol: knn\nsettings: {k: [3]}\nlayers: ['conv1:avg(4,4)']\n"
    (folder / "paper.yaml").write_text(text)
    monkeypatch.setenv("SSLBENCH_PATH", str(world / "own"))
    code, _, err = sslbench("eval", "knn", "--preset", "paper", *RUN)
    assert code == 0, err
    record = only_record(world, "knn")
    assert record["layer"] == "conv1:avg(4,4)" and record["preset"]["modified"] is False
    _, out, _ = sslbench("eval", "knn", "--preset", "paper", *RUN, "--dry-run")
    assert "[preset knn/paper]" in out.split("layers")[1].split("data")[0]
    sslbench("eval", "knn", "--preset", "paper", *RUN, "--layers", "output", "--out", "other")
    (file,) = (world / "other" / "knn").glob("*.json")
    other = json.loads(file.read_text())
    assert other["layer"] == "output" and other["preset"]["modified"] is True


def test_a_preset_on_a_benchmark_changes_its_settings_and_marks_it(world, sslbench):
    (world / "mine.yaml").write_text("title: t\nversion: 1\nprotocol: knn\nsettings: {temperature: 0.5, k: [9]}\n")
    code, _, err = sslbench("eval", "--benchmark", "mine.yaml", "--preset", "knn/npid", *RUN, "k=5")
    assert code == 0, err
    record = only_record(world, "knn")
    assert record["protocol"]["settings"]["temperature"] == 0.07
    assert record["benchmark"]["modified"] is True


def test_what_selects_on_test_is_marked_wherever_its_number_stands(world, sslbench):
    few = ("k=[2]", "draws=2", "costs=[0.1,1]", "--layers", "output")
    code, out, err = sslbench("eval", "--preset", "low_shot/vissl_places", *RUN, *few)
    assert code == 0, err
    assert "selected on test" in out
    sslbench("leaderboard", "results", "--csv", "board.csv")
    assert "selected on test" in (world / "board.csv").read_text()


def test_show_list_and_diff(world, sslbench):
    _, out, _ = sslbench("list", "presets")
    assert {"knn/dino", "svm/voc07"} <= set(out.split())
    _, out, _ = sslbench("show", "knn/dino")
    assert "2104.14294" in out and "temperature: 0.07" in out
    code, out, _ = sslbench("diff-preset", "knn", "knn/vissl")
    assert code == 1 and {"k", "temperature", "metric"} <= {line.split()[0] for line in out.splitlines()}
    code, out, _ = sslbench("diff-preset", "knn/dino", "knn/dino")
    assert code == 0 and "do not differ" in out
    code, out, _ = sslbench("diff-preset", "knn/dino", "knn/vissl", "--json")
    assert json.loads(out)["differences"]["metric"] == {"a": "cosine", "b": "dot"}
