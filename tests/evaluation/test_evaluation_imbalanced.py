"""Classes of very unequal sizes lead with balanced accuracy, in everything that a leading metric decides."""

import dataclasses

import numpy as np
import pytest
from helpers.targets import class_pictures
from PIL import Image
from sklearn import metrics

from sslbench import evaluate
from sslbench.evaluation import make_task
from sslbench.evaluation.preparation import by_sizes
from sslbench.features.external import read_in_memory
from sslbench.library.benchmarks import Benchmark
from sslbench.library.presets import load_preset
from sslbench.protocols._parts.selection import headline_by_blocks
from sslbench.results import records
from sslbench.targets.imbalanced import Imbalanced

QUICK = {"linear": {"c": (1e-4, 1.0)}, "low-shot": {"k": (2,), "draws": 2}, "lsr": {"k": (2,), "draws": 2}}


def rare(n, seed, share=20):
    """Features and labels of three classes, of which 'rare' has one sample of `share`."""
    rng = np.random.default_rng(seed)
    y = np.where(np.arange(n) % share == 0, 2, np.arange(n) % 2)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    x[np.arange(n), y] += 1.5
    return x, [("even", "odd", "rare")[c] for c in y]


def test_the_leading_metric_is_that_of_scikit_learn_at_once_and_by_blocks():
    rng = np.random.default_rng(0)
    y = np.minimum(rng.geometric(0.4, 9000) - 1, 7)
    scores = rng.normal(size=(9000, 9)) + 2 * np.eye(9)[y]
    expected = metrics.recall_score(y, scores.argmax(1), labels=np.unique(y), average="macro")
    labels = Imbalanced(tuple("abcdefghi"), y)  # 'i' has no sample
    assert Imbalanced.headline(y, scores) == pytest.approx(expected, abs=1e-12)
    assert headline_by_blocks(labels, lambda rows: scores[rows]) == pytest.approx(expected, abs=1e-12)
    assert Imbalanced.headline(np.array([0, 1]), np.zeros((2, 2))) == 0  # a tie is never right


@pytest.mark.parametrize("protocol", ["knn", "linear", "svm", "low-shot", "lsr"])
def test_protocols_on_features_lead_with_it(protocol, tmp_path):
    train, test = rare(200, 0), rare(100, 1)
    settings = {protocol: QUICK[protocol]} if protocol in QUICK else {}
    (result,) = evaluate(None, train, test, protocols=protocol, settings=settings, out=tmp_path)
    assert (result.headline, result.data.labels) == ("balanced_accuracy", "imbalanced")
    assert {"top1", "macro_auroc"} <= set(result.metrics)
    assert result.floors["chance"]["balanced_accuracy"] == pytest.approx(100 / 3)
    assert result.floors["majority"]["balanced_accuracy"] == pytest.approx(100 / 3)
    scores = records.read_scores(records.scores_path(result))
    expected = metrics.balanced_accuracy_score(scores.labels, scores.scores.argmax(1))
    if protocol in ("knn", "linear", "svm"):  # others are means over draws
        assert result.metrics["balanced_accuracy"].value == pytest.approx(100 * expected, abs=1e-6)
    if protocol == "knn":
        k = next(name for name in result.variants if name != "k=1")
        (alone,) = evaluate(None, train, test, protocols="knn", settings={"knn": {"k": (int(k[2:]),)}}, out=tmp_path)
        assert result.variants[k]["balanced_accuracy"] == pytest.approx(alone.metrics["balanced_accuracy"].value)


def test_a_head_is_chosen_by_right_predictions_of_each_class(tmp_path):
    data = []
    for n, seed in ((60, 0), (30, 1)):
        images = class_pictures(n, seed).images
        data.append((images.array, ["rare" if i % 15 == 0 else "usual" for i in range(n)]))
    quick = {"updates": 10, "batch_size": 12, "augment": "none", "select_on": "test"}
    own = {
        "backbone": "resnet18w0.125",
        "device": "cpu",
        "workers": 0,
        "overlaps": False,
        "floors": False,
        "out": None,
        "resize": (16, 16),
    }

    def run(*lr):
        settings = {"linear-online": {**quick, "lr": lr}}
        return evaluate("random", *data, protocols="linear-online", settings=settings, crop=None, **own)[0]

    both = run(0.001, 1.0)
    assert both.headline == "balanced_accuracy" and both.selected["score"] * 100 == pytest.approx(
        both.metrics["balanced_accuracy"].value, abs=1e-4
    )
    ((name, other),) = both.variants.items()
    alone = run(float(name.rpartition("=")[2]))
    assert other["balanced_accuracy"] == pytest.approx(alone.metrics["balanced_accuracy"].value, abs=1e-4)


def test_published_settings_and_metrics_of_their_own_stay_and_so_do_classes_of_like_sizes():
    unequal = read_in_memory(rare(200, 0), rare(100, 1), name="x", test_fraction=0.2, seed=0)
    equal = read_in_memory(rare(200, 0, 19), rare(100, 1, 19), name="x", test_fraction=0.2, seed=0)
    knn = make_task("knn", {})
    led = by_sizes(unequal, knn)
    assert isinstance(led.train.target, Imbalanced) and isinstance(led.test.target, Imbalanced)
    assert led.fingerprints != unequal.fingerprints and led.features_sha256 == unequal.features_sha256
    assert by_sizes(equal, knn) is equal
    published = Benchmark(name="knn/mine", version=1, protocol="knn", sha256="0", title="", data="x")
    for task in (
        make_task("knn", {}, preset=load_preset("knn/dino")),
        make_task("knn", {}, benchmark=published),
        make_task("clustering", {}),
        make_task("robustness", {}),
    ):
        assert by_sizes(unequal, task) is unequal
    one = dataclasses.replace(unequal, test=unequal.train)
    assert (found := by_sizes(one, knn)).train is found.test


def test_a_table_shows_top1_beside_it_and_the_record_is_opened_again(tmp_path, monkeypatch, sslbench):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for split, n in (("train", 33), ("test", 22)):
        for i in range(n):
            name = "rare" if i % 11 == 0 else "usual"
            (tmp_path / "photos" / split / name).mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 120, (8, 8, 3)) + (120 if name == "rare" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / split / name / f"{i}.png")
    words = ("--weights", "pixels:2", "--data", "photos", "--workers", "0")
    code, out, err = sslbench("eval", "knn", "svm", "--preset", "knn/npid", *words)
    assert code == 0, err
    assert "is imbalanced: 30 images of 'usual', 3 of 'rare': balanced accuracy leads" in err
    lines = [" ".join(line.split()[:3]) for line in out.splitlines() if line.startswith(("knn", "svm"))]
    assert lines[0].startswith("knn (knn/npid) top1")
    assert [line.split()[1] for line in lines[1:4]] == ["balanced_accuracy", "macro_auroc", "top1"]
    (record,) = (each for each in records.read_tree(tmp_path / "results") if each.protocol.name == "svm")
    code, _, err = sslbench("show", record.file, "--out", "page")
    assert code == 0, err
