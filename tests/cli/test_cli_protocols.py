"""Evaluations by protocols with data of their own: places, numbers, retrieval."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

CITIES = {"europe": (48.86, 2.35), "oceania": (-33.87, 151.21), "america": (40.71, -74.01), "africa": (-1.29, 36.82)}
COLOURS = np.array([[220, 40, 40], [40, 220, 40], [40, 40, 220], [210, 210, 40]])
RUN = ("eval", "geolocation", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net")
ON = (*RUN, "--data", "places.csv", "--value-col", "lat,lon", "max_images=60", "min_images=5")


@pytest.fixture
def places(world):
    """places.csv: pictures whose colour is that of their city; mixed.csv: the same with the places permuted."""
    rng = np.random.default_rng(0)
    (world / "views").mkdir()
    rows = []
    for i in range(120):
        city = i % 4
        pixels = rng.normal(COLOURS[city], 10, (18, 18, 3)).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(world / "views" / f"{i:03d}.png")
        latitude, longitude = np.array([*CITIES.values()][city]) + 0.1 * rng.uniform(-1, 1, 2)
        split = "train" if i < 80 else "test"
        rows.append([f"views/{i:03d}.png", split, f"{latitude:.4f}", f"{longitude:.4f}", [*CITIES][city]])
    write(world / "places.csv", rows)
    order = rng.permutation(80)
    mixed = [[*rows[i][:2], *rows[order[i]][2:]] if i < 80 else rows[i] for i in range(120)]
    write(world / "mixed.csv", mixed)
    return world


def write(path, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["image", "split", "lat", "lon", "continent"], *rows])


def records(folder):
    found = [json.loads(file.read_text()) for file in (folder / "results" / "geolocation").glob("*.json")]
    return {record["weights"]["name"]: record for record in found}


def test_images_whose_colour_tells_the_place_are_located(places, sslbench):
    code, out, err = sslbench(*ON, "--groups", "continent")
    assert code == 0, err
    found = records(places)
    record = found["w.pth"]
    assert record["headline"] == "accuracy@200km" and record["metrics"]["accuracy@200km"]["value"] > 95
    assert record["metrics"]["median_error_km"]["value"] < 25 and record["train"] > 95
    assert set(record["floors"]) == {"chance", "pixels", "untrained"}
    assert record["floors"]["chance"]["accuracy@200km"] == pytest.approx(25)
    assert record["floors"]["chance"]["mean_error_km"] > 5000, "in km"
    assert [group["name"] for group in record["groups"]["continent"]] == sorted(CITIES)
    assert record["metrics"]["worst_group(continent).accuracy@200km"]["value"] > 80
    assert "accuracy@200km" in out and "4 cells of 5 to 60 training images" in err
    code, out, err = sslbench("leaderboard", "results", "--metric", "median_error_km", "--csv", "board.csv")
    assert code == 0 and "km" in out, err


def test_places_that_colours_do_not_tell_are_found_at_chance(places, sslbench):
    code, _, err = sslbench(*[word.replace("places.csv", "mixed.csv") for word in ON], "--no-floors")
    assert code == 0, err
    metrics = records(places)["w.pth"]["metrics"]
    assert metrics["accuracy@200km"]["value"] < 70 and metrics["mean_error_km"]["value"] > 3000


def test_two_records_are_compared_in_kilometres(places, sslbench):
    assert sslbench(*ON)[0] == 0
    found = {
        name: next(places.glob(f"results/geolocation/*{record['id']}.json")) for name, record in records(places).items()
    }
    other = next(path for name, path in found.items() if name != "w.pth")
    code, out, err = sslbench("compare", str(found["w.pth"]), str(other), "--metric", "mean_error_km")
    assert code == 0 and "mean_error_km" in out, err
    code, out, err = sslbench("compare", str(found["w.pth"]), str(other))
    assert code == 0 and "accuracy@200km" in out, err
    code, _, err = sslbench("compare", str(found["w.pth"]), str(other), "--metric", "rmse")
    assert code == 1 and "'rmse' cannot be computed from its per-sample scores" in err, "an error in degrees"


def test_a_dry_run_writes_nothing(places, sslbench):
    code, out, err = sslbench(*ON, "--dry-run")
    assert code == 0 and "geolocation" in out and "max_images" in out, err
    assert not (places / "results").exists()


WITHOUT_PLACES = [
    ((*RUN, "--data", "sklearn:digits"), "needs the place of every image, and the train samples have one class each"),
    ((*RUN, "--data", "places.csv", "--label-col", "continent"), "--data images.csv --value-col lat,lon"),
    ((*RUN, "--data", "places.csv", "--value-col", "lon,lat", "min_images=5"), "not a latitude in degrees, -90 to 90"),
    ((*RUN, "--data", "places.csv", "--value-col", "lat"), "have 1: lat"),
    ((*RUN, "--data", "places.csv", "--value-col", "lat,lon"), "make 0 cells of 50 to 5000 images"),
]


def test_what_has_no_places_is_one_message_before_any_image_is_decoded(places, sslbench):
    for words, message in WITHOUT_PLACES:
        code, _, err = sslbench(*words)
        assert code == 1 and message in err and "Traceback" not in err and not (places / "results").exists()


def test_embeddings_with_places_are_located(places, sslbench):
    rng = np.random.default_rng(0)
    np.save(places / "e.npy", (3 * np.eye(4)[np.arange(120) % 4] + rng.normal(size=(120, 4))).astype(np.float32))
    code, _, err = sslbench(
        *("eval", "geolocation", "--features", "e.npy", "--labels", "places.csv", "--value-col", "lat,lon"),
        *("max_images=60", "min_images=5"),
    )
    assert code == 0, err
    (record,) = records(places).values()
    assert record["metrics"]["accuracy@200km"]["value"] > 80


ON_TABLE = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "table.csv")


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
    code, out, err = sslbench("eval", "linear", *ON_TABLE, "--value-col", "brightness", "--no-floors")
    assert code == 0, err
    found = record(table)
    assert found["headline"] == "r2" and found["metrics"]["r2"]["value"] > 0.9, "1 at best"
    assert 0.1 < found["metrics"]["mae"]["value"] < found["metrics"]["rmse"]["value"] < 30, "grey levels"
    assert found["data"]["labels"] == "value" and found["per_class"]["brightness"] == found["metrics"]["r2"]["value"]
    assert "r2" in out and "seeded random split" in err
    _, out, _ = sslbench("leaderboard", "results", "--csv", "board.csv")
    assert "w.pth" in (table / "board.csv").read_text()


def test_floors_of_numbers_are_the_mean_of_train_pixels_and_the_untrained_network(table, sslbench):
    code, _, err = sslbench("eval", "linear", *ON_TABLE, "--value-col", "brightness")
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
        code, _, err = sslbench("eval", "linear", protocol, *ON_TABLE, "--value-col", "brightness")
        assert code == 1 and f"{protocol} predicts classes, but these samples are labelled with numbers" in err
        assert (
            "Protocols for numbers: bags, finetune, geolocation, linear" in err
            and "images" not in err.split("error:")[1]
        )
    assert not (table / "results").exists()


NO_NUMBERS = [
    ("brightnes", "has no column 'brightnes'"),
    ("site", "the column 'site' has no number in line 2 (a)"),
    ("size", "every image has the same value of size"),
]


def test_what_is_no_number_to_predict_is_said(table, sslbench):
    for column, message in NO_NUMBERS:
        code, _, err = sslbench("eval", "linear", *ON_TABLE, "--value-col", column)
        assert code in (1, 2) and message in err


def test_only_tables_have_such_columns_and_classes_exclude_them(table, sslbench):
    code, _, err = sslbench("eval", "linear", *ON_TABLE[:-1], "photos", "--value-col", "brightness")
    assert code == 2 and "it is not a table" in err
    code, _, err = sslbench("eval", "linear", *ON_TABLE, "--value-col", "size", "--label-col", "site")
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
    assert set(found["per_class"]) == {"across", "up"} and found["metrics"]["r2"]["value"] > 0.99
    code, _, err = sslbench("eval", "knn", *given)
    assert code == 1 and "knn predicts classes" in err


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


def retrieval_records(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.rglob("*.json"))]


@pytest.fixture
def copies_world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_pictures(tmp_path / "photos" / "train", ["ant", "bee"])
    write_pictures(tmp_path / "photos" / "test", ["cat", "dog", "eel"])
    return tmp_path


def test_instances_that_train_lacks_are_found(copies_world, sslbench):
    code, out, err = sslbench("eval", "retrieval", *OWN, "--data", "photos")
    assert code == 0, err
    assert "retrieval_mAP" in out
    (record,) = retrieval_records(copies_world / "results")
    assert record["metrics"]["recall@1"]["n"] == 9 and record["headline"] == "retrieval_mAP"
    assert record["floors"]["chance"]["recall@1"] == pytest.approx(25.0)  # 2 of 8 others
    assert set(record["per_class"]) == {"cat", "dog", "eel"}
    (sheet,) = (copies_world / "results").rglob("*.neighbours.jpg")
    pixels = np.asarray(Image.open(sheet)).astype(int)
    green, red = ((pixels[..., a] > 120) & (pixels[..., b] < 90) for a, b in ((1, 0), (0, 1)))
    assert green.any() and red.any()  # two others of a colour, then those of another
    code, _, err = sslbench("leaderboard", "results", "--html", "board.html")
    assert code == 0 and "data:image/jpeg;base64,/9j/" in (copies_world / "board.html").read_text(), err


def test_other_data_whitens(copies_world, sslbench):
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "photos", "whiten=true", "components=3")
    assert code == 0, err
    (record,) = retrieval_records(copies_world / "results")
    assert record["protocol"]["settings"]["components"] == 3


def test_queries_without_an_image_in_the_database_are_one_message(copies_world, sslbench):
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "photos", "database=train")
    assert code == 1 and "none of the 9 test images has another image of its label" in err
    assert not retrieval_records(copies_world / "results")


def test_other_protocols_still_refuse_unknown_classes(copies_world, sslbench):
    code, _, err = sslbench("eval", "retrieval", "knn", *OWN, "--data", "photos")
    assert code == 1 and "the class 'cat' of" in err


def test_embeddings_of_other_instances(copies_world, sslbench):
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(6, 4)).astype(np.float32))
    rows = ["label,split", *[f"{name},train" for name in "aabb"], "c,test", "c,test"]
    (copies_world / "y.csv").write_text("\n".join(rows))
    code, _, err = sslbench("eval", "retrieval", "--features", "x.npy", "--labels", "y.csv", "--out", "results")
    assert code == 0, err
    assert retrieval_records(copies_world / "results")[0]["metrics"]["recall@1"]["value"] == 100.0
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


def test_a_set_with_its_own_ground_truth(copies_world, sslbench):
    copydays(copies_world / "copies")
    write_pictures(copies_world / "others", ["x"], n=6)
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "copies", "predictions=3")
    assert code == 0, err
    (record,) = retrieval_records(copies_world / "results")
    assert record["headline"] == "mAP_trapezoid(strong)" and record["metrics"]["mP@1(jpegqual_50)"]["value"] == 100.0
    assert record["metrics"]["micro_AP"]["low"] < record["metrics"]["micro_AP"]["value"]
    assert record["floors"]["chance"]["mP@1(strong)"] == pytest.approx(25.0)
    code, _, err = sslbench("eval", "retrieval", *OWN, "--data", "others", "--test-data", "copies", "whiten=true")
    assert code == 0, err
    assert len(retrieval_records(copies_world / "results")) == 2
    code, _, err = sslbench("leaderboard", "results", "--metric", "mP@1(jpegqual_50)", "--csv", "board.csv")
    assert code == 0, err
    rows = list(csv.DictReader((copies_world / "board.csv").read_text().splitlines()))
    of_copies = [name for name in rows[0] if f"{name} low" in rows[0]][-1]
    assert sum(row["flags"] == "floor" and row[of_copies] == "100" for row in rows) == 1


REFUSED = [
    (("retrieval", "database=train", "--data", "photos", "--test-data", "copies"), "a database of their own"),
    (("knn", "--data", "photos", "--test-data", "copies"), "is a retrieval set: its images have queries"),
    (("knn",), "is a retrieval set: its images have queries"),
    (("retrieval", "whiten=true"), "Give other images to learn from: --data OTHER --test-data copies"),
    (("retrieval", "--limit", "5"), "--limit would cut answers"),
    (("retrieval", "normalise_scores=true"), "no effect without predictions"),
]


def test_what_does_not_go_with_a_ground_truth_is_refused(copies_world, sslbench):
    for words, message in REFUSED:
        copydays(copies_world / "copies")
        code, _, err = sslbench("eval", words[0], *OWN, "--data", "copies", *words[1:])
        assert code in (1, 2) and message in err and not retrieval_records(copies_world / "results")
