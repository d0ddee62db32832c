"""Keypoints on the command line: training, the record, compare, score, show, refusals."""

import contextlib
import csv
import dataclasses
import io
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.drawn_figures import NAMES, write

from sslbench.cli.main import main
from sslbench.evaluation import on_objects
from sslbench.metrics.detection import Detections
from sslbench.results import records

SETTINGS = """protocol: detection
version: 1
title: keypoints of stick figures
samples: {train: 10}
settings:
  architecture: fpn
  keypoints: true
  freeze_at: 0
  norm: batch
  pyramid_channels: 16
  box_channels: 32
  keypoint_convs: 2
  keypoint_channels: 32
  rpn_samples: 64
  roi_samples: 32
  rpn_post_nms_train: 60
  rpn_post_nms_test: 30
  precise_bn: 1
  anchor_sizes: [[16], [32], [64], [96], [128]]
  min_sizes_train: [96]
  max_size_train: 128
  min_size_test: 96
  max_size_test: 128
  batch_size: 4
  iterations: 2
  steps: [1]
  warmup_iterations: 1
  lr: 0.02
"""


@dataclasses.dataclass
class Ended:
    """What a command printed, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


def run(arguments):
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_:
        main(list(map(str, arguments)))
    return Ended(exit_.value.code, out.getvalue(), err.getvalue())


def moved(truth):
    """The true objects and keypoints, moved by a pixel or two."""
    rng = np.random.default_rng(0)
    points = truth.keypoints + rng.normal(0, [1, 1, 0], truth.keypoints.shape)
    points[..., 2] = 1
    boxes = (truth.boxes + rng.normal(0, 1, truth.boxes.shape)).astype(np.float32)
    scores = rng.uniform(0.3, 1, len(truth)).astype(np.float32)
    return Detections(truth.images, boxes, scores, truth.labels, keypoints=points)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A detector of figures, by the real command; folder, output and record.

    After two updates it finds nothing yet, so the true figures, moved a little, stand in for what it finds.
    """
    folder = tmp_path_factory.mktemp("figures")
    write(folder / "train", 12)
    write(folder / "test", 8, start=1000)
    (folder / "recipe.yaml").write_text(SETTINGS)
    command = ["eval", "detection", "--weights", "random", "--backbone", "resnet_basic_1-1-1-1w0.25"]
    command += ["--data", str(folder / "train/person_keypoints.json")]
    command += ["--test-data", str(folder / "test/person_keypoints.json")]
    command += ["--benchmark", str(folder / "recipe.yaml"), "-o", str(folder / "out")]
    run_backend = on_objects.run_backend

    def run_and_move(settings, backbone, data, *given, **named):
        done = run_backend(settings, backbone, data, *given, **named)
        assert done.found.keypoints.shape[1:] == (len(NAMES), 3)
        return dataclasses.replace(done, found=moved(data.test.truth(skeleton=data.test.target.skeleton)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_objects, "run_backend", run_and_move)
        done = run(command)
    assert done.returncode == 0, done.stderr
    (path,) = (folder / "out/detection").glob("*[0-9a-f].json")
    return folder, command, done.stdout, records.read(path)


def test_the_record_has_the_keypoints_above_the_mean_pose(trained):
    folder, _, out, result = trained
    value = result.metrics["keypoint_AP"]
    assert value.low <= value.value <= value.high
    floor = result.floors["mean pose"]["keypoint_AP"]
    assert value.value > floor + 10, (value, floor)
    assert result.floors["constant box"]["keypoint_AP"] < value.value
    assert list(result.variants["per keypoint, AP"]) == list(NAMES)
    assert "per keypoint: head" in out and "mean pose in the detected boxes: keypoint_AP" in out
    assert next((folder / "out/detection").glob("*.png")).stat().st_size > 10_000


def test_a_repeated_command_computes_nothing(trained):
    _, command, _, result = trained
    again = run(command)
    assert again.returncode == 0 and "nothing is computed" in again.stderr
    assert records.read(result.file).metrics == result.metrics


def test_its_predictions_score_the_same_elsewhere(trained, tmp_path):
    folder, _, _, result = trained
    (predictions,) = records.predictions_paths(result).values()
    data = str(folder / "test/person_keypoints.json")
    done = run(["score", str(predictions), "--data", data, "--name", "mine", "-o", str(tmp_path)])
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "detections").glob("*[0-9a-f].json")
    scored = records.read(path)
    for name, metric in result.metrics.items():
        assert scored.metrics[name].value == pytest.approx(metric.value, abs=1e-9), name
    rows = json.loads(predictions.read_text())
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps([{k: v for k, v in row.items() if k != "bbox"} for row in rows]))
    done = run(["score", str(alone), "--data", data, "-o", str(tmp_path / "alone")])
    assert done.returncode == 0 and "has no boxes" in done.stdout + done.stderr
    (path,) = (tmp_path / "alone/detections").glob("*[0-9a-f].json")
    assert records.read(path).metrics["keypoint_AP"].value == pytest.approx(result.metrics["keypoint_AP"].value)
    shifted = tmp_path / "shifted.json"
    for row in rows:
        row["keypoints"] = [v + 6 * (i % 3 == 0) for i, v in enumerate(row["keypoints"])]
    shifted.write_text(json.dumps(rows))
    assert run(["score", str(shifted), "--data", data, "-o", str(tmp_path / "b")]).returncode == 0
    (other,) = (tmp_path / "b/detections").glob("*[0-9a-f].json")
    done = run(["compare", str(scored.file), str(other), "--metric", "keypoint_AP"])
    assert done.returncode == 0 and "keypoint_AP" in done.stdout
    for broken, words in (([1, 2, 3], "should be 15 numbers"), (None, "should be 15 numbers")):
        rows[1]["keypoints"] = broken
        shifted.write_text(json.dumps(rows))
        done = run(["score", str(shifted), "--data", data, "-o", str(tmp_path / "c")])
        assert done.returncode in (1, 2) and words in done.stderr and "Traceback" not in done.stderr
    done = run(["score", str(predictions), "--data", data, "--oks-sigma", "0.1", "-o", str(tmp_path / "d")])
    assert done.returncode == 2 and "--oks-sigma has no effect" in done.stderr


