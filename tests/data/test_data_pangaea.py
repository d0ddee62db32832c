"""HLS Burn Scars and Sen1Floods11: bands by name, scaled by train; maps with pixels that do not count."""

import numpy as np
import pytest
import tifffile
from sample_data import pangaea

from sslbench.data.open import kind_alone, open_as
from sslbench.errors import DataError, UsageError
from sslbench.targets.label_maps import LabelMaps


@pytest.fixture(scope="module")
def burns(tmp_path_factory):
    return pangaea.make(tmp_path_factory.mktemp("burns"))


@pytest.fixture(scope="module")
def floods(tmp_path_factory):
    return pangaea.floods(tmp_path_factory.mktemp("floods"))


def bytes_of(values, train):
    """The scale, value by value: two standard deviations around the mean of train, without missing values."""
    known = [value for value in np.ravel(train).tolist() if np.isfinite(value) and value != 9999]
    mean = sum(known) / len(known)
    spread = (sum((value - mean) ** 2 for value in known) / len(known)) ** 0.5
    shares = [(value - mean + 2 * spread) / (4 * spread) for value in np.ravel(values).tolist()]
    there = [np.isfinite(value) and value != 9999 for value in np.ravel(values).tolist()]
    return [round(255 * min(max(share, 0), 1)) if known else 0 for share, known in zip(shares, there, strict=True)]


def test_burn_scars_have_the_split_of_pangaea_and_bands_scaled_by_its_train_part(burns):
    parts = open_as(f"{burns}?bands=B12|1", LabelMaps)
    assert {split: len(part) for split, part in parts.items()} == {"train": 18, "val": 2, "test": 2}
    order = np.random.RandomState(23).permutation(20)  # of scikit-learn: the first are those held out
    assert parts["val"].ids == tuple(f"training/scene{i:02d}_merged.tif" for i in sorted(order[:2]))
    train = np.stack([tifffile.imread(f"{burns}/{name}") for name in parts["train"].ids])
    stored, read = tifffile.imread(f"{burns}/{parts['test'].ids[1]}"), parts["test"].images.read(1)
    for place, band in enumerate((5, 0)):
        assert np.ravel(read[..., place]).tolist() == bytes_of(stored[..., band], train[..., band])
    assert parts["test"].target.classes == ("Not burned", "Burn scar")
    assert parts["test"].notes == (f"{burns}: 20 images in training/, so train and val are not those of 540",)
    found = parts["test"].target.maps.read_map(1).semantic
    assert (found[0] == -1).all() and (found[1:] == (np.arange(5) >= 1)).all()
    assert open_as(burns, LabelMaps)["test"].images.read(0).shape == (4, 5, 6)
    assert kind_alone(burns) is LabelMaps


def test_floods_are_read_from_either_sensor_by_their_lists(floods):
    parts = open_as(floods, LabelMaps)
    assert {split: len(part) for split, part in parts.items()} == {"train": 2, "val": 1, "test": 1}
    assert parts["test"].images.read(0).shape == (4, 5, 13) and parts["test"].target.classes == ("Not Water", "Water")
    radar = open_as(f"{floods}?bands=VH", LabelMaps)
    assert radar["val"].ids == ("data/flood_events/HandLabeled/S1Hand/India_3_S1Hand.tif",)
    train = np.stack([tifffile.imread(f"{floods}/v1.1/{name}") for name in radar["train"].ids])
    values = radar["val"].images.read(0)[..., 0]
    assert np.ravel(values).tolist() == bytes_of(train[0, ..., 1], train[..., 1]) and values[0, 0] == 0
    assert open_as(f"{floods}/v1.1", LabelMaps)["test"].fingerprint() == parts["test"].fingerprint()
    assert len({part.fingerprint() for part in (parts["val"], radar["val"], parts["test"])}) == 3
    with pytest.raises(UsageError, match="names bands of two sensors"):
        open_as(f"{floods}?bands=VV|B4", LabelMaps)
    with pytest.raises(UsageError, match="there is no band 'b13'"):
        open_as(f"{floods}?bands=B13", LabelMaps)


def test_what_is_damaged_is_named(tmp_path):
    root = pangaea.make(tmp_path / "burns")
    file = tmp_path / "burns" / "validation" / "scene01_merged.tif"
    tifffile.imwrite(file, np.zeros((4, 5, 4), np.float32), planarconfig="contig", photometric="minisblack")
    with pytest.raises(OSError, match=r"scene01_merged\.tif: .*4 channels"):
        open_as(root, LabelMaps)["test"].images.read(1)
    file.with_name("scene01.mask.tif").unlink()
    with pytest.raises(DataError, match=r"validation has no map of 1 image: scene01"):
        open_as(root, LabelMaps)
    floods = pangaea.floods(tmp_path / "floods")
    list_ = tmp_path / "floods" / "v1.1" / "splits" / "flood_handlabeled" / "flood_valid_data.csv"
    list_.write_text("../x_S1Hand.tif,y.tif\n")
    with pytest.raises(DataError, match=r"flood_valid_data\.csv, row 1: '../x_S1Hand.tif,y.tif' is not NAME_S1Hand"):
        open_as(floods, LabelMaps)
