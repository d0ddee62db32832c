"""`sslbench eval --weights RUN/checkpoints` as a user types it."""

import csv
import json

import pytest

from sslbench import evaluate_checkpoints
from sslbench.backbones.build import build
from sslbench.errors import UsageError
from sslbench.evaluation import RunSettings
from sslbench.preprocessing import Preprocessing
from sslbench.train import checkpoints

BACKBONE = "resnet18w0.125"
DATA = ("--data", "sklearn:digits", "--limit", "100", "--device", "cpu", "--workers", "0", "--no-overlaps")


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The checkpoints of a run after 5 and 10 updates."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")  # one line per row
    preprocessing = json.dumps(Preprocessing(resize=(16, 16), crop=(16, 16)).record())
    for step in (10, 5):
        content = {
            "backbone": BACKBONE,
            "state_dict": build(BACKBONE, seed=step).module.state_dict(),
            "metadata": {"epochs": step / 5, "preprocessing": preprocessing},
        }
        checkpoints.write(tmp_path / "runs" / "a" / "checkpoints", step, content, keep=9)
    return tmp_path


def test_every_checkpoint_has_a_row_and_the_second_time_nothing_is_computed(run, sslbench):
    words = ("eval", "knn", "--weights", "runs/a/checkpoints", *DATA)
    code, out, err = sslbench(*words)
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if line.startswith("knn  ")]
    assert [row[:4] for row in rows] == [["knn", "res5avg", "5", "1"], ["knn", "res5avg", "10", "2"]]
    assert "untrained" in out and "top1 of update 10 less update 5: " in out and "paired over 100 samples" in out
    with (run / "results" / "training-a-knn.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [f"{float(row['value']):.2f}" for row in table] == [row[5] for row in rows]
    assert (run / "results" / "training-a-knn.png").read_bytes()[:4] == b"\x89PNG"
    code, again, err = sslbench(*words)
    assert code == 0 and err.count("already computed") == 2 and again == out


def test_a_damaged_checkpoint_is_a_hole_and_the_others_are_shown(run, sslbench):
    path = run / "runs" / "a" / "checkpoints" / "step_000000005.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    code, out, err = sslbench("eval", "knn", "--weights", "runs/a/checkpoints", *DATA)
    assert code == 1 and "step_000000005.ckpt" in err
    assert len([line for line in out.splitlines() if line.startswith("knn  ")]) == 1


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("runs", "Give a weights file, or RUN/checkpoints. It holds: w.torch."),
        ("runs/a", "Did you mean runs/a/checkpoints?"),
    ],
)
def test_a_folder_without_checkpoints_is_one_message(folder, message, run, sslbench):
    (run / "runs" / "w.torch").touch()
    code, out, err = sslbench("eval", "knn", "--weights", folder, *DATA)
    assert (code, out) == (2, "")
    assert f"--weights {folder}: this folder has no checkpoints of a pretraining run" in err and message in err
    assert not (run / "results").exists()


def test_from_python(run):
    settings = RunSettings(device="cpu", workers=0, floors=False, overlaps=False)
    (curve,) = evaluate_checkpoints("runs/a/checkpoints", "sklearn:digits", protocols="knn", run=settings, limit=200)
    assert [(point.at.step, point.at.epoch) for point in curve.points] == [(5, 1.0), (10, 2.0)]
    with pytest.raises(UsageError, match="has no checkpoints of a pretraining run"):
        evaluate_checkpoints("runs", "sklearn:digits")
