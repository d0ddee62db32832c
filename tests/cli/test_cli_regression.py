"""Numbers in place of classes: `--value-col`, from a table of images or of embeddings to the leaderboard."""

import json

import numpy as np
import pytest
from PIL import Image

RUN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "table.csv")


@pytest.fixture
def table(world):
    """table.csv: pictures whose brightness is a column, and a size that is the same for all."""
    rng = np.random.default_rng(0)
    (world / "grey").mkdir()
    lines = ["path,brightness,size,site"]
    for i in range(40):
        level = rng.uniform(20, 220)
        pixels = rng.normal(level, 10, (18, 18, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(world / "grey" / f"{i:02d}.png")
        lines.append(f"grey/{i:02d}.png,{level:.3f},18,{'ab'[i % 2]}")
    (world / "table.csv").write_text("\n".join(lines) + "\n")
    return world


def record(folder):
    (file,) = [f for f in (folder / "results" / "linear").glob("*.json") if '"untrained": false' in f.read_text()]
    return json.loads(file.read_text())


def test_a_column_of_numbers_is_predicted_and_scored_by_r2(table, sslbench):
    code, out, err = sslbench("eval", "linear", *RUN, "--value-col", "brightness", "--no-floors")
    assert code == 0, err
    found = record(table)
    assert found["headline"] == "r2" and found["metrics"]["r2"]["value"] > 90, "in percent"
    assert 0.1 < found["metrics"]["mae"]["value"] < found["metrics"]["rmse"]["value"] < 30, "grey levels"
    assert found["data"]["labels"] == "value" and found["per_class"]["brightness"] == found["metrics"]["r2"]["value"]
    assert "r2" in out and "seeded random split" in err
    _, out, _ = sslbench("leaderboard", "results", "--csv", "board.csv")
    assert "w.pth" in (table / "board.csv").read_text()


def test_floors_of_numbers_are_the_mean_of_train_pixels_and_the_untrained_network(table, sslbench):
    code, _, err = sslbench("eval", "linear", *RUN, "--value-col", "brightness")
    assert code == 0, err
    (found,) = [
        r
        for f in (table / "results" / "linear").glob("*.json")
        if (r := json.loads(f.read_text()))["weights"]["name"] == "w.pth"
    ]
    assert set(found["floors"]) == {"chance", "pixels", "untrained"}
    assert found["floors"]["chance"]["r2"] <= 0 and found["floors"]["chance"]["mae"] > 20


def test_protocols_of_classes_refuse_numbers_before_any_image_is_decoded(table, sslbench):
    for protocol in ("knn", "svm", "low-shot", "lsr"):
        code, _, err = sslbench("eval", "linear", protocol, *RUN, "--value-col", "brightness")
        assert code == 1 and f"{protocol} predicts classes, but these samples are labelled with numbers" in err
        assert "Protocols for numbers: finetune, geolocation, linear" in err and "images" not in err.split("error:")[1]
    assert not (table / "results").exists()


NO_NUMBERS = [
    ("brightnes", "has no column 'brightnes'"),
    ("site", "the column 'site' has no number in line 2 (a)"),
    ("size", "every image has the same value of size"),
]


def test_what_is_no_number_to_predict_is_said(table, sslbench):
    for column, message in NO_NUMBERS:
        code, _, err = sslbench("eval", "linear", *RUN, "--value-col", column)
        assert code in (1, 2) and message in err


def test_only_tables_have_such_columns_and_classes_exclude_them(table, sslbench):
    code, _, err = sslbench("eval", "linear", *RUN[:-1], "photos", "--value-col", "brightness")
    assert code == 2 and "it is not a table" in err
    code, _, err = sslbench("eval", "linear", *RUN, "--value-col", "size", "--label-col", "site")
    assert code == 2 and "give only one" in err


def test_embeddings_made_elsewhere_with_two_numbers_each(world, sslbench):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 6)).astype(np.float32)
    np.save("f.npy", x)
    lines = ["id,across,up", *(f"{i},{row[0] + row[1]:.4f},{row[2]:.4f}" for i, row in enumerate(x))]
    (world / "labels.csv").write_text("\n".join(lines) + "\n")
    given = ("--features", "f.npy", "--labels", "labels.csv", "--value-col", "across,up")
    code, _, err = sslbench("eval", "linear", *given)
    assert code == 0, err
    found = record(world)
    assert set(found["per_class"]) == {"across", "up"} and found["metrics"]["r2"]["value"] > 99
    code, _, err = sslbench("eval", "knn", *given)
    assert code == 1 and "knn predicts classes" in err
