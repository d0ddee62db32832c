"""`sslbench eval retrieval` on folders and embeddings whose parts have different classes."""

import json

import numpy as np
import pytest
from PIL import Image

OWN = ("--weights", "pixels:4", "--out", "results")


def write_pictures(folder, classes, n=3):
    """Write pictures of one colour per class, with noise."""
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        colour = rng.integers(0, 255, 3)
        for i in range(n):
            array = np.clip(colour + rng.integers(-20, 20, (16, 16, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(array).save(folder / name / f"{i}.png")


def records(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.rglob("*.json"))]


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_pictures(tmp_path / "photos" / "train", ["ant", "bee"])
    write_pictures(tmp_path / "photos" / "test", ["cat", "dog", "eel"])
    return tmp_path


def test_instances_that_train_lacks_are_found(world, sslbench):
    code, out, err = sslbench("eval", "retrieval", *OWN, "--data", "photos")
    assert code == 0, err
    assert "retrieval_mAP" in out
    (record,) = records(world / "results")
    assert record["metrics"]["recall@1"]["n"] == 9 and record["headline"] == "retrieval_mAP"
    assert record["floors"]["chance"]["recall@1"] == pytest.approx(25.0)  # 2 of 8 others
    assert set(record["per_class"]) == {"cat", "dog", "eel"}
    (sheet,) = (world / "results").rglob("*.neighbours.jpg")
    pixels = np.asarray(Image.open(sheet)).astype(int)
    green, red = ((pixels[..., a] > 120) & (pixels[..., b] < 90) for a, b in ((1, 0), (0, 1)))
    assert green.any() and red.any()  # two others of a colour, then those of another
    code, _, err = sslbench("leaderboard", "results", "--html", "board.html")
    assert code == 0 and "data:image/jpeg;base64,/9j/" in (world / "board.html").read_text(), err


def test_other_data_whitens(world, sslbench):
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "photos", "whiten=true", "components=3")
    assert code == 0, err
    (record,) = records(world / "results")
    assert record["protocol"]["settings"]["components"] == 3


def test_queries_without_an_image_in_the_database_are_one_message(world, sslbench):
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "photos", "database=train")
    assert code == 1 and "none of the 9 test images has another image of its label" in err
    assert not records(world / "results")


def test_other_protocols_still_refuse_unknown_classes(world, sslbench):
    code, _, err = sslbench("eval", "retrieval", "knn", *OWN, "--data", "photos")
    assert code == 1 and "the class 'cat' of" in err


def test_embeddings_of_other_instances(world, sslbench):
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(6, 4)).astype(np.float32))
    rows = ["label,split", *[f"{name},train" for name in "aabb"], "c,test", "c,test"]
    (world / "y.csv").write_text("\n".join(rows))
    code, _, err = sslbench("eval", "retrieval", "--features", "x.npy", "--labels", "y.csv", "--out", "results")
    assert code == 0, err
    assert records(world / "results")[0]["metrics"]["recall@1"]["value"] == 100.0
    code, _, err = sslbench("eval", "knn", "--features", "x.npy", "--labels", "y.csv", "--out", "results")
    assert code == 1 and "labels that the train part lacks: c" in err


def copydays(root):
    rng = np.random.default_rng(0)
    for i in range(4):
        pixels = rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        for folder, noise in (("original", 0), ("strong", 60), ("jpegqual/50", 5)):
            (root / folder).mkdir(parents=True, exist_ok=True)
            seen = np.clip(pixels + rng.normal(0, noise, pixels.shape), 0, 255).astype(np.uint8)
            Image.fromarray(seen).save(root / folder / f"{200000 + 100 * i + (noise > 0)}.png")


def test_a_set_with_its_own_ground_truth(world, sslbench):
    copydays(world / "copies")
    write_pictures(world / "others", ["x"], n=6)
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "copies", "predictions=3")
    assert code == 0, err
    (record,) = records(world / "results")
    assert record["headline"] == "mAP_trapezoid(strong)" and record["metrics"]["mP@1(jpegqual_50)"]["value"] == 100.0
    assert record["metrics"]["micro_AP"]["low"] < record["metrics"]["micro_AP"]["value"]
    assert record["floors"]["chance"]["mP@1(strong)"] == pytest.approx(25.0)
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "others", "--test-data", "copies", "whiten=true")
    assert code == 0, err
    assert len(records(world / "results")) == 2
    code, _, err = sslbench("leaderboard", "results", "--metric", "mP@1(jpegqual_50)", "--csv", "board.csv")
    assert code == 0, err
    assert (world / "board.csv").read_text().count(",100,floor") == 1


REFUSED = [
    (("retrieval", "database=train", "--data", "photos", "--test-data", "copies"), "a database of their own"),
    (("knn", "--data", "photos", "--test-data", "copies"), "is a retrieval set: its images have queries"),
    (("knn",), "is a retrieval set: its images have queries"),
    (("retrieval", "whiten=true"), "Give other images to learn from: --data OTHER --test-data copies"),
    (("retrieval", "--limit", "5"), "--limit would cut answers"),
    (("retrieval", "normalise_scores=true"), "no effect without predictions"),
]


def test_what_does_not_go_with_a_ground_truth_is_refused(world, sslbench):
    for words, message in REFUSED:
        copydays(world / "copies")
        code, _, err = sslbench("eval", words[0], *OWN, "--data", "copies", *words[1:])
        assert code in (1, 2) and message in err and not records(world / "results")
