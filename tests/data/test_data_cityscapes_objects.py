"""Objects of a Cityscapes folder: boxes, masks, groups, and what is refused."""

import numpy as np
import pytest
from PIL import Image

from sslbench.cli.main import main
from sslbench.data.open import open_objects
from sslbench.errors import DataError
from sslbench.metrics.detection import masks

SIZE = (20, 30)


def write(root, split, name, numbers):
    for folder, ending, array in (
        ("leftImg8bit", "leftImg8bit", np.zeros((*SIZE, 3), np.uint8)),
        ("gtFine", "gtFine_instanceIds", numbers.astype(np.uint16)),
        ("gtFine", "gtFine_labelIds", np.where(numbers < 1000, numbers, numbers // 1000).astype(np.uint8)),
    ):
        path = root / folder / split / "ulm" / f"{name}_{ending}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)


@pytest.fixture
def city(tmp_path):
    """Two images to train on, one without objects to score, a test part that has none at all."""
    numbers = np.full(SIZE, 7)  # road
    numbers[2:9, 3:12] = 26000  # a car, in front of which there is a person
    numbers[4:6, 5:7] = 24003
    numbers[12:15, 20:30] = 24  # a group of persons
    numbers[19, 29] = 33011  # a bicycle of one pixel
    numbers[0, 0] = 29000  # a caravan, which is not scored
    write(tmp_path, "train", "ulm_000000_000019", numbers)
    write(tmp_path, "train", "ulm_000001_000019", np.full(SIZE, 7))
    write(tmp_path, "val", "ulm_000002_000019", np.where(numbers == 24003, 26000, numbers))
    write(tmp_path, "test", "ulm_000003_000019", np.zeros(SIZE))
    return tmp_path


def test_boxes_masks_and_groups(city):
    sources = open_objects(str(city))
    assert list(sources) == ["train", "val"]
    train = sources["train"]
    assert train.target.classes == ("person", "car", "bicycle") and train.target.class_numbers == (1, 3, 8)
    assert train.ids == tuple(f"train/ulm/ulm_00000{i}_000019_leftImg8bit.png" for i in (0, 1))
    found, none = train.target.objects
    assert len(none) == 0
    assert [train.target.classes[c] for c in found.classes] == ["person", "person", "car", "bicycle"]
    assert found.crowd.tolist() == [True, False, False, False]
    assert found.boxes.tolist() == [[20, 12, 30, 15], [5, 4, 7, 6], [3, 2, 12, 9], [29, 19, 30, 20]]
    assert found.areas.tolist() == [30, 4, 7 * 9 - 4, 1]
    car = masks.decode(masks.to_rle(found.masks[2], *SIZE))
    assert car.sum() == 59 and not car[4:6, 5:7].any() and car[2:9, 3:12].sum() == 59
    assert any("test has no objects" in note for note in train.notes)


def test_an_image_without_its_file_is_refused(city):
    (city / "gtFine" / "train" / "ulm" / "ulm_000001_000019_gtFine_instanceIds.png").unlink()
    with pytest.raises(DataError, match=r"\(train\): 1 image without \*_instanceIds.png: .*ulm_000001"):
        open_objects(str(city))


def test_label_maps_without_objects_are_told_as_such(city):
    for path in city.rglob("*_instanceIds.png"):
        path.unlink()
    with pytest.raises(DataError, match=r"holds no \*_instanceIds\.png"):
        open_objects(str(city))


def test_a_damaged_map_is_named(city):
    path = city / "gtFine" / "val" / "ulm" / "ulm_000002_000019_gtFine_instanceIds.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(DataError, match=r"ulm_000002_000019_gtFine_instanceIds\.png"):
        open_objects(str(city))


def test_a_manifest_holds_the_same_objects(city, tmp_path):
    written = tmp_path / "city.kwcoco.json"
    with pytest.raises(SystemExit) as end:
        main(["data", "to-kwcoco", str(city), str(written), "--boxes"])
    assert end.value.code == 0
    for split, source in open_objects(str(city)).items():
        for one, other in zip(source.target.objects, open_objects(str(written))[split].target.objects, strict=True):
            assert np.array_equal(one.boxes, other.boxes) and np.array_equal(one.areas, other.areas)
            assert one.crowd.tolist() == other.crowd.tolist()
            bitmaps = [[masks.decode(masks.to_rle(m, *SIZE)) for m in found.masks or ()] for found in (one, other)]
            assert np.array_equal(*bitmaps)
