"""Tiles of large images: their pixels, labels and groups."""

import numpy as np
import pytest
from PIL import Image

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.open import open_data
from sslbench.data.splits import train_test
from sslbench.errors import UsageError


def save(path, height, width, seed, exif=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    if exif is None:
        Image.fromarray(pixels).save(path)
    else:
        tags = Image.Exif()
        tags[0x0112] = exif
        Image.fromarray(pixels).save(path, exif=tags)
    return pixels


@pytest.fixture
def photos(tmp_path):
    for label in ("a", "b"):
        for i in range(4):
            save(tmp_path / "photos" / label / f"{i}.png", 50 + i, 70, 10 * (label == "b") + i)
    return tmp_path / "photos"


def test_tiles_cover_every_pixel_with_the_labels_of_their_image(photos):
    whole = open_data(f"{photos}/")["all"]
    source = open_data(f"{photos}/?unit=tile&size=32&overlap=8")["all"]
    assert list(source.ids) == sorted(source.ids)
    assert source.grouped_by == "image"
    for row, name in enumerate(whole.ids):
        pixels = np.asarray(Image.open(photos / name))
        own = [i for i, image in enumerate(source.attributes["image"]) if image == name]
        assert {int(source.target.values[i]) for i in own} == {int(whole.target.values[row])}
        seen, corners = np.zeros(pixels.shape[:2], int), []
        for i in own:
            x1, y1, x2, y2 = source.images.boxes[i].astype(int)
            assert (source.images.read(i) == pixels[y1:y2, x1:x2]).all()
            assert (x2 - x1, y2 - y1) == (32, 32)
            seen[y1:y2, x1:x2] += 1
            corners.append((y1, x1))
        assert seen.min() == 1
        assert corners == sorted(corners)
        assert {x for _, x in corners} == {0, 24, 38}
    assert any("8 images cut into 48 tiles of 32 x 32 pixels" in note for note in source.notes)


def test_a_turned_image_is_cut_upright_and_a_small_one_is_one_tile(tmp_path):
    pixels = save(tmp_path / "p" / "a" / "turned.png", 20, 60, 0, exif=6)
    small = save(tmp_path / "p" / "b" / "small.png", 10, 12, 1)
    source = open_data(f"{tmp_path}/p/?unit=tile&size=20")["all"]
    assert [image.split("#")[0] for image in source.ids] == ["a/turned.png"] * 3 + ["b/small.png"]
    assert (source.images.read(1) == np.rot90(pixels, -1)[20:40]).all()
    assert (source.images.read(3) == small).all()
    assert any("1 image smaller than a tile" in note for note in source.notes)


def test_the_content_of_a_tile_decides_its_digest(photos):
    few, many = (open_data(f"{photos}/?unit=tile&size={size}")["all"] for size in (40, 20))
    assert len({row.tobytes() for row in many.images.digests()}) == len(many)
    assert few.images_fingerprint() != many.images_fingerprint()
    assert few.images_fingerprint() == open_data(f"{photos}/?unit=tile&size=40")["all"].images_fingerprint()


def test_a_file_without_an_image_is_reported_by_name(photos):
    (photos / "a" / "broken.png").write_bytes(b"no image")
    source = open_data(f"{photos}/?unit=tile&size=32")["all"]
    (row,) = (i for i, name in enumerate(source.ids) if "broken" in name)
    with pytest.raises(UnreadableImage, match=r"broken\.png"):
        source.images.read(row)


def test_seeded_splits_keep_the_tiles_of_an_image_together(photos):
    both = train_test(f"{photos}/?unit=tile&size=20")
    train, test = (set(part.attributes["image"]) for part in (both.train, both.test))
    assert train and test and not train & test


def test_too_many_tiles_are_refused_before_they_are_listed(tmp_path):
    (tmp_path / "p" / "a").mkdir(parents=True)
    Image.new("L", (7000, 7000)).save(tmp_path / "p" / "a" / "large.png")
    with pytest.raises(UsageError, match="49,000,000 tiles of 1 x 1 pixels are more than"):
        open_data(f"{tmp_path}/p/?unit=tile&size=1")


def test_wrong_options_are_refused(photos):
    for options, message in (
        ("unit=tile&size=0", "size should be at least 1"),
        ("unit=tile&size=32&overlap=32", "overlap smaller than size"),
        ("unit=tile&size=big", "size"),
        ("unit=tiles", "unit=tile&size=224"),
        ("unit=tiel", "Did you mean 'tile'"),
        ("unit=tile&siz=32", "Did you mean 'size'"),
        ("overlap=32", "images stay whole"),
    ):
        with pytest.raises(UsageError, match=message):
            open_data(f"{photos}/?{options}")


def test_options_of_tiles_without_tiles_are_refused_where_other_options_exist(tmp_path):
    (tmp_path / "list.csv").write_text("image,label\n")
    with pytest.raises(UsageError, match="'size' is an option of tiles") as error:
        open_data(f"{tmp_path}/list.csv?size=32")
    assert "?unit=tile&size=224" in str(error.value)
    for options, hint in (("unit=tile&siz=32", "size"), ("grop=a", "group"), ("unit=tiel", "tile")):
        with pytest.raises(UsageError, match=f"Did you mean '{hint}'"):
            open_data(f"{tmp_path}/list.csv?{options}")
