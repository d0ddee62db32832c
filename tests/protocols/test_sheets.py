"""Sheets of test images: pictures with any number of channels."""

import io

import numpy as np
import pytest
from PIL import Image

from sslbench.data.images import Arrays
from sslbench.data.source import Source
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.pictures import sheet
from sslbench.targets.none import Unlabelled


@pytest.mark.parametrize(("channels", "shown"), [(1, [0, 0, 0]), (2, [0, 0, 0]), (3, [0, 50, 100]), (5, [0, 50, 100])])
def test_pictures_with_any_number_of_channels_are_shown(channels, shown):
    array = np.broadcast_to(50 * np.arange(channels), (2, 160, 120, channels)).astype(np.uint8)
    labels = Unlabelled(2)
    source = Source("bands", ("0", "1"), labels, Arrays(array, "bands"))
    own = Preprocessing(resize=None, crop=None, mean=(0.5,) * channels, std=(0.25,) * channels, origin="test")
    png = sheet(source, {"best": [0], "worst": [1]}, {0: "a", 1: "b"}, lambda picture, *_: picture, own)
    pixels = np.asarray(Image.open(io.BytesIO(png)))
    assert pixels[40, 80].tolist() == shown
