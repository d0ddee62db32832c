"""The warning about images that a default transform makes several times larger."""

import dataclasses

import numpy as np
import pytest

from sslbench.data.checks.samples import enlargement
from sslbench.data.open import open_data
from sslbench.preprocessing import Preprocessing


@pytest.fixture
def images(tmp_path):
    from PIL import Image

    (tmp_path / "p" / "a").mkdir(parents=True)
    for i, size in enumerate([(40, 32), (40, 32), (400, 300)]):
        Image.fromarray(np.full((*size, 3), i, np.uint8)).save(tmp_path / "p" / "a" / f"{i}.png")
    [source] = open_data(str(tmp_path / "p")).values()
    return source.images


def test_small_images_are_told_with_the_flags_that_keep_their_size(images):
    text = enlargement(images, Preprocessing(origin="ImageNet default (Net has no attribute 'preprocessing')"))
    assert text is not None and "32 x 40 pixels" in text and "--resize 32 --crop 32" in text


@pytest.mark.parametrize("origin", ["timm resnet18.a1_in1k", "torchvision default, changed: resize, crop"])
def test_sizes_that_somebody_named_are_wanted(images, origin):
    assert enlargement(images, Preprocessing(origin=origin)) is None


@pytest.mark.parametrize("resize", [None, 64, (256, 256)])
def test_images_that_stay_about_as_large_are_not_mentioned(images, resize):
    assert enlargement(images, dataclasses.replace(Preprocessing(), resize=resize)) is None