def test_show_writes_the_scores_of_each_keypoint(trained, tmp_path):
    _, _, _, result = trained
    done = run(["show", str(result.file), "-o", str(tmp_path / "page")])
    assert done.returncode == 0, done.stderr
    with next(tmp_path.rglob("keypoints.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["keypoint"] for row in rows] == list(NAMES)
    for row in rows:
        assert float(row["AP"]) == pytest.approx(result.variants["per keypoint, AP"][row["keypoint"]], abs=1e-3)
        assert float(row["AP low"]) <= float(row["AP"]) <= float(row["AP high"])


MISSING = [
    ({"sigmas": []}, [], "sigmas of the keypoints head"),
    ({"keypoints": ["a", "b", "c", "d", "e"]}, [], "no name has the word left or right"),
    ({"keypoints": []}, [], "has no keypoints"),
    ({}, ["mirrored_keypoints=head:tail"], "'head:tail' is not a pair"),
    ({}, ["keypoints=false"], "no effect without keypoints"),
]


def test_what_is_missing_is_said_before_training(tmp_path):
    for category, settings, words in MISSING:
        data = str(write(tmp_path / "data", 6, **category))
        (tmp_path / "recipe.yaml").write_text(SETTINGS)
        if category.get("keypoints") == []:
            content = json.loads(Path(data).read_text())
            for row in content["annotations"]:
                row["keypoints"] = []
            content["categories"][0] |= {"skeleton": [], "sigmas": []}
            Path(data).write_text(json.dumps(content))
        done = run(
            [
                *("eval", "detection", "--weights", "random", "--backbone", "resnet_basic_1-1-1-1w0.25"),
                *("--data", data, "--benchmark", str(tmp_path / "recipe.yaml"), "-o", str(tmp_path / "out"), *settings),
            ]
        )
        assert done.returncode in (1, 2) and words in done.stderr and "Traceback" not in done.stderr, done.stderr
