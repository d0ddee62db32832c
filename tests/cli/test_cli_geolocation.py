"""`sslbench eval geolocation`, from a table of images with places to the leaderboard and paired comparisons."""

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
    (RUN, "geolocation needs the place of every image, and the train samples have one class each"),
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
