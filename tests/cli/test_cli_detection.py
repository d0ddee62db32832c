"""`sslbench eval detection` from end to end, as a user runs it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.cli.commands.eval.show_plan import _print_estimate
from sslbench.detection import VERSION
from sslbench.evaluation.detections import finished
from sslbench.evaluation.estimate import Estimate, Stage

NET = ("--weights", "random", "--backbone", "resnet18w0.125", "--device", "cpu")
QUICK = (
    *("--benchmark", "detection/toy", "--data", "squares.json", "--limit-iters", "2"),
    *("min_sizes_train=64", "min_size_test=64", "pyramid_channels=8", "box_channels=8", "precise_bn=1", "batch_size=2"),
    *("rpn_samples=32", "roi_samples=16", "rpn_post_nms_train=20", "rpn_post_nms_test=10"),
)


def manifest(name, n, categories=("wide", "tall")):
    images, annotations = [], []
    for i in range(n):
        pixels = np.zeros((64, 64, 3), dtype=np.uint8)
        for c, (x, y, w, h) in enumerate([(4 + i, 6, 24, 12), (40 - i, 24, 10, 30)]):
            pixels[y : y + h, x : x + w] = (250, 60, 200)[c]
            annotations.append(
                {"id": len(annotations) + 1, "image_id": i + 1, "category_id": c + 1, "bbox": [x, y, w, h]}
            )
        Image.fromarray(pixels).save(f"{name}_{i}.png")
        images.append({"id": i + 1, "file_name": f"{name}_{i}.png", "width": 64, "height": 64})
    kinds = [{"id": i, "name": kind} for i, kind in enumerate(categories, start=1)]
    content = {"images": images, "annotations": annotations, "categories": kinds}
    Path(f"{name}.json").write_text(json.dumps(content))


@pytest.fixture
def world(tmp_path, monkeypatch):
    """The current folder, with a manifest of ten pictures."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    manifest("squares", 10)
    yield tmp_path
    torch.set_num_threads(before)


def only_record(folder="results"):
    from sslbench.results.records import read_tree

    [result] = read_tree(Path(folder))
    return result


def test_a_detector_is_trained_scored_and_recorded(world, sslbench):
    code, out, err = sslbench("eval", "detection", *NET, *QUICK)
    assert code == 0, err
    assert "8 train and 2 test samples" in err and "iteration 2 of 2: loss" in err
    result = only_record()
    assert (result.protocol.name, result.protocol.version, result.headline) == ("detection", VERSION, "AP")
    assert {"AP", "AP50", "AP75", "APs", "AR100"} <= set(result.metrics) and result.metrics["AP"].n == 2
    assert set(result.per_class) == {"wide", "tall"}
    settings = result.protocol.settings
    assert (settings["iterations"], settings["pyramid_channels"], settings["rpn_convs"]) == (2, 8, 1)
    assert result.benchmark.name == "detection/toy" and result.benchmark.modified
    assert set(result.preprocessing) == {"mean", "std", "origin"}, "sizes are the recipe's"
    assert result.weights.untrained and result.data.train.n == 8 and result.timings["train"] > 0
    assert "AP " in out and "wide" in out

    out_of_run = out
    stem = str(result.file).removesuffix(".json")
    assert stem not in out, "-v names the files"
    found = json.loads(Path(f"{stem}.predictions.json").read_text())
    assert all(set(row) == {"image_id", "category_id", "bbox", "score"} for row in found)
    assert Image.open(f"{stem}.png").size[0] > 400

    code, out, err = sslbench("leaderboard", "results")
    assert code == 0, err
    assert "detection" in out and "resnet18w0.125" in out
    assert "the direction of AP is not known" not in out + err

    code, again_out, err = sslbench("eval", "detection", *NET, *QUICK)
    assert code == 0 and "finished before, nothing is computed" in err and "detecting" not in err
    assert only_record() == result and again_out == out_of_run, "the time of its training included"

    record, written = Path(f"{stem}.json"), Path(f"{stem}.json").read_text()
    record.write_text(written.replace(f'"value": {result.metrics["AP"].value}', '"value": 49.0'))
    assert finished(result, Path("results")) is None, "its metrics were edited"
    record.write_text(written)
    assert finished(result, Path("results")) == result
    Path(f"{stem}.predictions.json").unlink()
    code, _, err = sslbench("eval", "detection", *NET, *QUICK)
    assert code == 0 and "already trained: " in err and "iteration 2 of 2: loss" not in err
    again = only_record()
    assert again.id == result.id and again.metrics == result.metrics
    assert any("trained in an earlier run" in note for note in again.notes)
    assert again.timings["train"] == result.timings["train"] > 0 and again.timings["train iterations"] == 2
    assert not Path(f"{stem}.checkpoints").exists(), "the detector stands in for them"
    assert [json.loads(line)["step"] for line in Path(f"{stem}.metrics.jsonl").read_text().splitlines()] == [1, 2]

    code, out, err = sslbench("inspect", f"{stem}.detector.torch")
    assert code == 0, err
    assert re.search(r"detector +Faster R-CNN, fpn, on resnet18w0.125\n", out)
    assert re.search(r"classes +2: wide, tall\n +trained +2 of 2 iterations of 2 images, on squares.json", out)
    assert re.search(r"loads +loaded 120 of 120 backbone tensors", out), "and its backbone is one of weights' files"
    code, out, err = sslbench("inspect", "--json", f"{stem}.detector.torch")
    assert code == 0 and json.loads(out)["settings"]["recipe"]["pyramid_channels"] == 8


