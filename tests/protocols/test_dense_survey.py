"""Survey of the targets of dense tasks: sums of all images, in the memory of one chunk."""

import io
import tracemalloc

import numpy as np
import pytest
import torch
from helpers.targets import map_pictures
from PIL import Image

from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense import survey as surveyed
from sslbench.protocols._parts.dense.survey import GRID, survey
from sslbench.protocols._parts.pictures import sheet
from sslbench.protocols.segmentation import Segmentation, Settings
from sslbench.targets.none import Unlabelled

ENGINE = ExtractSettings(torch.device("cpu"), workers=0)


def test_sums_are_those_of_all_images(monkeypatch):
    monkeypatch.setattr(surveyed, "_CHUNK", 3)
    pictures = map_pictures(8, 0)
    one = Segmentation(Settings(), pictures.target.classes)
    found = survey(pictures, one.read, one.cells, ENGINE)
    cells = [one.cells(one.read(pictures, i, (16, 24)), GRID) for i in range(8)]
    np.testing.assert_array_equal(found.sums, sum(sums for sums, _ in cells))
    np.testing.assert_array_equal(found.numbers, sum(numbers for _, numbers in cells))
    shares = np.bincount(pictures.target.maps.maps.ravel(), minlength=4) / pictures.target.maps.maps.size
    assert found.constant.ravel() == pytest.approx(shares)


def test_memory_does_not_grow_with_the_number_of_images(monkeypatch):
    monkeypatch.setattr(surveyed, "_CHUNK", 1)
    pictures = map_pictures(60, 0)
    one = Segmentation(Settings(), pictures.target.classes)
    of_chunk = 8 * 4 * GRID[0] * GRID[1]
    tracemalloc.start()
    survey(pictures, one.read, one.cells, ENGINE)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * of_chunk


# Sheets of test images: pictures with any number of channels.


@pytest.mark.parametrize(("channels", "shown"), [(1, [0, 0, 0]), (2, [0, 0, 0]), (3, [0, 50, 100]), (5, [0, 50, 100])])
def test_pictures_with_any_number_of_channels_are_shown(channels, shown):
    array = np.broadcast_to(50 * np.arange(channels), (2, 160, 120, channels)).astype(np.uint8)
    labels = Unlabelled(2)
    source = Source("bands", ("0", "1"), labels, Arrays(array, "bands"))
    own = Preprocessing(resize=None, crop=None, mean=(0.5,) * channels, std=(0.25,) * channels, origin="test")
    png = sheet(source, {"best": [0], "worst": [1]}, {0: "a", 1: "b"}, lambda picture, *_: picture, own)
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    assert pixels[40, 80].tolist() == shown
