"""GEO-Bench V1: bands, their scale by train, labels of images and of pixels, against the arrays in its files."""

import json

import numpy as np
import pytest
from sample_data import geobench

from sslbench.data.open import open_as, open_data
from sslbench.errors import DataError, SslbenchError, UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.multilabel import MultiLabel

h5py = pytest.importorskip("h5py")
WITH_NIR = (*geobench.BANDS, "08 - NIR")


def band(root, name, key):
    with h5py.File(root / f"{name}.hdf5") as file:
        return np.asarray(file[key], np.float64)


def test_bands_are_scaled_by_mean_and_deviation_of_train_alone(tmp_path):
    place = geobench.make(tmp_path, splits=("train", "valid", "test"), date="_2018-06-01")
    parts = open_data(f"{place}?bands=red|02")
    assert list(parts) == ["train", "val", "test"]
    listed = json.loads((tmp_path / "default_partition.json").read_text())
    keys = [f"{name}_2018-06-01" for name in ("04 - Red", "02 - Blue")]
    for split, names in (("train", listed["train"]), ("test", listed["test"])):
        source = parts[split]
        assert source.ids == tuple(names) and isinstance(source.target, Classes)
        assert [source.target.text(i) for i in range(len(source))] == [str(int(name[3:]) % 2) for name in names]
        for channel, key in enumerate(keys):
            train = np.stack([band(tmp_path, name, key) for name in listed["train"]])
            shares = (band(tmp_path, names[0], key) - train.mean() + 2 * train.std()) / (4 * train.std())
            expected = (255 * shares.clip(0, 1)).round()
            np.testing.assert_allclose(source.images.read(0)[:, :, channel], expected, atol=1)


def test_a_change_of_test_moves_no_pixel_of_train_and_bands_change_the_key(tmp_path):
    place = geobench.make(tmp_path)
    before = open_data(place)["train"].images
    name = json.loads((tmp_path / "default_partition.json").read_text())["test"][0]
    with h5py.File(tmp_path / f"{name}.hdf5", "r+") as file:
        file["04 - Red"][:] = 30_000
    after = open_data(place)["train"].images
    np.testing.assert_array_equal(before.read(0), after.read(0))
    assert np.array_equal(before.digests(), after.digests())
    keys = {
        open_data(f"{place}?{how}")["train"].images.digests().tobytes() for how in ("bands=3", "bands=4", "scale=none")
    }
    assert len(keys) == 3 and before.digests().tobytes() not in keys


def test_a_change_of_train_changes_the_scale_in_the_same_process(tmp_path):
    place = f"{geobench.make(tmp_path)}?bands=red"
    before = open_data(place)["test"].images
    with h5py.File(tmp_path / "id_0000.hdf5", "r+") as file:
        file["04 - Red"][:] = 30_000
    after = open_data(place)["test"].images
    assert not np.array_equal(before.read(0), after.read(0)) and not np.array_equal(before.digests(), after.digests())


def test_without_a_scale_bands_are_the_stored_16_bits(tmp_path):
    images = open_data(f"{geobench.make(tmp_path, bands=WITH_NIR)}?scale=none&bands=nir")["train"].images
    assert images.read(0).dtype == np.uint16
    np.testing.assert_array_equal(images.read(0)[:, :, 0], band(tmp_path, "id_0000", "08 - NIR"))
    with h5py.File(tmp_path / "id_0000.hdf5", "r+") as file:
        file["08 - NIR"][0, 0] = -1
    with pytest.raises(OSError, match="scale=train"):
        images.read(0)


def test_several_labels_and_classes_of_pixels(tmp_path):
    for name in ("several", "maps"):
        (tmp_path / name).mkdir()
    several = open_data(geobench.make(tmp_path / "several", several=True))["train"]
    assert isinstance(several.target, MultiLabel) and several.target.flags().tolist()[:2] == [[1, 0], [0, 1]]
    maps = open_as(geobench.make(tmp_path / "maps", maps=True), LabelMaps)
    target = maps["test"].target
    assert list(maps) == ["train", "test"] and target.classes == ("0", "1")
    np.testing.assert_array_equal(target.maps.read_map(0).semantic, np.repeat([[0] * 5 + [1] * 5], 8, axis=0))
    (tmp_path / "maps" / "classes.txt").write_text("field\nroad\n")
    named = open_as(f"{tmp_path / 'maps'}?ignore=road", LabelMaps)["test"].target
    assert named.classes == ("field",) and (named.maps.read_map(0).semantic[:, 5:] == -1).all()


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("?bands=rid", ("no band 'rid'", "04 - Red", "'red'")),
        ("?bands=red|4", ("twice",)),
        ("?partition=defualt", ("no partition 'defualt'", "'default'")),
        ("?ignore=0", ("label maps",)),
    ],
)
def test_a_wrong_option_is_one_message(tmp_path, place, words):
    with pytest.raises(UsageError) as error:
        open_data(geobench.make(tmp_path) + place)
    assert all(word in str(error.value) for word in words)


def test_files_that_are_missing_or_damaged_are_named(tmp_path):
    place = geobench.make(tmp_path)
    (tmp_path / "id_0001.hdf5").write_bytes(b"no HDF5")
    train = open_data(place)["train"]
    with pytest.raises(OSError, match="id_0001"):
        train.images.read(1)
    (tmp_path / "label_map.json").write_text(json.dumps({"0": ["id_0000"]}))
    with pytest.raises(DataError, match="11 samples without a class"):
        open_data(place)
    (tmp_path / "label_map.json").unlink()
    with pytest.raises(SslbenchError, match=r"label_map\.py"):
        open_data(place)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"train": ["id_0000"], "test": ["id_0001", "id_0000"]}, "names 1 sample twice, in one part or two: id_0000"),
        ({"train": ["id_0000"], "test": [1, "id_0001"]}, r"default_partition\.json: 'test' is .*a list of samples"),
        ({"train": 3}, r"default_partition\.json: 'train' is 3, and a list"),
    ],
)
def test_a_partition_that_is_none_is_named(tmp_path, parts, message):
    place = geobench.make(tmp_path)
    (tmp_path / "default_partition.json").write_text(json.dumps(parts))
    with pytest.raises(DataError, match=message):
        open_data(place)


def test_pixels_that_are_no_numbers_are_dark_and_move_no_scale(tmp_path):
    def with_holes(place, hole):
        place.mkdir()
        geobench.make(place)
        with h5py.File(place / "id_0000.hdf5", "r+") as file:
            values = np.asarray(file["04 - Red"], np.float32)
            values[0, 0] = hole
            del file["04 - Red"]
            file["04 - Red"] = values
        return open_data(f"{place}?bands=red")["train"].images

    whole, holes = with_holes(tmp_path / "whole", 1000), with_holes(tmp_path / "holes", np.nan)
    assert holes.read(0)[0, 0, 0] == 0 and whole.read(0)[0, 0, 0] > 0
    assert np.abs(holes.read(1).astype(int) - whole.read(1)).max() <= 2
