"""Pictures of records: the chosen images, and records whose data are gone or changed."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import average_precision_score

from sslbench.cli.main import main
from sslbench.metrics.detection import Detections, Truth
from sslbench.results import records
from sslbench.show.detection import image_f1
from sslbench.show.predictions import image_quality, quality
from sslbench.show.record import choose
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers

NET = ("--weights", "random", "--backbone", "resnet18w0.125", "--no-floors")
COLOURS = {"blue": (30, 30, 200), "green": (30, 200, 30), "red": (200, 30, 30)}


@pytest.fixture
def run(capsys):
    def command(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return command


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for part, n in (("train", 6), ("test", 4)):
        for name, colour in COLOURS.items():
            (tmp_path / "photos" / part / name).mkdir(parents=True)
            for i in range(n):
                pixels = (rng.normal(0, 60, (20, 18, 3)) + colour).clip(0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "photos" / part / name / f"{i}.png")
    return tmp_path


def record_of(protocol):
    [path] = [p for p in Path("results", protocol).glob("*.json") if "predictions" not in p.name]
    return path


def test_best_median_and_worst_are_those_of_a_sort():
    values = np.random.default_rng(0).permutation(21).astype(float)
    best, median, worst = choose(values, 3)
    assert [values[r] for r in best.rows] == [20, 19, 18] and [values[r] for r in worst.rows] == [0, 1, 2]
    assert [values[r] for r in median.rows] == [11, 10, 9]
    few = [row for group in choose(values[:4], 3) for row in group.rows]
    assert sorted(few) == [0, 1, 2, 3]


def test_qualities_against_other_implementations():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(0, 2, (6, 5)).astype(np.int8), rng.normal(size=(6, 5))
    expected = [average_precision_score(y, s) if y.any() else np.nan for y, s in zip(labels, scores, strict=True)]
    np.testing.assert_allclose(quality(MultiLabel, labels, scores), expected)
    numbers = quality(Numbers, np.array([[1.0], [3.0]]), np.array([[1.0], [5.0]]))
    np.testing.assert_allclose(numbers, [0, -2])
    areas = np.array([[[2, 0], [4, 0], [2, 0]], [[1, 2], [2, 2], [1, 3]]]).reshape(2, -1)
    np.testing.assert_allclose(image_quality(areas), [0.5, (1 / 2 + 2 / 3) / 2])


def test_the_f_score_of_boxes():
    box = [0, 0, 10, 10]
    truth = Truth(
        3,
        ("a", "b"),
        np.array([0, 0, 1]),
        np.array([box, [20, 20, 30, 30], box], dtype=np.float32),
        np.array([0, 0, 1]),
        np.zeros(3, bool),
        np.array([False, False, False]),
        np.full(3, 100.0),
    )
    found = Detections(
        np.array([0, 0, 0, 1]),
        np.array([box, box, [20, 20, 30, 30], box], dtype=np.float32),
        np.array([0.9, 0.8, 0.3, 0.9], dtype=np.float32),
        np.array([0, 0, 0, 0]),
    )
    # image 0: one found, one found twice, one below the score; image 1: the wrong class; image 2: nothing to find
    np.testing.assert_allclose(image_f1(truth, found), [0.5, 0.0, 1.0])


@pytest.mark.parametrize("protocol", ["knn", "linear"])
def test_a_record_of_classes_is_shown_and_refused_when_its_data_changed(photos, run, protocol):
    options = ("k=2",) if protocol == "knn" else ()
    code, _, err = run("eval", protocol, *options, *NET, "--data", "photos", "--resize", "32", "--crop", "none")
    assert code == 0, err
    record = record_of(protocol)
    code, _, err = run("show", protocol, record, "--limit", "2", "--out", "out")
    assert code == 0, err
    assert {f.name for f in Path("out").iterdir()} == {"best.png", "median.png", "worst.png", "index.html", "show.json"}
    page = Path("out/index.html").read_text()
    scores = records.read_scores(record)
    margin = quality(Classes, scores.labels, scores.scores)
    assert scores.ids[int(np.argmin(margin))] in page and "http" not in page
    assert json.loads(Path("out/show.json").read_text())["id"] == records.read(record).id

    code, _, err = run("show", "svm", record, "--out", "out2")
    assert code == 2 and f"is a record of {protocol}, not of svm" in err
    Image.new("RGB", (18, 20)).save("photos/test/red/0.png")
    code, _, err = run("show", record, "--out", "out2")
    assert code == 1 and "is not the data of" in err and "images or labels have changed" in err
    code, _, err = run("show", record, "--data", "elsewhere", "--out", "out2")
    assert code == 2 and "cannot be used" in err and "elsewhere" in err
    record.with_suffix(".scores.npz").unlink()
    code, _, err = run("show", record, "--out", "out2")
    assert code == 1 and "has no file of scores beside it" in err
    assert not Path("out2").exists()


def test_a_record_of_segmentation_is_predicted_again(photos, run, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(photos / "cache"))
    code, _, err = run("eval", "segmentation-knn", *NET, "--data", "kwcoco:shapes8-64", "--layers", "res4", "k=3")
    assert code == 0, err
    code, _, err = run("show", "segmentation-knn", record_of("segmentation-knn"), "--limit", "1", "--out", "out")
    assert code == 0, err
    page = Path("out/index.html").read_text()
    assert "prediction" in page and "background" in page


def test_a_scatter_of_images_and_of_features(photos, run, monkeypatch):
    code, _, err = run(
        "show", "features", "--weights", "random", "--backbone", "resnet18w0.125", "--data", "photos", "--resize", "32",
        "--crop", "none", "--projection", "pca", "--out", "out",
    )  # fmt: skip
    assert code == 0, err
    page = Path("out/index.html").read_text()
    assert page.count("data:image/jpeg") == 12 and "red/0.png" in page and "http" not in page
    np.save("x.npy", np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32))
    Path("y.csv").write_text("label\n" + "\n".join("ab" * 6) + "\n")
    code, _, err = run("show", "features", "--features", "x.npy", "--labels", "y.csv", "--limit", "8", "--out", "out")
    assert code == 0, err
    assert {f.name for f in Path("out").iterdir()} == {"scatter-features.png", "index.html", "show.json"}

    monkeypatch.setitem(sys.modules, "umap", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run("show", "features", "--features", "x.npy", "--projection", "umap", "--out", "out2")
    assert code == 2 and "pip install 'sslbench[umap]'" in err
    code, _, err = run("show", "features", "--labels", "y.csv")
    assert code == 2 and "--labels belongs to --features" in err


def test_definitions_are_printed_as_before(run):
    code, out, _ = run("show", "knn")
    assert code == 0 and "temperature=" in out
    code, _, err = run("show", "knn", "--limit", "3")
    assert code == 2 and "--limit does not go with show knn" in err
    code, _, err = run("show")
    assert code == 2 and "there is nothing to show" in err


CODE = [
    (lambda r: r["weights"].update(backbone="bomb_of_a_record:net"), "--backbone bomb_of_a_record:net"),
    (lambda r: r["protocol"].update(name="bomb_of_a_record.protocol"), "sslbench show bomb_of_a_record.protocol"),
    (lambda r: r["preprocessing"].update(decoder=["bomb_of_a_record.decode"]), "--decoder bomb_of_a_record.decode"),
    (lambda r: r["data"]["train"].update(name="bomb_of_a_record.source:x (train)"), "--data bomb_of_a_record"),
]


def test_a_record_does_not_choose_code(photos, run, monkeypatch):
    Path("bomb_of_a_record.py").write_text("raise SystemExit('the code of the record ran')\n")
    monkeypatch.syspath_prepend(str(photos))
    assert run("eval", "knn", "k=2", *NET, "--data", "photos", "--resize", "32", "--crop", "none")[0] == 0
    record = record_of("knn")
    text = record.read_text()
    for change, remedy in CODE:
        content = json.loads(text)
        change(content)
        record.write_text(json.dumps(content))
        code, _, err = run("show", record, "--out", "out")
        assert code in (1, 2) and "code named in a file is not run" in err and remedy in err
        assert "bomb_of_a_record" not in sys.modules


def test_a_record_is_inspected_as_one_and_shown_with_the_preprocessing_that_was_changed(run, photos):
    code, _, err = run("eval", "knn", *NET, "--data", "photos", "--resize", 24, "--crop", 24, "--no-overlaps")
    assert code == 0 and "changed: resize, crop)" in err, err
    record = record_of("knn")
    code, out, err = run("inspect", record)
    assert code == 0 and f"sslbench show {record} " in out and f"sslbench compare {record} OTHER.json" in out, err
    assert f"{json.loads(record.read_text())['metrics']['top1']['value']:.2f} (95 % interval " in out
    assert run("inspect", "results")[1].startswith("results: 1 result record of sslbench\n")
    code, _, err = run("show", record, "--out", "shown")
    assert code == 0 and "changed: resize, crop)" in err, err
