"""What `sslbench check-data` says about label maps: every finding, the exit code, the files, the table of classes."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from sslbench.cli.main import main
from sslbench.data.checks.maps import class_colours, is_smooth

SIDE = 48


def photo(path, seed, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, **options)


def halves(left, right, side=SIDE, at=None):
    array = np.full((side, side), left, np.uint8)
    array[:, side // 2 if at is None else at :] = right
    return array


def mask(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def data(tmp_path):
    """train/ and val/ with four images and two, their maps half sky, half road."""
    root = tmp_path / "city"
    for split, n in (("train", 4), ("val", 2)):
        for i in range(n):
            photo(root / "images" / split / f"{i}.png", 10 * n + i)
            mask(root / "masks" / split / f"{i}.png", halves(0, 1, at=12))
    (root / "classes.txt").write_text("sky\nroad\n")
    return root


@pytest.fixture
def check(capsys):
    """`check(*words)`: exit code, stdout and stderr."""

    def run(*words):
        with pytest.raises(SystemExit) as exit_:
            main(["check-data", *map(str, words), "--workers", "0"])
        captured = capsys.readouterr()
        return exit_.value.code, captured.out + captured.err

    return run


def test_clean_maps(check, data):
    code, out = check(data)
    assert code == 0 and "no errors found" in out and "warning" not in out and "note" not in out
    assert "city (train): 4 images with label maps, 2 classes" in out
    assert "read: 6 of 6 maps and their images\n" in out
    rows = [line.split() for line in out.splitlines() if line.startswith(("sky ", "road "))]
    assert rows == [["road", "75.00%", "4", "75.00%", "2"], ["sky", "25.00%", "4", "25.00%", "2"]]


def test_maps_are_checked_only_where_that_is_meant(check, data, tmp_path):
    fast = ("--no-copies", "--near-copies", "none")
    assert "label maps" not in check(data, "--no-label-maps", *fast)[1]
    for i in range(4):
        photo(tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i}.png", i)
    assert "label maps" not in check(tmp_path / "photos", *fast)[1]
    code, out = check(tmp_path / "photos", "--label-maps")
    assert code == 2 and "no images with a class for every pixel were found" in out
    code, out = check(data, "--label-maps", "--boxes")
    assert code == 2 and "--boxes does not go with label maps" in out


def test_workers_find_the_same(data, capsys):
    outputs = []
    for workers in ("0", "2"):
        with pytest.raises(SystemExit):
            main(["check-data", str(data), "--json", "--workers", workers])
        outputs.append(json.loads(capsys.readouterr().out))
    assert outputs[0] == outputs[1]


def test_json(check, data):
    mask(data / "masks" / "val" / "1.png", halves(0, 9))
    code, out = check(f"{data}?ignore=sky", "--json")
    found = json.loads(out)
    val = found["parts"]["val"]
    assert code == 1 and val["classes"] == [{"name": "road", "value": 1, "pixels": 36 * SIDE, "images": 1}]
    assert (val["ignored_values"], val["ignored_pixels"], val["unknown_pixels"]) == ([0], 36 * SIDE, 24 * SIDE)
    assert found["findings"][0]["level"] == "error"


def test_values_that_are_no_class(check, data):
    mask(data / "masks" / "train" / "1.png", halves(7, 1, at=1))
    code, out = check(data)
    assert code == 1
    assert "1 value in the maps without a class: 7 (48 pixels in 1 map: " in out and "train/1.png)" in out


def test_maps_of_another_size(check, data):
    mask(data / "masks" / "train" / "1.png", halves(0, 1, side=40))
    code, out = check(data)
    assert code == 1 and "1 map of another size than the image: " in out
    assert "1.png: the map is 40 x 40 pixels, but its image 48 x 48" in out


def test_maps_that_cannot_be_read(check, data):
    broken = data / "masks" / "train" / "2.png"
    broken.write_bytes(broken.read_bytes()[:70])
    Image.fromarray(halves(0, 1)).save(data / "masks" / "val" / "1.jpg")
    (data / "masks" / "val" / "1.png").unlink()
    image = data / "images" / "train" / "3.png"
    image.write_bytes(image.read_bytes()[:90])
    code, out = check(data)
    assert code == 1 and "train/2.png: truncated" in out
    assert "1.jpg: a lossy JPEG: compression has changed the classes; maps should be PNG" in out
    assert "3.png: truncated PNG" in out


def test_orphans(check, data):
    photo(data / "images" / "val" / "lonely.png", 99)
    mask(data / "masks" / "val" / "stray.png", halves(0, 1))
    code, out = check(data)
    assert code == 0
    assert "1 image without a map left out: " in out and "lonely.png" in out
    assert "1 map without an image left out: " in out and "stray.png" in out


def test_smoothed_maps(check, data):
    small = Image.fromarray(halves(0, 200, side=12)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    mask(data / "masks" / "train" / "0.png", np.asarray(small))
    code, out = check(data)
    assert code == 1 and "1 map with mixed values along region borders" in out and "warning" in out
    (data / "classes.txt").unlink()
    code, out = check(data)
    assert code == 1 and "error: " in out and "resize maps by nearest neighbour" in out


def test_smoothness_is_not_seen_in_classes_that_touch():
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.integers(0, 150, (12, 12)), np.ones((8, 8), int)).astype(np.int32)
    assert not is_smooth(blocks)
    border = blocks.copy()
    border[:, 7::8] = 255  # a drawn border, as of Pascal VOC
    assert not is_smooth(border)
    assert is_smooth(np.asarray(Image.fromarray(blocks.astype(np.uint8)).resize((200, 200))).astype(np.int32))


def test_maps_of_the_only_class_are_an_error_as_in_an_evaluation(check, data):
    (data / "classes.txt").unlink()
    for path in data.glob("masks/*/*.png"):
        mask(path, halves(0, 0))
    code, out = check(str(data))
    assert code == 1
    assert "(train): every pixel that is not ignored is of the class '0'" in out


def test_classes_without_pixels_and_pixels_that_do_not_count(check, data):
    (data / "classes.txt").write_text("sky\nroad\ntree\ncar\n")
    mask(data / "masks" / "val" / "0.png", halves(2, 2))
    for i in range(4):
        mask(data / "masks" / "train" / f"{i}.png", halves(0, 255, at=10))
    code, out = check(f"{data}?ignore=255")
    assert code == 1
    assert "warning: " in out and "79.2% of the pixels are ignored" in out
    assert "(train): every pixel that is not ignored is of the class 'sky'" in out
    assert "(train): 3 classes without a pixel: road, tree, car" in out
    assert "(val) has pixels of classes without one in" in out and "road, tree; they cannot be learnt" in out


def test_a_map_that_is_ignored_as_a_whole(check, data):
    mask(data / "masks" / "train" / "0.png", halves(255, 255))
    code, out = check(f"{data}?ignore=255")
    assert code == 0 and "1 map without any class: " in out


def test_copies_between_splits_and_with_another_map(check, data):
    photo(data / "images" / "train" / "0.png", 7)
    photo(data / "images" / "train" / "1.png", 7)
    photo(data / "images" / "val" / "1.png", 7)
    mask(data / "masks" / "train" / "1.png", halves(1, 0))
    code, out = check(data)
    assert code == 1 and "1 of 2 images of " in out and "also in " in out
    assert out.splitlines()[-1].startswith("found: ") and out.endswith("; test images lie in train\n")
    assert "1 copy with another label: " in out
    assert "not searched" in check(data, "--no-copies")[1]


def test_a_sample_is_read_unless_all_are_asked_for(check, data):
    mask(data / "masks" / "train" / "1.png", halves(7, 1))
    code, out = check(data, "--decode", "2")
    assert code == 0 and "read: 4 of 6 maps and their images (--decode all)" in out
    assert check(data, "--decode", "all")[0] == 1


def test_larger_maps_than_the_limit(check, data):
    code, out = check(data, "--max-pixels", 2000)
    assert code == 1 and "48 x 48 pixels, more than the limit of 2,000" in out


def test_images_turned_by_exif(check, data):
    exif = Image.Exif()
    exif[0x0112] = 3
    photo(data / "images" / "train" / "0.jpg", 3, exif=exif)
    (data / "images" / "train" / "0.png").unlink()
    code, out = check(data)
    assert code == 0 and "1 image turned by EXIF, whose maps should fit the upright image: " in out


def test_files(check, data, tmp_path):
    sheet, page, table = tmp_path / "s.png", tmp_path / "p.html", tmp_path / "t.csv"
    code, out = check(data, "--sheet", sheet, "--html", page, "--csv", table)
    assert code == 0 and out.count("wrote ") == 3
    rows = list(csv.reader(table.read_text().splitlines()))
    assert rows[:2] == [
        ["class", "train_pixels", "train_images", "val_pixels", "val_images"],
        ["sky", str(4 * 12 * SIDE), "4", str(2 * 12 * SIDE), "2"],
    ]
    assert "road" in page.read_text() and "data:image/jpeg" in page.read_text()
    pixels = np.asarray(Image.open(sheet).convert("RGB")).astype(int)
    for colour in class_colours(2):
        assert (np.abs(pixels - colour).sum(axis=2) == 0).sum() >= 100  # the swatches


def test_the_sheet_shows_the_map_where_it_lies(check, data, tmp_path):
    for split, n in (("train", 4), ("val", 2)):
        for i in range(n):
            Image.new("RGB", (SIDE, SIDE), (0, 0, 0)).save(data / "images" / split / f"{i}.png")
    check(data, "--sheet", tmp_path / "s.png", "--no-copies")
    pixels = np.asarray(Image.open(tmp_path / "s.png").convert("RGB")).astype(int)
    sky, road = (np.round(0.55 * colour.astype(float)).astype(int) for colour in class_colours(2))
    row = pixels[40]
    at = [np.flatnonzero(np.abs(row - colour).sum(axis=1) <= 3) for colour in (sky, road)]
    assert len(at[0]) > 20 and abs(len(at[1]) / len(at[0]) - 3) < 0.2  # a quarter sky, left of three quarters road
    assert at[0].min() < at[1].min()


def panoptic(root, segments, ids, **category):
    photo(root / "val2017" / "1.png", 1)
    coded = np.stack([ids % 256, ids // 256, np.zeros_like(ids)], axis=-1).astype(np.uint8)
    mask(root / "annotations" / "panoptic_val2017" / "1.png", coded)
    tables = {
        "images": [{"id": 1, "file_name": "1.png"}],
        "annotations": [{"image_id": 1, "file_name": "1.png", "segments_info": segments}],
        "categories": [{"id": 3, "name": "dog", "isthing": 1}, {"id": 4, "name": "sky", "isthing": 0} | category],
    }
    (root / "annotations" / "panoptic_val2017.json").write_text(json.dumps(tables))
    return root


def test_panoptic_findings(check, tmp_path):
    ids = halves(1, 2).astype(np.int64) * 300
    segments = [
        {"id": 300, "category_id": 3, "area": 5, "iscrowd": 1},
        {"id": 600, "category_id": 4, "area": 24 * SIDE},
        {"id": 77, "category_id": 4, "area": 9},
    ]
    code, out = check(panoptic(tmp_path / "coco", segments, ids))
    assert code == 0 and "0 instances" in out
    assert "segments_info has segments that the PNG lacks: 77" in out
    assert "segments whose area differs from segments_info: 300 (area 5, 1,152 pixels)" in out
    assert "1 crowd (iscrowd), counted for the class but not as instances" in out
    code, out = check(panoptic(tmp_path / "other", [{"id": 300, "category_id": 8}], ids, isthing=None))
    assert code == 1 and "the PNG has segments that segments_info lacks: 600 (1,152 pixels)" in out
    assert "without a class: 8 (1,152 pixels in 1 map" in out
    assert "categories without isthing, taken for things: sky" in out


def test_splits_with_other_classes(check, tmp_path):
    ids = halves(1, 2).astype(np.int64)
    segments = [{"id": 1, "category_id": 3}, {"id": 2, "category_id": 4}]
    root = panoptic(tmp_path / "coco", segments, ids)
    for name in ("annotations/panoptic_val2017.json", "annotations/panoptic_val2017", "val2017"):
        (root / name).rename(root / name.replace("val", "train"))
    panoptic(root, segments, ids, name="ski")
    code, out = check(root)
    assert code == 1 and "have other classes: ski, sky. Did you mean 'sky'?" in out