def test_weights_are_loaded_strictly_and_others_stand_beside_when_asked_for(world, sslbench):
    from sslbench.backbones.build import build

    state = build("resnet18w0.125").module.state_dict()
    state["conv1.weight"] = state["conv1.weight"] * 1.01  # no longer what seed 0 gives
    torch.save(state, "w.pth")
    torch.save({name: t for name, t in state.items() if "layer4.1" not in name}, "part.pth")
    code, _, err = sslbench("eval", "detection", "--weights", "part.pth", *NET[2:], *QUICK)
    assert code == 1 and "layer4.1" in err
    code, _, err = sslbench("eval", "detection", "--weights", "w.pth", *NET[2:], *QUICK)
    assert code == 0, err
    result = only_record()
    assert result.weights.loaded == result.weights.total > 0
    assert set(result.floors) == {"constant box"} and "--baseline random" in result.missing_floors["untrained"]

    torch.save({name: t * 1.02 if name == "conv1.weight" else t for name, t in state.items()}, "sup.pth")
    beside = ("--baseline", "random", "--baseline", "sup.pth", "--out", "both")
    code, out, err = sslbench("eval", "detection", "--weights", "w.pth", *NET[2:], *QUICK, *beside)
    assert code == 0, err
    from sslbench.results.records import read_tree

    records = {r.weights.name: r for r in read_tree(Path("both"))}
    untrained, own = records["resnet18w0.125 untrained"], records["w.pth"]
    assert set(records) == {"resnet18w0.125 untrained", "sup.pth", "w.pth"}
    assert own.floors["untrained"]["AP"] == untrained.metrics["AP"].value
    assert untrained.protocol == own.protocol and records["sup.pth"].floors == {}
    for other in (untrained, records["sup.pth"]):
        found = own.variants[f"AP less that of {other.weights.name}"]
        assert found["difference"] == pytest.approx(own.metrics["AP"].value - other.metrics["AP"].value, abs=1e-6)
        assert found["low"] <= found["difference"] <= found["high"]
        verdict = re.search(rf"w.pth: AP \S+, (.+?) the \S+ of {re.escape(other.weights.name)}, trained alike", out)
        words = {(True, False): "clearly above", (False, True): "clearly below", (False, False): "tied with"}
        assert verdict.group(1) == words[found["low"] > 0, found["high"] < 0]
    torch.save(build("resnet18w0.25").module.state_dict(), "wider.pth")
    words = ("--baseline", "wider.pth")
    code, _, err = sslbench("eval", "detection", "--weights", "w.pth", "--device", "cpu", *QUICK, *words)
    assert code == 2 and "--baseline wider.pth is a resnet18w0.25, and --weights w.pth a resnet18w0.125" in err


def test_nothing_is_trained_in_a_dry_run(world, sslbench):
    code, out, err = sslbench("eval", "detection", *NET, *QUICK, "--dry-run")
    assert code == 0, err
    assert re.search(r"pyramid_channels +8 +\[command line\]", out)
    assert re.search(r"iterations +2 +\[flag --limit-iters\]", out)
    assert re.search(r"lr +0.01 +\[benchmark detection/toy\]", out)
    assert re.search(r"rpn_convs +1 +\[default of fpn\]", out)
    assert not Path("results").exists()


