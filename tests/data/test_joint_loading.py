"""Crops of images with their targets: both halves go the same way, and only the seed and the position decide."""

import dataclasses

import numpy as np
import pytest
import torch
from helpers.targets import map_pictures

from sslbench.data.loading import kept
from sslbench.data.loading.joint import JointBatches, JointView, augmented
from sslbench.errors import DataError


def read(source, index, size):
    found = source.target.maps.read_map(index, size=size).semantic.astype(np.float32)
    found[found < 0] = np.nan
    return found[None]


def coordinates(height=40, width=60):
    """An image whose red and green are row and column, and the same as a target."""
    rows, columns = np.mgrid[:height, :width].astype(np.float32)
    image = torch.from_numpy(np.stack([4 * rows, 4 * columns, 0 * rows]))
    return image, torch.from_numpy(np.stack([4 * rows, 4 * columns]))


@pytest.mark.parametrize("seed", range(8))
def test_image_and_target_go_the_same_way(seed):
    image, target = coordinates()
    view = JointView(crop=(24, 24), short_side=40, resize_range=(0.5, 2.0), rotation=10.0, flip=0.5)
    found, moved = augmented(image, target, view, np.random.default_rng(seed))
    known = ~moved.isnan().any(dim=0)
    assert known.any() and found.shape == (3, 24, 24) and moved.shape == (2, 24, 24)
    inner = known.clone()
    for axis in (0, 1):  # edges of unknown regions are mixed with the fill
        for step in (1, -1, 2, -2):
            inner &= known.roll(step, axis)
    inner[:2], inner[-2:], inner[:, :2], inner[:, -2:] = False, False, False, False
    assert inner.any()
    assert (found[:2] - moved).abs()[:, inner].max() < 13, "three pixels at half the size"


def test_flips_mirror_both_and_correct_the_values():
    image, target = coordinates()
    view = JointView(crop=(40, 60), flip=1.0)
    found, moved = augmented(image, target, view, np.random.default_rng(0), lambda x: -x)
    assert torch.equal(found, image.flip(2)) and torch.equal(moved, -target.flip(2))


def test_small_images_are_padded_and_their_edge_is_unknown():
    image, target = coordinates(20, 30)
    view = JointView(crop=(24, 40), flip=0.0, fill=(7.0, 8.0, 9.0))
    found, moved = augmented(image, target, view, np.random.default_rng(0))
    assert torch.equal(found[:, :20, :30], image) and torch.equal(moved[:, :20, :30], target)
    assert found[:, 22, 35].tolist() == [7, 8, 9] and moved[:, 20:].isnan().all() and moved[:, :, 30:].isnan().all()


def test_crops_that_one_class_fills_are_drawn_again():
    target = torch.zeros(1, 100, 100)
    target[:, :, 70:] = 1
    image = torch.zeros(3, 100, 100, dtype=torch.uint8)
    shares = {}
    for most in (1.0, 0.75):
        view = JointView(crop=(30, 30), most_of_one=most)
        crops = [augmented(image, target, view, np.random.default_rng(i))[1] for i in range(200)]
        shares[most] = np.mean([max(float(c.mean()), 1 - float(c.mean())) >= 0.75 for c in crops])
    assert shares[1.0] > 0.6 and shares[0.75] < 0.15, shares


@pytest.mark.parametrize("colours", ["photometric", "gamma"])
def test_colours_change_and_stay_in_range(colours):
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 32, 32)).astype(np.uint8))
    view = JointView(crop=(32, 32), flip=0.0, colours=colours)
    found = [augmented(pixels, torch.zeros(1, 32, 32), view, np.random.default_rng(i))[0] for i in range(20)]
    assert all(each.dtype == torch.uint8 for each in found)
    assert 5 < sum(not torch.equal(each, pixels) for each in found) <= 20


def test_batches_depend_on_their_number_alone_and_show_every_image_once_an_epoch():
    source = map_pictures(7, 0)
    view = JointView(crop=(12, 12), short_side=16, resize_range=(0.5, 2.0), colours="photometric")
    stream = JointBatches(source, read, view, batch_size=3, seed=5)
    whole = list(stream.batches(0, 7))
    assert sorted(torch.cat([batch.indices for batch in whole]).tolist()) == sorted(list(range(7)) * 3)
    assert sorted(torch.cat([batch.indices for batch in whole]).tolist()[:7]) == list(range(7))
    workers = JointBatches(source, read, view, batch_size=3, seed=5, workers=2)
    for later, first in zip(workers.batches(3, 7), whole[3:], strict=True):
        assert torch.equal(later.images, first.images) and torch.equal(later.indices, first.indices)
        assert torch.equal(later.targets.nan_to_num(nan=-1), first.targets.nan_to_num(nan=-1))


@pytest.mark.parametrize(("room", "reads"), [(9, 9), (2, 23), (0, 27)])
def test_samples_of_many_epochs_are_decoded_once_as_far_as_there_is_room(monkeypatch, room, reads):
    source, read_now = map_pictures(9, 0, grid=(2, 3)), []
    pixels = source.images.array[0, :, :, 0].size

    def counted(source, index, size):
        read_now.append(index)
        return read(source, index, size)

    view = JointView(crop=(12, 12), resize_range=(0.5, 2.0), colours="photometric")
    sample = 256 + pixels * (3 + 4)  # header, colours, target
    monkeypatch.setenv(kept.VARIABLE, str(room * -(-sample // 4096) * 4096))
    found = list(JointBatches(source, counted, view, batch_size=3, seed=5).batches(0, 9))
    assert len(read_now) == reads
    monkeypatch.setenv(kept.VARIABLE, "0")
    anew = JointBatches(source, read, view, batch_size=3, seed=5).batches(0, 9)
    for first, second in zip(found, anew, strict=True):
        assert torch.equal(first.images, second.images)
        assert torch.equal(first.targets.nan_to_num(nan=-1), second.targets.nan_to_num(nan=-1))


def test_a_map_that_cannot_be_used_is_an_error_of_the_stream():
    source = map_pictures(4, 0)
    source.target.maps.maps[2] = -5
    with pytest.raises(DataError, match="without a class"):
        list(JointBatches(source, read, JointView(crop=(8, 8)), batch_size=4, seed=0).batches(0, 1))
    assert dataclasses.is_dataclass(JointView)
