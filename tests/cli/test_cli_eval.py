"""`sslbench eval` from end to end, as a user runs it."""

import contextlib
import io
import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import two_processes

EVAL = ("eval", "knn", "linear", "svm", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net")
KNN = ("eval", "knn", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "k=3")


def records(folder="results"):
    from sslbench.results.records import read_tree

    return {(r.protocol.name, r.weights.name): r for r in read_tree(Path(folder))}


def test_three_protocols_from_one_pass_and_a_warm_run_decodes_nothing_and_gives_the_same_records(world, sslbench):
    code, out, err = sslbench(*EVAL, "--data", "photos")
    assert code == 0, err
    assert "loaded 7 of 7" in err or "loaded 8 of 8" in err
    assert "36 images in" in err and "15 images in" in err
    for protocol in ("knn", "linear", "svm"):
        result = records()[(protocol, "w.pth")]
        assert "floors of knn, linear, svm: untrained " in out and ".json" not in out, "-v names the records"
        assert result.metrics["top1"].value == pytest.approx(100, abs=20)
        assert result.metrics["top1"].low <= result.metrics["top1"].value <= result.metrics["top1"].high
        assert result.data.train.n_used == 36 and result.data.test.n_used == 15
        assert set(result.floors) == {"chance", "majority", "pixels", "untrained"}
        assert result.floors["chance"]["top1"] == pytest.approx(100 / 3)
        assert result.weights.loaded == result.weights.total > 0
        assert result.command.startswith("sslbench ")

    before = records()
    code, _, err = sslbench(*EVAL, "--data", "photos", "--batch-size", "5", "--workers", "0", "-v")
    assert code == 0
    found = [line for line in err.splitlines() if line.endswith("features found in the store, no image decoded")]
    assert found and any(":net untrained on " in line for line in found), "the floor is told from the weights"
    counts = re.search(r"samples of each class:\nclass +train +test\n(\w+) +(\d+) +(\d+)\n\w", err)
    assert counts and int(counts[2]) == 12 and int(counts[3]) == 5, "each class with its counts"
    assert " images in " not in err
    after = records()
    assert {k: r.id for k, r in before.items()} == {k: r.id for k, r in after.items()}
    assert {k: r.metrics for k, r in before.items()} == {k: r.metrics for k, r in after.items()}


def test_a_sweep_says_each_thing_once_and_results_fit_80_columns(world, sslbench):
    words = ("knn", "linear", "--weights", "random", "pixels:2", "pixels:3", "--backbone", "resnet18w0.125")
    common = ("--data", "photos", "--resize", 32, "--crop", 32, "--limit", 12)
    code, _, err = sslbench("sweep", *words, *common, "--out", "s")
    lines = err.splitlines()
    assert code == 0 and len(lines) == len({*lines}) <= 16, err
    assert err.count("limited to") == 1 and "Default values of k" not in err and ".json" not in err
    _, out, _ = sslbench("eval", "knn", "linear", "--weights", "random", *words[-2:], *common, "--out", "s")
    assert max(map(len, out.splitlines()[:5])) <= 80 and out.splitlines()[4].startswith("floors of knn"), out
    assert "Default values of k" in sslbench("eval", "knn", *words[2:4], *words[-2:], *common, "--out", "t", "-v")[2]


def test_extract_writes_what_eval_finds(world, sslbench):
    code, out, err = sslbench(
        "extract", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos"
    )
    assert code == 0, err
    path = out.splitlines()[0].split("\t")[-1]
    assert np.load(path).shape[1] == 12
    _, _, err = sslbench(*KNN, "--data", "photos", "--no-floors")
    assert err.count("features found in the store") == 1 and " images in " not in err


def test_extract_and_eval_share_features_when_eval_makes_the_split(world, sslbench):
    data = ("--data", "photos/train")
    sslbench("extract", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", *data)
    for seed in ("0", "1"):
        code, _, err = sslbench(*KNN, *data, "--no-floors", "--seed", seed)
        assert code == 0
        assert "features found in the store" in err and " images in " not in err
        assert f"(seed {seed})" in err


def test_dry_run_decodes_nothing_and_says_where_every_value_comes_from(world, sslbench):
    code, out, _ = sslbench(*KNN, "--data", "photos", "--dry-run", "--resize", "24x24", "--seed", "7")
    assert code == 0
    assert "[asked for]" in out and "(24, 24)" in out
    assert "[tiny_net_of_the_tests:net.preprocessing]" in out
    assert "[flag]" in out and "[configs/eval.yaml]" in out and "[command line]" in out and "[default]" in out
    assert "to be extracted" in out
    assert not (world / "results").exists()


def test_a_changed_image_is_named(world, sslbench):
    sslbench(*KNN, "--data", "photos", "--no-floors")
    path = world / "photos" / "train" / "red" / "3.png"
    shutil.copy(world / "photos" / "train" / "red" / "4.png", path)
    _, out, _ = sslbench(*KNN, "--data", "photos", "--dry-run")
    assert "1 of 36 images changed: red/3.png" in out
    _, _, err = sslbench(*KNN, "--data", "photos", "--no-floors")
    assert "1 of 36 images changed: red/3.png" in err


def test_several_layers_and_settings_per_protocol(world, sslbench):
    code, out, err = sslbench(*KNN, "linear", "--data", "photos", "--layers", "conv1:avg(4,4),output", "--no-floors")
    assert code == 0, err
    from sslbench.results.records import read_tree

    found = read_tree(world / "results")
    assert {(r.layer, r.protocol.name) for r in found} == {
        (layer, protocol) for layer in ("conv1:avg(4,4)", "output") for protocol in ("knn", "linear")
    }
    assert "conv1:avg(4,4)" in out


def test_multi_label_table(world, sslbench):
    rows = []
    for name in ("blue", "green", "red"):
        for i in range(12):
            label = {"blue": "cold", "green": "cold;plant", "red": "warm"}[name]
            rows.append({"image": f"photos/train/{name}/{i}.png", "label": label})
    pd.DataFrame(rows).to_csv("table.csv", index=False)
    code, _, err = sslbench(*EVAL, "--data", "table.csv", "svm.costs=[0.1,1]", "knn.k=3")
    assert code == 0, err
    for protocol in ("knn", "linear", "svm"):
        result = records()[(protocol, "w.pth")]
        assert result.headline == "mAP"
        assert result.metrics["mAP"].value > 80
        assert set(result.per_class) == {"cold", "plant", "warm"}


def test_a_named_benchmark_and_its_changed_form(world, sslbench):
    common = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--no-floors", "--limit", "200")
    code, _, err = sslbench("eval", "--benchmark", "knn/digits", *common)
    assert code == 0, err
    result = records()[("knn", "w.pth")]
    assert (result.benchmark.name, result.benchmark.modified) == ("knn/digits", False)
    sslbench("eval", "--benchmark", "knn/digits", *common, "temperature=0.2", "--out", "changed")
    assert records("changed")[("knn", "w.pth")].benchmark.modified is True


def test_unreadable_images_stop_or_are_left_out_and_counted(world, sslbench):
    (world / "photos" / "train" / "red" / "3.png").write_bytes(b"")
    (world / "photos" / "test" / "red" / "0.png").write_text("text")
    code, out, err = sslbench(*KNN, "--data", "photos", "--no-floors")
    assert code == 1
    assert "red/3.png" in err and "Traceback" not in err and out == ""
    assert not list((world / "results").rglob("*.json"))
    code, out, err = sslbench(*KNN, "--data", "photos", "--no-floors", "--on-error", "skip")
    assert code == 0
    result = records()[("knn", "w.pth")]
    assert (result.data.train.n, result.data.train.n_used) == (36, 35)
    assert (result.data.test.n, result.data.test.n_used) == (15, 14)
    assert {u.id for u in result.data.unreadable} == {"red/3.png", "red/0.png"}
    assert set(pd.read_csv("results/skipped.csv")["reason"]) == {"empty file", "not an image (text)"}
    assert "n = 14 of 15" in out


def test_leaderboard_of_what_eval_wrote(world, sslbench):
    sslbench(*KNN, "--data", "photos")
    code, out, _ = sslbench(
        "leaderboard", "results", "--csv", "board.csv", "--html", "board.html", "--markdown", "b.md"
    )
    assert code == 0
    assert "w.pth" in out
    board = pd.read_csv("board.csv")
    numbers = [c for c in board.columns if c.endswith(("photos", " low", " high"))]
    assert numbers and all(pd.api.types.is_numeric_dtype(board[c]) for c in numbers)
    assert "<table" in (world / "board.html").read_text()
    code, _, _ = sslbench("leaderboard", "results", "--csv", "long.csv", "--form", "long")
    assert {"value", "low", "high"} <= set(pd.read_csv("long.csv").columns)


def _corrupt(world):
    (world / "w.pth").write_bytes((world / "w.pth").read_bytes()[:-400])


def _one_class(world):
    for name in ("red", "green"):
        shutil.rmtree(world / "photos" / "train" / name)
        shutil.rmtree(world / "photos" / "test" / name)


def _class_only_in_test(world):
    shutil.rmtree(world / "photos" / "train" / "red")


@pytest.mark.parametrize(
    ("break_it", "arguments", "message"),
    [
        (_corrupt, (), "w.pth"),
        (_one_class, (), "one class"),
        (_class_only_in_test, (), "'red'"),
        (None, ("--layers", "conv3"), "conv2"),
        (None, ("--device", "cuda:0"), "no CUDA GPU"),
    ],
)
def test_bad_input_is_one_message_before_decoding(world, sslbench, monkeypatch, break_it, arguments, message):
    if "cuda:0" in arguments and torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    if break_it:
        break_it(world)
    monkeypatch.setattr("sslbench.data.loading.loader.read", lambda *_: pytest.fail("an image was decoded"))
    code, out, err = sslbench(*KNN, "--data", "photos", *arguments, "--workers", "0")
    assert code in (1, 2), err
    assert "error: " in err and message in err.split("error: ")[1], err
    assert "Traceback" not in err
    assert out == ""
    assert not list((world / "results").rglob("*.*")) if (world / "results").exists() else True


def test_allow_partial_is_stamped_on_the_result(world, sslbench):
    state = torch.load(world / "w.pth", weights_only=True)["state_dict"]
    torch.save({k: v for k, v in state.items() if k != "module.conv2.weight"}, world / "w.pth")
    code, out, err = sslbench(*KNN, "--data", "photos", "--allow-partial", "--no-floors")
    assert code == 0, err
    result = records()[("knn", "w.pth")]
    assert result.weights.partial is True
    assert result.weights.loaded < result.weights.total
    assert "partial weights" in out


def test_the_records_are_json_without_nan(world, sslbench):
    sslbench(*KNN, "--data", "photos", "--no-floors")
    found = list((world / "results").rglob("*.json"))
    assert len(found) == 1
    json.loads(found[0].read_text(), parse_constant=lambda name: pytest.fail(f"{name} in the record"))


@pytest.mark.parametrize("command", [KNN, ("pretrain", "simclr")])
def test_a_folder_of_images_and_label_maps_is_not_two_classes(world, sslbench, command):
    for folder in ("images", "masks"):
        (world / "scenes" / folder).mkdir(parents=True)
        for i, file in enumerate(sorted((world / "photos" / "train" / "red").glob("*.png"))[:3]):
            shutil.copy(file, world / "scenes" / folder / f"{i}.png")
    code, _, err = sslbench(*command, "--data", "scenes")
    assert (
        code == 2 and "scenes holds images with a class for every pixel" in err and "sslbench check-data scenes" in err
    )


def eval_in(rank, folder):
    """Exit code, stdout and stderr of KNN in that folder."""
    from sslbench.cli.main import main

    os.chdir(folder)
    os.environ["SSLBENCH_CACHE"] = f"{folder}/shared-cache"  # the run of one process encodes the images itself
    for name in ("MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK"):  # to encode, the other two are enough
        del os.environ[name]
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "tiny_net_of_the_tests", raising=False)
        with pytest.raises(SystemExit) as ended:
            main([*KNN, "--data", "photos", "--no-floors", "--workers", "0", "--out", "both"])
    return ended.value.code, out.getvalue(), err.getvalue()


def test_two_processes_give_the_record_of_one(world, sslbench):
    """They know no more than RANK and WORLD_SIZE: the first reports and writes, the second only helps to encode."""
    first, second = two_processes.run(eval_in, str(world), join=False)
    assert first[0] == 0 and "knn" in first[1] and second == (0, "", ""), (first, second)
    sslbench(*KNN, "--data", "photos", "--no-floors", "--out", "alone")
    both, alone = records("both")[("knn", "w.pth")], records("alone")[("knn", "w.pth")]
    assert both.id == alone.id
    assert both.metrics == alone.metrics


def test_the_untrained_floor_is_taken_at_the_layer_it_stands_beside(world, sslbench):
    sslbench(*KNN, "--data", "photos", "--layers", "conv1:avg(4,4),output")
    from sslbench.results.records import read_tree

    found = read_tree(world / "results")
    for layer in ("conv1:avg(4,4)", "output"):
        untrained = [r.metrics["top1"].value for r in found if r.weights.untrained and r.layer == layer]
        (result,) = [r for r in found if r.weights.name == "w.pth" and r.layer == layer]
        assert len(untrained) == 3 and result.floors["untrained"]["top1"] == pytest.approx(sum(untrained) / 3)
        spread = result.floor_ranges["untrained"]["top1"]
        assert (spread.lowest, spread.highest) == (min(untrained), max(untrained))


def test_three_untrained_networks_are_scored_once(world, sslbench):
    _, out, _ = sslbench(*KNN, "--data", "photos")
    assert re.search(r"untrained \d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)", out), "the mean and the spread"
    from sslbench.results.records import read_tree

    before = {r.id: r.created for r in read_tree(world / "results") if r.is_floor}
    assert len(before) == 4, "the pixels and three networks"
    code, out, err = sslbench(*KNN, "--data", "photos", "--out", "elsewhere")
    assert code == 0, err
    assert {r.id: r.created for r in read_tree(world / "elsewhere") if r.is_floor} == before
    code, out, _ = sslbench("leaderboard", "results", "elsewhere")
    assert "mean of 3 networks" in out and "knn/photos top1: " in out.splitlines()[0]
