"""Chosen channels of images of any kind: `?channels=4|1|2`."""

import json

import numpy as np
import pytest
import tifffile
from PIL import Image

from sslbench.data.decode.handlers import picture_decoder, picture_of
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.open import open_data
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing


@pytest.fixture
def fields(tmp_path):
    """A folder of two classes with one image of four bands each."""
    pixels = {}
    for seed, name in enumerate(("dry", "wet")):
        (tmp_path / name).mkdir()
        pixels[name] = np.random.default_rng(seed).integers(0, 256, (6, 5, 4), np.uint8)
        file = tmp_path / name / "0.tif"
        tifffile.imwrite(file, pixels[name], photometric="rgb", extrasamples=["unspecified"])
    return tmp_path, pixels


def decoded(images, index, channels=3):
    preprocessing = Preprocessing(mean=(0.0,) * channels, std=(1.0,) * channels)
    picture = picture_of(images, index, picture_decoder(preprocessing, images))
    return picture.image.permute(1, 2, 0).numpy()


def test_the_chosen_channels_are_read_in_their_order(fields):
    folder, pixels = fields
    images = open_data(f"{folder}/?channels=4|1|2")["all"].images
    for row, name in enumerate(("dry", "wet")):
        np.testing.assert_array_equal(decoded(images, row), pixels[name][..., [3, 0, 1]])
        np.testing.assert_array_equal(images.read(row), pixels[name][..., [3, 0, 1]])
    infrared = open_data(f"{folder}/?channels=4")["all"].images
    np.testing.assert_array_equal(decoded(infrared, 0), np.repeat(pixels["dry"][..., 3:], 3, axis=2))
    both = open_data(f"{folder}/?channels=1|4")["all"].images
    np.testing.assert_array_equal(decoded(both, 0, channels=2), pixels["dry"][..., [0, 3]])


def test_other_channels_are_another_content(fields):
    folder, _ = fields
    places = ["", "?channels=1|2|3", "?channels=4|1|2"]
    found = {place: open_data(f"{folder}/{place}")["all"].images.digests().tobytes() for place in places}
    assert len(set(found.values())) == 3
    chosen = open_data(f"{folder}/?channels=4|1|2")["all"].images
    assert chosen.select(np.array([1])).digests().tobytes() == chosen.digests()[1].tobytes()


def test_channels_that_are_not_there_are_refused(fields):
    folder, _ = fields
    with pytest.raises(UnreadableImage, match=r"4 channels, and \?channels=1\|5\|2 names channel 5"):
        decoded(open_data(f"{folder}/?channels=1|5|2")["all"].images, 0)
    for wrong in ("red", "0", "1||2", "-1", ""):
        with pytest.raises(UsageError, match="should be numbers from 1"):
            open_data(f"{folder}/?channels={wrong}")


def test_channels_of_tiles_and_of_plain_pictures(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "0.png")
    images = open_data(f"{tmp_path}/?channels=3|2|1&unit=tile&size=4")["all"].images
    np.testing.assert_array_equal(decoded(images, 1), pixels[:4, 4:, ::-1])


def test_channels_of_images_of_a_manifest_have_numbers_or_names(fields):
    folder, pixels = fields
    images = [{"id": i, "file_name": f"{name}/0.tif"} for i, name in enumerate(pixels)]
    boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 2, 3, 3]} for i in range(2)]
    content = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "field"}]}
    (folder / "m.json").write_text(json.dumps(content))
    chosen = open_data(f"{folder}/m.json?channels=4|1|2")["all"].images
    np.testing.assert_array_equal(decoded(chosen, 0), pixels["dry"][..., [3, 0, 1]])
    crops = open_data(f"{folder}/m.json?channels=4|1|2&unit=annotation&min_size=1&margin=0")["all"].images
    np.testing.assert_array_equal(decoded(crops, 0), pixels["dry"][2:5, 1:4, [3, 0, 1]])
    with pytest.raises(UsageError, match="None are named: give numbers"):
        open_data(f"{folder}/m.json?channels=red")
