"""Boxes, masks and keypoints of detections made elsewhere, as COCO's result files hold them."""

import json

import numpy as np
import pytest
from helpers import drawn_figures, drawn_rectangles
from PIL import Image

from sslbench.data.open import open_objects
from sslbench.detection.foreign import read_foreign
from sslbench.errors import ResultError
from sslbench.metrics.detection import masks


def rows(data, **further):
    """One detection per object, of its box; further keys by a function of the object's box and keypoints."""
    found = []
    for number, objects in zip(data.target.numbers, data.target.objects, strict=True):
        for i, (x1, y1, x2, y2) in enumerate(objects.boxes.tolist()):
            row = {"image_id": number, "category_id": 1, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": 0.5}
            found.append(row | {key: make(objects, i) for key, make in further.items()})
    return found


def foreign(tmp_path, data, found):
    path = tmp_path / "found.json"
    path.write_text(json.dumps(found))
    return read_foreign(path, data)


def test_boxes_beyond_the_edge_and_images_without_detections_are_told(tmp_path):
    data = drawn_rectangles.source(7)
    found = rows(data)[:-2]
    found[0]["bbox"] = [4.0, 6.0, 46.0, 8.0]  # 2 pixels beyond: what rounding explains
    assert foreign(tmp_path, data, found).notes == ("1 test image without a detection in found.json.",)
    found[0]["bbox"] = [4.0, 6.0, 46.5, 0.0]  # an empty box is one
    found[1]["bbox"] = [-2.5, 6.0, 9.0, 8.0]
    read = foreign(tmp_path, data, found)
    assert read.notes[0] == "2 boxes of found.json beyond the edge of the image, scored as written."
    assert read.found.boxes[:2].tolist() == [[4, 6, 50.5, 6], [-2.5, 6, 6.5, 14]]


def test_masks_count_where_every_detection_has_one(tmp_path):
    data = drawn_rectangles.source(2)
    found = rows(data, segmentation=lambda objects, i: objects.masks[i])
    read = foreign(tmp_path, data, found).found
    assert len(read.masks) == 4
    for mask, image, (x1, y1, x2, y2) in zip(read.masks, read.images, read.boxes.astype(int), strict=True):
        wanted = np.zeros(data.target.sizes[image], np.bool_)
        wanted[y1:y2, x1:x2] = True
        np.testing.assert_array_equal(masks.decode(mask), wanted)
    del found[1]["segmentation"]
    assert foreign(tmp_path, data, found).found.masks is None
    assert foreign(tmp_path, data, rows(data)).found.masks is None
    found[1]["segmentation"] = [[1, 2, 3]]
    with pytest.raises(ResultError, match=r"found\.json: a segmentation cannot be used"):
        foreign(tmp_path, data, found)


def test_keypoints_are_read_and_boxes_are_around_them_where_there_are_none(tmp_path):
    data = drawn_figures.source(3)
    points = np.concatenate([objects.keypoints for objects in data.target.objects])
    found = rows(data, keypoints=lambda objects, i: objects.keypoints[i].ravel().tolist())
    read = foreign(tmp_path, data, found)
    np.testing.assert_array_equal(read.found.keypoints, points)
    np.testing.assert_allclose(
        read.found.boxes, np.concatenate([objects.boxes for objects in data.target.objects]), atol=1e-4
    )
    assert read.notes == ()
    alone = foreign(tmp_path, data, [{k: v for k, v in row.items() if k != "bbox"} for row in found])
    around = np.concatenate([points[:, :, :2].min(axis=1), points[:, :, :2].max(axis=1)], axis=1)
    np.testing.assert_allclose(alone.found.boxes, around)
    assert alone.notes == ("found.json has no boxes: those of the record are the ones around the keypoints.",)
    plain = drawn_rectangles.source(3, 96, 96)
    left_out = foreign(tmp_path, plain, found)
    assert left_out.found.keypoints is None
    assert left_out.notes == ("The keypoints of found.json are left out: squares has none.",)
    few = [*found[:2], {**found[2], "keypoints": [1.0, 2.0, 0.5]}]
    with pytest.raises(ResultError, match=r"keypoints of detection 2 should be 15 numbers.*head.*they are 3 values"):
        foreign(tmp_path, data, few)
    shares = [{**row, "keypoints": [value / 96 for value in row["keypoints"]]} for row in found]
    with pytest.raises(ResultError, match="they are shares of the image"):
        foreign(tmp_path, data, shares)


def test_categories_that_are_exchanged_are_told(tmp_path):
    size = 96
    objects, images = [], []
    rng = np.random.default_rng(0)
    for i in range(8):
        Image.fromarray(rng.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(tmp_path / f"{i}.png")
        images.append({"id": i, "file_name": f"{i}.png", "width": size, "height": size})
        for k in range(3):
            place = [4 + 30 * k, 8 + 5 * i, 20, 20]
            objects.append({"id": len(objects), "image_id": i, "category_id": 1 + len(objects) % 4, "bbox": place})
    kinds = [{"id": i, "name": name} for i, name in enumerate(("cat", "dog", "owl", "fox"), 1)]
    (tmp_path / "m.json").write_text(json.dumps({"images": images, "annotations": objects, "categories": kinds}))
    data = open_objects(str(tmp_path / "m.json"))["all"]
    for changed, words in (
        (lambda c: c % 4 + 1, ("off by one", "0 have its category", "1 (cat) on 4 (fox)")),
        (lambda c: (c - 2) % 4 + 1, ("off by one", "1 (cat) on 2 (dog)")),
        (lambda c: {1: 3, 2: 1, 3: 2, 4: 4}[c], ("6 have its category, and 24 lie as follows: 1 (cat) on 2 (dog)",)),
        (lambda c: c, ()),
        (lambda c: 1, ()),
        (lambda c: 1 + int(rng.integers(4)), ()),
    ):
        found = [
            {k: v for k, v in o.items() if k != "id"} | {"score": 0.5, "category_id": changed(o["category_id"])}
            for o in objects
        ]
        notes = [note for note in foreign(tmp_path, data, found).notes if "exchanged" in note]
        assert len(notes) == bool(words) and all(word in notes[0] for word in words)


@pytest.mark.parametrize(
    ("ids", "names", "kinds", "image_ids", "category_ids", "words"),
    [
        (["img-a", "img-b"], "xy", ["n01", "n02"], ["img-a", "img-b"], ["n01", "n02"], ()),
        (["1", "2"], "xy", ["1", "2"], ["1", "2"], ["1", "2"], ()),
        (["1", "2"], "xy", ["1", "2"], [1, 2.0], [1, 2], ()),
        ([1, 2], "xy", [1, 2], ["1", "2"], ["1", "2"], ()),
        ([9007199254740993, 9007199254740994], "xy", [1, 2], ["9007199254740993", "9007199254740994"], [1, 2], ()),
        (["x.png", "y.png"], "xy", [1, 2], ["x.png", "y.png"], ["CAT", "Dog"], ()),
        ([1, 2], "xy", [1, 2], ["/home/me/x.png", r"C:\me\y.png"], ["cat", "dog"], ()),
        ([1, 2], "xy", [1, 2], ["X", "Y"], ["cat", "dog"], ()),
        ([7, 8], ["000000000139", "000000000285"], [1, 2], [139, 285], [1, 2], ("numbers in file names",)),
        ([7, 8], ["8", "7"], [1, 2], [7, 8], [1, 2], ()),
    ],
)
def test_ids_of_images_and_categories_are_texts_numbers_or_names(
    tmp_path, ids, names, kinds, image_ids, category_ids, words
):
    read = foreign(tmp_path, with_ids(tmp_path, ids, names, kinds), of_ids(image_ids, category_ids))
    assert read.found.images.tolist() == np.argsort(np.argsort(list(names))).tolist()
    assert read.found.labels.tolist() == [0, 1]
    assert len(read.notes) == len(words) and all(word in note for word, note in zip(words, read.notes, strict=True))


def with_ids(folder, ids, names, kinds):
    """Two images of one object each."""
    for name in names:
        Image.new("RGB", (60, 40)).save(folder / f"{name}.png")
    objects = [
        {"id": i, "image_id": ids[i], "category_id": kinds[i], "bbox": [5 + 25 * i, 5 + 10 * i, 20, 20]}
        for i in range(2)
    ]
    images = [
        {"id": i, "file_name": f"{name}.png", "width": 60, "height": 40} for i, name in zip(ids, names, strict=True)
    ]
    content = {"images": images, "annotations": objects}
    content["categories"] = [{"id": i, "name": name} for i, name in zip(kinds, ("cat", "dog"), strict=True)]
    (folder / "m.json").write_text(json.dumps(content))
    return open_objects(str(folder / "m.json"))["all"]


def of_ids(images, categories):
    return [
        {"image_id": i, "category_id": c, "bbox": [20, 10, 20, 20], "score": 0.5}
        for i, c in zip(images, categories, strict=True)
    ]


def test_ids_of_two_meanings_are_refused(tmp_path):
    data = with_ids(tmp_path, [2, 1], ["1", "2"], [1, 2])
    rows = of_ids([1, 2], [1, 2])
    assert foreign(tmp_path, data, rows).notes == ()
    rows[0]["bbox"], rows[1]["bbox"] = [5, 5, 20, 20], [30, 15, 20, 20]
    (note,) = foreign(tmp_path, data, rows).notes
    assert "lie on objects if image_id is the number in the file's name" in note
    with pytest.raises(ResultError, match="image_id '1' is among the manifest's ids, and among file names without"):
        foreign(tmp_path, data, of_ids(["1", "2"], [1, 2]))
    with pytest.raises(ResultError, match=r"category_id of 1 of 2 detections is not among .*: 3"):
        foreign(tmp_path, data, of_ids([1, 2], [1, 3]))
