"""`eval --features ... --dry-run`: shapes, settings and estimate of embeddings made elsewhere."""

import numpy as np
import pytest

from sslbench.evaluation import estimate
from sslbench.features import external
from sslbench.features.external import read_train_test

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
