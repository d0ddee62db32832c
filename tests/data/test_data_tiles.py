"""Tiles, bands and changed versions of images."""

import dataclasses
import functools
import json
import pickle

import numpy as np
import pytest
import tifffile
from PIL import Image

from sslbench.data.changed import ImageChange, crop, rescale, rotate, versions_of, without_geometry
from sslbench.data.corruptions import corrupt
from sslbench.data.decode.handlers import picture_decoder, picture_of
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.images import Arrays
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.data.splits import train_test
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled


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


SMALL = Preprocessing(resize=36, crop=(32, 32))


def noisy(image, rng, *, severity):
    return corrupt(image, "gaussian_noise", severity, rng)


def turned(image, rng):
    return rotate(image, 90)


CHANGES = (
    *(ImageChange(f"noise-{s}", functools.partial(noisy, severity=s), "1") for s in (1, 3)),
    ImageChange("turn", turned, "1"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class CountedArrays(Arrays):
    """Arrays that list the images that were read."""

    reads: list = dataclasses.field(default_factory=list)

    def read(self, index):
        self.reads.append(index)
        return super().read(index)


def source(n=7, side=40):
    array = np.random.default_rng(0).integers(0, 255, (n, side, side, 3), dtype=np.uint8)
    return Source("noise", tuple(f"{i:02d}" for i in range(n)), Unlabelled(n), CountedArrays(array, "noise"))


def pictures(versions, indices=None, workers=0):
    indices = by_shard(versions.images, np.arange(len(versions))) if indices is None else indices
    found = {}
    for batch in loader.batches(versions, indices, without_geometry(SMALL), batch_size=5, workers=workers):
        found |= dict(zip(batch.indices.tolist(), batch.images.numpy(), strict=True))
    return found


def test_every_image_is_decoded_once_for_all_versions():
    base = source()
    found = pictures(versions_of(base, CHANGES, SMALL, 0))
    assert len(found) == 21 and sorted(base.images.reads) == list(range(7))


def test_versions_are_the_same_in_any_order_process_and_selection():
    versions = versions_of(source(), CHANGES, SMALL, 0)
    found = pictures(versions)
    for other in (pictures(versions, np.arange(21)[::-1].copy()), pictures(versions, workers=2)):
        assert all(np.array_equal(found[i], other[i]) for i in range(21))
    chosen = versions.select([2, 9, 16])
    assert chosen.ids == tuple(versions.ids[i] for i in (2, 9, 16))
    for row, picture in pictures(chosen, np.arange(3)).items():
        assert np.array_equal(picture, found[(2, 9, 16)[row]])
    assert np.array_equal(chosen.images.digests(), versions.images.digests()[[2, 9, 16]])
    assert pickle.loads(pickle.dumps(versions.images)).path(20) == "noise[6] (turn)"  # noqa: S301 - its own


def test_rows_are_by_version_and_changes_are_made_after_resize_and_crop():
    base = source()
    versions = versions_of(base, CHANGES[::-1], SMALL, 0)
    assert versions.ids == tuple(sorted(versions.ids)) and versions.ids[7] == "noise-3/00"
    plain = {}
    for batch in loader.batches(base, np.arange(7), SMALL, batch_size=7, workers=0):
        plain = dict(zip(batch.indices.tolist(), batch.images.numpy(), strict=True))
    found = pictures(versions)
    for i in range(7):
        assert np.array_equal(found[14 + i], np.rot90(plain[i], axes=(1, 2)))
        assert 0 < np.abs(found[i].astype(int) - plain[i]).mean() < 40


def test_the_digest_is_of_content_change_seed_and_geometry():
    def fingerprint(base=None, changes=CHANGES, preprocessing=SMALL, seed=0):
        return versions_of(base or source(), changes, preprocessing, seed).images_fingerprint()

    known = fingerprint()
    assert fingerprint() == known
    changed = [
        fingerprint(seed=1),
        fingerprint(source(side=41)),
        fingerprint(changes=CHANGES[:2]),
        fingerprint(changes=[dataclasses.replace(change, code="2") for change in CHANGES]),
        fingerprint(preprocessing=dataclasses.replace(SMALL, resize=38)),
        fingerprint(preprocessing=dataclasses.replace(SMALL, interpolation="bicubic")),
    ]
    assert len({known, *changed}) == 7


def test_files_of_any_kind_have_versions_and_broken_ones_are_listed(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (40, 40), dtype=np.uint8)).save(tmp_path / "grey.png")
    Image.fromarray(rng.integers(0, 65535, (40, 40), dtype=np.uint16)).save(tmp_path / "deep.png")
    Image.fromarray(rng.integers(0, 255, (40, 50, 4), dtype=np.uint8)).save(tmp_path / "alpha.png")
    (tmp_path / "zbroken.png").write_bytes(b"no picture")
    base = open_data(str(tmp_path))["all"]
    versions = versions_of(base, CHANGES, SMALL, 0)
    (batch,) = loader.batches(versions, np.arange(12), without_geometry(SMALL), batch_size=12, workers=0)
    assert batch.images.shape == (9, 3, 32, 32) and batch.images.numpy().std(axis=(1, 2, 3)).min() > 1
    assert [index for index, _, _ in batch.unreadable] == [3, 7, 11]
    assert versions.images.digests()[[0, 4, 8]].any(axis=1).all()


def test_joined_sources_have_versions(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        Image.fromarray(np.full((40, 40, 3), ord(name), np.uint8)).save(tmp_path / name / f"{name}.png")
    joined = open_data(f"several:one={tmp_path / 'a'},two={tmp_path / 'b'}")["all"]
    found = pictures(versions_of(joined, CHANGES[2:], SMALL, 0))
    assert sorted(picture.mean() for picture in found.values()) == [ord("a"), ord("b")]


def test_geometry_keeps_what_it_should():
    picture = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    assert np.array_equal(rotate(picture, 360), picture) and np.array_equal(rotate(picture, -90), rotate(picture, 270))
    smooth = np.add.outer(np.arange(32), np.arange(32))[..., None].repeat(3, 2).astype(np.uint8) * 4
    there_and_back = rotate(rotate(smooth, 20), -20)[12:20, 12:20]
    assert np.abs(there_and_back.astype(int) - smooth[12:20, 12:20]).max() <= 4
    assert np.abs(rescale(smooth, 2.0)[12:20, 12:20].astype(float).std() * 2 - smooth[12:20, 12:20].std()) < 3
    part = crop(picture, 1.0, np.random.default_rng(0))
    assert np.array_equal(part, picture)


@pytest.mark.parametrize("shape", [(33, 48), (48, 33)])
def test_geometry_keeps_the_shape_of_any_picture(shape):
    picture = np.zeros((*shape, 3), np.uint8)
    rng = np.random.default_rng(0)
    assert {rotate(picture, 90).shape, rescale(picture, 0.3).shape, crop(picture, 0.2, rng).shape} == {(*shape, 3)}
