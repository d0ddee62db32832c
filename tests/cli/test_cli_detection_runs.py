"""Detection that is interrupted, run by several processes, without --data, in a suite, from Python, and data for it."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from helpers import two_processes
from test_cli_detection import NET, QUICK, manifest, only_record, world

from sslbench.backbones.build import build

__all__ = ["world"]  # the fixture: ten pictures in the current folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_saves_a_checkpoint_that_inspect_knows_and_the_same_command_continues(
    world, sslbench, monkeypatch, number
):
    from sslbench.cli import terminal

    def stop(self, line):
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(terminal.ProgressLines, "line", stop)
        code, _, err = sslbench("eval", "detection", *NET, *QUICK)
    assert code == 128 + number
    assert f"stopped by signal {int(number)} after update 1 of 2; everything is saved\n  Run the same command" in err
    [checkpoint] = Path().rglob("*.ckpt")
    assert not list(Path().rglob("results/**/*.json"))

    code, out, err = sslbench("inspect", str(checkpoint))
    assert code == 0, err
    assert re.search(r"what +checkpoint of a detector's training; not finished: the same command continues", out)
    assert (
        re.search(r"trained +1 of 2 iterations of 2 images, on squares.json", out) and "fpn, on resnet18w0.125" in out
    )

    code, _, err = sslbench("eval", "detection", *NET, *QUICK)
    assert code == 0 and "continuing from" in err and "iteration 2 of 2: loss" in err
    assert any("resumed after iteration 1" in note for note in only_record().notes)


def test_a_loss_that_is_not_a_number_is_one_message_that_suggests_a_lower_rate(world, sslbench):
    code, _, err = sslbench("eval", "detection", *NET, *QUICK, "lr=1e30")
    assert code == 1 and "Try a lower rate (lr=1e+29; it is 1e+30)" in err and "Traceback" not in err
    assert "resnet18w0.125 untrained: the " in err
    assert not list(Path().rglob("results/**/*.json"))


@pytest.mark.parametrize("baseline", ["random", "other.pth"])
def test_a_baseline_that_diverges_is_marked_and_costs_nothing_but_itself(world, sslbench, monkeypatch, baseline):
    from sslbench.evaluation import on_objects
    from sslbench.train.loop import NotFiniteError

    order, run_backend = [], on_objects.run_backend

    def diverging(settings, backbone, *given, **named):
        order.append(not order)
        if len(order) > 1:
            raise NotFiniteError("the loss is inf in iteration 2 of 2", "Try a lower rate")
        return run_backend(settings, backbone, *given, **named)

    monkeypatch.setattr(on_objects, "run_backend", diverging)
    state = build("resnet18w0.125").module.state_dict()
    torch.save(state, "w.pth")
    torch.save({**state, "conv1.weight": state["conv1.weight"] * 1.1}, "other.pth")
    words = ("--weights", "w.pth", "--device", "cpu", *QUICK, "--baseline", baseline)
    code, out, err = sslbench("eval", "detection", *words)
    assert code == 0 and order == [True, False], err
    result = only_record()
    assert result.weights.name == "w.pth" and result.metrics["AP"].value is not None
    reason = "the loss is inf in iteration 2 of 2"
    if baseline == "random":
        assert result.missing_floors["untrained"].startswith("its training diverged: resnet18w0.125 untrained: ")
        assert reason in result.missing_floors["untrained"] and "no floor 'untrained': its training diverged" in out
    else:
        assert any(
            f"no comparison with other.pth: its training diverged: other.pth: {reason}" in n for n in result.notes
        )
    assert set(result.floors) == {"constant box"} and result.floors["constant box"]["AP"] is not None


def eval_in(rank, folder, words):
    """What `sslbench WORDS` in that folder exits with."""
    from sslbench.cli.main import main

    os.chdir(folder)
    torch.set_num_threads(1)
    with pytest.raises(SystemExit) as ended:
        main(["eval", "detection", *words])
    return ended.value.code


def test_two_processes_write_one_record_and_find_what_one_finds(world, sslbench):
    assert two_processes.run(eval_in, str(world), [*NET, *QUICK]) == [0, 0]
    result = only_record()
    [predictions], [detector] = (list(Path("results").rglob(f"*{end}")) for end in (".predictions.json", ".torch"))
    first = predictions.read_text()
    steps = [json.loads(line)["step"] for line in detector.with_suffix("").with_suffix(".metrics.jsonl").open()]
    assert steps == [1, 2] and result.metrics["AP"].n == 2

    predictions.unlink()
    code, _, err = sslbench("eval", "detection", *NET, *QUICK)
    assert code == 0 and "already trained" in err
    assert predictions.read_text() == first and only_record().metrics == result.metrics


SMALLER = [word for word in QUICK if word not in ("--benchmark", "detection/toy", "--data", "squares.json")]


def test_without_data_the_untrained_backbone_stands_beside(world, sslbench, monkeypatch):
    """Drawn shapes: what they can show is whether the weights are better than none."""
    Path("benchmarks/detection").mkdir(parents=True)
    Path("benchmarks/detection/toy.yaml").write_text("extends: detection/_cpu\ntitle: toys\ndata: kwcoco:shapes8-64\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(world))
    state = build("resnet18w0.125").module.state_dict()
    torch.save({**state, "conv1.weight": state["conv1.weight"] * 1.1}, "w.pth")
    words = ("--weights", "w.pth", "--device", "cpu", *SMALLER)
    code, out, err = sslbench("eval", "detection", *words)
    assert code == 0, err
    assert "no --data: using kwcoco's toy shapes" in err and "also trained from the untrained" in err
    assert re.search(r"^w.pth: AP .* of resnet18w0.125 untrained, trained alike", out, re.MULTILINE)
    code, out, err = sslbench("eval", "detection", *words, "--no-floors", "--dry-run")
    assert code == 0 and "for comparison" not in out
    code, out, err = sslbench("eval", "detection", *words, "--dry-run")
    assert code == 0 and re.search(r"random +resnet18w0.125, for comparison +\[baseline\]", out)


def test_a_suite_may_have_detection(world, sslbench):
    Path("mixed.yaml").write_text("title: both\nbenchmarks: [detection/toy, knn/digits]\n")
    Path("alone.yaml").write_text("title: one\nbenchmarks: [detection/toy]\n")
    short = ["--data", "squares.json", *SMALLER, "--dry-run"]
    code, out, err = sslbench("eval", "--suite", "mixed.yaml", *NET, "--dry-run")
    assert code == 0 and "detection (detection/toy v2)" in out and "knn (knn/digits" in out, err
    for words in (["detection", "--suite", "mixed.yaml"], ["--suite", "alone.yaml"]):
        code, out, err = sslbench("eval", *words, *NET, *short)
        assert code == 0 and "detection (detection/toy v2)" in out, err
    code, out, err = sslbench("eval", "knn", "--suite", "mixed.yaml", *NET, "--dry-run")
    assert code == 0 and "knn" in out and "detection" not in out, err


def test_blocks_that_c4_cannot_take_are_refused(world, sslbench):
    for name in ("resnet18", "resnet34"):
        words = ("--weights", "random", "--backbone", name, "--benchmark", "detection/voc07", "--data", "squares.json")
        code, _, err = sslbench("eval", "detection", *words)
        assert code == 2 and f"architecture=c4 does not go with {name}" in err and "Use architecture=fpn" in err


def test_images_and_strides_that_weights_were_not_made_for_are_refused(world, sslbench):
    from sslbench.weights.save import save

    state = build("resnet50w0.125").module.state_dict()
    save(Path("own.torch"), state, backbone="resnet50w0.125", metadata={})
    names = {"model": {f"backbone.bottom_up.{key}": t for key, t in _detectron2(state).items()}}
    names["model"]["pixel_mean"] = torch.tensor([103.53, 116.28, 123.675])
    torch.save(names, "msra.pth")

    def run(weights, *words):
        code, _, err = sslbench(
            "eval", "detection", "--weights", weights, "--device", "cpu", *QUICK, *words, "--dry-run"
        )
        return code, err

    assert run("own.torch")[0] == 0
    code, err = run("own.torch", "channel_order=BGR")
    assert code == 2 and "channel_order=BGR, but weights of format sslbench take RGB" in err
    code, err = run("own.torch", "stride_in_1x1=true")
    assert code == 2 and "own.torch is of format sslbench, with strides in the 3x3" in err
    code, err = run("msra.pth")
    assert code == 2 and "channel_order=RGB, but the pixel_mean in msra.pth is in the order BGR" in err
    assert run("msra.pth", "channel_order=BGR", "stride_in_1x1=true")[0] == 0
    renamed = {f"net.{key}": t for key, t in state.items()}
    torch.save(renamed | {"net.extra.weight": torch.zeros(3)}, "wrong.pth")
    code, err = run("wrong.pth")
    assert code == 1 and "wrong.pth has key names of no known format" in err and "net." in err


def _detectron2(state):
    from sslbench.weights.formats.tables import load_table

    return load_table("detectron2").from_canonical({k: t for k, t in state.items() if "num_batches" not in k})


def voc(root, n=4, *, broken="", box=(4, 6, 28, 18)):
    """A tree of n pictures with one object each; the annotation of the first is `broken` if that is given."""
    import numpy as np
    from PIL import Image

    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        Path(root, part).mkdir(parents=True)
    edges = "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True))
    for i in range(n):
        Image.fromarray(np.full((64, 64, 3), 20 * i, np.uint8)).save(f"{root}/JPEGImages/{i}.jpg")
        text = f"<annotation><size><width>64</width><height>64</height></size><object><name>cat</name><bndbox>{edges}"
        text += "</bndbox></object></annotation>"
        Path(root, "Annotations", f"{i}.xml").write_text(broken if broken and not i else text)
    for split, members in (("trainval", range(n - 2)), ("test", range(n - 2, n))):
        Path(root, "ImageSets/Main", f"{split}.txt").write_text("".join(f"{i}\n" for i in members))
    return str(root)


def test_annotations_that_cannot_be_used_are_named_before_anything_is_trained(world, sslbench):
    def run(data):
        words = ["--data" if w == "--data" else data if w == "squares.json" else w for w in QUICK]
        code, _, err = sslbench("eval", "detection", *NET, *words, "--dry-run")
        assert "Traceback" not in err
        return code, err

    assert run(voc("fine"))[0] == 0
    code, err = run(voc("broken", broken="<annotation><object>"))
    assert code == 1 and "0.xml" in err
    code, err = run(voc("single", 3))
    assert code == 1 and "single" in err and "1 image" in err
    code, err = run(voc("outside", box=(70, 70, 90, 90)))
    assert code == 1 and "outside" in err
    manifest("far", 4)
    content = json.loads(Path("far.json").read_text())
    content["annotations"][0]["bbox"] = [200, 200, 10, 10]
    Path("far.json").write_text(json.dumps(content))
    code, err = run("far.json")
    assert "far.json" in err and re.search(r"outside|left out", err), err


def test_from_python_a_module_is_evaluated_and_left_alone(world):
    import torchvision

    import sslbench
    from sslbench.errors import UsageError

    torch.manual_seed(0)
    module = torchvision.models.resnet18().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    random_state = torch.get_rng_state()
    quick = dict(word.split("=") for word in QUICK if "=" in word)
    settings = {key: [int(value)] if key == "min_sizes_train" else int(value) for key, value in quick.items()}
    settings |= {"iterations": 1, "freeze_at": 5}
    results = sslbench.evaluate_detection(
        module, "squares.json", recipe="detection/toy", settings=settings, baselines=["random"]
    )
    assert [r.weights.name for r in results] == ["resnet18 untrained", "resnet18"]
    assert set(results[1].floors["untrained"]) == set(results[1].metrics)
    assert any("The backbone was frozen (freeze_at=5)" in note for note in results[1].notes)
    assert torch.equal(random_state, torch.get_rng_state()) and module.training
    assert all(torch.equal(before[n], t) for n, t in module.state_dict().items())
    detector = sslbench.load_detector(f"{results[1].file.with_suffix('')}.detector.torch")
    state = detector.detector.state_dict()
    assert torch.equal(state["backbone.bottom_up.layer1.0.conv1.weight"], before["layer1.0.conv1.weight"])
    [found] = detector.predict(["squares_0.png"])
    assert len(found.boxes) == len(found.scores) == len(found.labels) and set(found.labels) <= {"wide", "tall"}
    with pytest.raises(UsageError, match="cannot be built around a Linear\nGive a ResNet"):
        sslbench.evaluate_detection(torch.nn.Linear(2, 2), "squares.json", recipe="detection/toy")
