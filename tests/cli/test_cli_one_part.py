"""Evaluations of one part, over a training, and on dense data."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from sslbench import evaluate_checkpoints
from sslbench.backbones.build import build
from sslbench.errors import UsageError
from sslbench.evaluation import RunSettings, estimate
from sslbench.features import external
from sslbench.features.external import read_train_test
from sslbench.preprocessing import Preprocessing
from sslbench.results.records import read_scores, read_tree, scores_path
from sslbench.train import checkpoints

OWN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net")


def flat(world):
    """The pictures of photos/train in one folder without classes."""
    (world / "flat").mkdir()
    for file in (world / "photos" / "train").rglob("*.png"):
        file.rename(world / "flat" / f"{file.parent.name}-{file.name}")


def test_geometry_of_a_folder_without_classes(world, sslbench):
    flat(world)
    code, out, err = sslbench("eval", "geometry", *OWN, "--data", "flat")
    assert code == 0, err
    assert "36 samples, not split" in err and "rankme" in out
    found = {r.weights.name: r for r in read_tree(Path("results"))}
    result = found["w.pth"]
    assert result.data.labels == "none" and result.data.test.n_used == 36
    assert result.data.train.fingerprint == result.data.test.fingerprint
    spread = {"rankme", "effective_rank", "alpha_req", "uniformity", "feature_std"}
    assert set(result.metrics) == spread | {"two_nn", "mle_dimension"}
    assert 1 <= result.metrics["rankme"].low <= result.metrics["rankme"].value <= 12, "a rank, not a percentage"
    assert set(result.floors) == {"pixels", "untrained"} and result.floors["pixels"]["rankme"] > 1
    assert read_scores(scores_path(result)).scores.shape == (36, 0)
    code, out, err = sslbench("leaderboard", "results", "--csv", "board.csv", "--html", "board.html")
    assert code == 0, err
    with Path("board.csv").open() as file:
        values = {
            row["weights"]: [v for k, v in row.items() if k.startswith("geometry/flat")] for row in csv.DictReader(file)
        }
    assert str(result.metrics["rankme"].value)[:6] in " ".join(values["w.pth"])


def test_what_needs_labels_still_says_so(world, sslbench):
    flat(world)
    code, _, err = sslbench("eval", "geometry", "knn", *OWN, "--data", "flat")
    assert code == 1 and "have no labels" in err and not Path("results").exists()
    code, _, err = sslbench("eval", "clustering", *OWN, "--data", "flat")
    assert code == 1 and "have no labels" in err


def test_labels_that_do_not_go_together_do_not_stop_what_needs_none(world, sslbench):
    (world / "photos" / "test" / "blue").rename(world / "photos" / "test" / "violet")
    code, _, err = sslbench("eval", "geometry", *OWN, "--data", "photos", "--no-floors")
    assert code == 0, err
    (result,) = read_tree(Path("results"))
    assert result.data.labels == "none" and result.data.test.n_used == 15


def test_geometry_of_labelled_data_has_its_alignment_and_its_part(world, sslbench):
    for part, n in (("test", 15), ("train", 36)):
        code, _, err = sslbench(
            *("eval", "geometry", *OWN, "--data", "photos", "--no-floors", f"part={part}", "--out", part)
        )
        assert code == 0, err
        (result,) = read_tree(Path(part))
        assert "alignment" in result.metrics and result.data.test.n_used == n
        assert read_scores(scores_path(result)).labels.shape == (n,)


def test_embeddings_without_labels(world, sslbench):
    np.save("e.npy", np.random.default_rng(0).normal(size=(40, 5)).astype(np.float32))
    code, _, err = sslbench("eval", "geometry", "--features", "e.npy")
    assert code == 0, err
    code, _, err = sslbench("eval", "knn", "--features", "e.npy")
    assert code == 2 and "--features needs --labels" in err and "geometry" in err


@pytest.mark.parametrize("floors", [(), ("--no-floors",)])
def test_leave_one_out_scores_every_picture_of_data_without_parts(world, sslbench, floors):
    code, _, err = sslbench(
        "eval", "knn", *OWN, "--data", "photos/train", "k=3", "leave_one_out=true", "--max-memory", "50MB", *floors
    )
    assert code == 0, err
    result = next(r for r in read_tree(Path("results")) if r.weights.name == "w.pth")
    assert result.data.test.n_used == result.data.train.n_used == 36 and "not split" in result.data.how
    assert len(read_scores(scores_path(result)).ids) == 36
    assert result.protocol.settings["leave_one_out"] is True and "max_memory" not in result.protocol.settings


def test_leave_one_out_of_data_with_parts_is_of_train(world, sslbench):
    code, _, err = sslbench("eval", "knn", *OWN, "--data", "photos", "k=3", "leave_one_out=true", "--no-floors")
    assert code == 0, err
    (result,) = read_tree(Path("results"))
    assert result.data.test.n_used == 36 and result.data.test.name == result.data.train.name


def test_memory_and_backend_are_not_part_of_what_was_measured(world, sslbench):
    ids = set()
    for extra in ((), ("--max-memory", "1MB"), ("max_memory=0.5",), ("backend=faiss",)):
        code, _, err = sslbench("eval", "knn", *OWN, "--data", "photos", "k=3", "--no-floors", *extra)
        assert code == 0, err
        (result,) = read_tree(Path("results"))
        ids.add((result.id, json.dumps(result.metrics["top1"].value)))
    assert len(ids) == 1


def test_a_size_that_is_none_is_refused(world, sslbench):
    for wrong in ("lots", "0", "-1GB", "1e400"):
        code, _, err = sslbench("eval", "knn", *OWN, "--data", "photos", "--max-memory", wrong)
        assert code == 2 and "8GB or 500MB" in err, wrong
    code, _, err = sslbench("eval", "lsr", *OWN, "--data", "photos", "--max-memory", "1GB")
    assert code == 2 and "--max-memory does not go with lsr" in err


NET = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--layers", "conv2")
SHORT = ("size=32", "crop=[32,32]", "window=null", "steps=20", "warmup_steps=2", "lr=[0.001]")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("discovery", "--data", "kwcoco:shapes8-64", "method=lost"), "corloc"),
        (("correspondence", "--data", "homography:photos/test", "size=32"), "match_recall@5px"),
        (("segmentation", "--data", "kwcoco:shapes16-64", *SHORT), "mIoU"),
    ],
)
def test_plan_record_and_picture(words, value, world, sslbench):
    code, plan, err = sslbench("eval", *words, *NET, "--dry-run")
    assert code == 0, err
    of_images = plan.partition("preprocessing\n")[2].partition("layers\n")[0]
    assert "mean" in of_images and not {"resize", "crop", "squash", "scales"} & set(of_images.split())
    assert not (world / "results").exists()

    code, out, err = sslbench("eval", *words, *NET)
    assert code == 0, err
    from sslbench.results import records as stored

    (record,) = [each for each in stored.read_tree(Path("results")) if each.weights.name == "w.pth"]
    assert record.metrics[value].low <= record.metrics[value].value <= record.metrics[value].high
    assert {"mean", "std", "origin"} <= set(record.preprocessing)
    assert not {"resize", "crop", "squash", "resized_side", "scales"} & set(record.preprocessing)
    assert "pixels" in record.floors and value in out

    assert stored.picture_path(record).is_file() == (words[0] != "correspondence")
    code, _, err = sslbench("show", record.file, "--out", "seen")
    assert code == 0 and Path("seen/index.html").is_file(), err
    assert len(list(Path("seen").glob("*.png"))) == (3 if words[0] == "correspondence" else 1)

    code, _, err = sslbench("eval", *words, *NET, "--resize", "48")
    assert code == 2 and "--resize has no effect" in err


WORDS = ("--features", "x.npy", "--labels", "y.npy")


@pytest.fixture
def arrays(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(300, 8)).astype(np.float16))
    np.save(tmp_path / "y.npy", np.arange(300) % 3)
    np.save(tmp_path / "x2.npy", rng.normal(size=(60, 8)).astype(np.float16))
    np.save(tmp_path / "y2.npy", np.arange(60) % 3)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_plan_tells_shapes_settings_and_cost_and_computes_nothing(arrays, sslbench, monkeypatch):
    monkeypatch.setattr(external, "_sha256", lambda *parts: pytest.fail("all features were read"))
    code, out, err = sslbench(
        "eval", "knn", "svm", *WORDS, "--test-features", "x2.npy", "--test-labels", "y2.npy", "k=7", "--dry-run"
    )
    assert code == 0, err
    assert "300 x 8 float16, 3 classes, single label" in out and "60 x 8 float16" in out
    assert "command line" in out and "free" in out
    estimated = [line.split()[0] for line in out[out.index("estimate,") :].splitlines()[1:] if "memory" in line]
    assert estimated[:2] == ["knn", "svm"]
    assert not (arrays / "results").exists()


def test_features_without_labels_and_without_an_estimate(arrays, sslbench):
    code, out, err = sslbench("eval", "geometry", "--features", "x.npy", "--no-estimate", "--dry-run")
    assert code == 0 and "all of x.npy" in out and "estimate," not in out, err


def test_what_the_run_would_refuse_the_plan_refuses(arrays, sslbench, monkeypatch):
    code, _, err = sslbench("eval", "finetune", *WORDS, "--dry-run")
    assert code == 2 and "takes images" in err
    monkeypatch.setattr(estimate, "free_memory", lambda: 1000.0)
    code, out, err = sslbench("eval", "knn", *WORDS, "--dry-run")
    assert code == 1 and "knn needs about" in err and "fewer rows" in err and "in all" in out


def test_a_memory_mapped_file_with_its_rows_in_order_is_not_copied(arrays):
    files = [arrays / name for name in ("x.npy", "y.npy", "x2.npy", "y2.npy")]
    pair = read_train_test(*files, label_column=None, test_fraction=0.2, seed=0)
    assert isinstance(pair.train.x, np.memmap) and isinstance(pair.test.x, np.memmap)
    split = read_train_test(*files[:2], None, None, label_column=None, test_fraction=0.2, seed=0)
    assert isinstance(split.whole.x, np.memmap) and len(split.train) + len(split.test) == 300


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
    assert code == 0 and err.count("already computed") == 1 and again == out


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