MISTAKES = [
    (["architecture=c4", "anchor_sizes=[[32,64]]"], "c4", 2),
    (["batchsize=4"], "no setting 'batchsize' of detection\n  Did you mean 'batch_size'", 2),
    (["lr=fast"], "lr: should be a number", 2),
    (["--batch-size", "4"], "--batch-size does not go with detection", 2),
    (["--preset", "toy"], "published recipes are benchmarks: --benchmark", 2),
    (["--device", "cuda"], "torch finds no CUDA GPU on this machine", 2),
    (["on_error=skip"], "detection reads all images first and stops", 2),
    (["knn"], "detection trains a network and cannot go together with knn", 2),
    (["masks=true"], "has objects without a mask", 1),
]


def test_a_mistake_is_one_message_and_leaves_no_record(world, sslbench, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wrong = []
    for words, expected, exit_code in MISTAKES:
        code, _, err = sslbench("eval", "detection", *NET, *QUICK, *words)
        if code != exit_code or expected not in err or "Traceback" in err:
            wrong.append((words, code, err))
    assert wrong == []
    assert not list(Path().rglob("results/**/*.json"))


def test_mistakes_with_the_data(world, sslbench, monkeypatch):
    manifest("one", 1)
    manifest("other", 3, ("wide", "talll"))

    def run(*words):
        code, _, err = sslbench("eval", "detection", *NET, *words)
        assert "Traceback" not in err
        return code, err

    code, err = run("--benchmark", "detection/toy", "--data", "one.json")
    assert code == 1 and "1 image" in err
    code, err = run("--benchmark", "detection/toy", "--data", "squares.json", "--test-data", "other.json")
    assert code == 1 and "the class 'talll'" in err and "Did you mean 'tall'" in err
    code, err = run("--data", "squares.json")
    assert code == 2 and "--benchmark, the training recipe, is missing" in err and "detection/small" in err
    code, err = run("--benchmark", "detection/voc07", "--data", "squares.json")
    assert code == 2 and "does not go with resnet18w0.125" in err
    code, err = run("--benchmark", "detection/voc07")
    assert code == 2 and "detection/voc07 needs --data" in err
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    code, err = run(*QUICK)
    assert code == 2 and "batch_size=2 images cannot be divided among 3 processes" in err


def test_flags_of_detection_are_refused_elsewhere_and_its_settings_are_shown(world, sslbench):
    code, _, err = sslbench("eval", "knn", *NET, "--limit-iters", "3")
    assert code == 2 and "Only detection has --limit-iters" in err
    code, _, err = sslbench("eval", "knn", *NET, "--baseline", "random")
    assert code == 2 and "Only detection has --baseline" in err
    code, out, _ = sslbench("list", "protocols")
    assert code == 0 and {"detection", "knn", "linear"} <= set(out.split())
    code, out, _ = sslbench("show", "detection")
    assert code == 0 and out.startswith(f"detection, version {VERSION}: ") and "rpn_nms=0.7" in out
    code, out, _ = sslbench("eval", "detection", "--help")
    assert code == 0 and "Settings of detection" in out and "--baseline" in out


def test_an_image_that_is_too_narrow_to_resize_is_named_before_training(world, sslbench):
    content = json.loads(Path("squares.json").read_text())
    content["images"][4] |= {"width": 3000, "height": 3}
    Path("squares.json").write_text(json.dumps(content))
    code, _, err = sslbench("eval", "detection", *NET, *QUICK)
    assert code == 1 and "squares_4.png, 3000 x 3 pixels" in err and "max_size_t" in err
    assert not list((world / "results").rglob("*.*"))


def test_the_bundled_shapes_are_named_where_no_data_are_given(sslbench):
    words = ("eval", "detection", "--benchmark", "detection/toy", "--weights", "random", "--backbone", "resnet18w0.125")
    code, _, err = sslbench(*words, "--dry-run")
    assert code == 0 and "no --data: using kwcoco's toy shapes (kwcoco:shapes64-128)" in err
    assert "the same detector is also trained" not in err, "only where the benchmark is not named either"


@pytest.mark.parametrize(("seconds", "line"), [((3.0, None), "in all  3 s  [without b]"), ((None, None), "")])
def test_a_sum_of_estimates_tells_what_it_leaves_out(seconds, line, capsys):
    stages = tuple(Stage(name, time) for name, time in zip("ab", seconds, strict=True))
    _print_estimate(Estimate(stages, None, 1e9, 1e9))
    out = capsys.readouterr().out
    assert line in out and ("in all" in out) == bool(line)
