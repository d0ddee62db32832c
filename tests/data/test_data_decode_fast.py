"""decoder=fast: JPEGs that are at least four times as large as needed are decoded smaller; the rest as ever."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

from sslbench.data.decode.files import decode
from sslbench.data.decode.picture import UnreadableImage, Wanted
from sslbench.data.decode.transforms import resize_and_crop
from sslbench.preprocessing import Preprocessing

PHOTOS = [Image.fromarray(photo) for photo in load_sample_images().images]  # 640 x 427 each


def jpeg(image, **options):
    file = io.BytesIO()
    image.save(file, "jpeg", quality=90, **options)
    return file.getvalue()


def both(data, resize, crop=None):
    reference = Preprocessing(resize=resize, crop=crop)
    fast = Preprocessing(resize=resize, crop=crop, decoder=("fast",))
    found = []
    for preprocessing in (reference, fast):
        decoded = decode(data, "photo.jpg", Wanted.by(preprocessing))
        found.append((decoded, resize_and_crop(decoded.image, preprocessing, decoded.full)))
    return found


@pytest.mark.parametrize("photo", PHOTOS, ids=["first", "second"])
def test_the_picture_is_decoded_at_the_smallest_size_that_is_large_enough(photo):
    data = jpeg(photo)
    for resize, part in ((300, 1), (107, 1), (106, 2), (54, 2), (53, 4), (27, 4), (26, 8)):
        (whole, expected), (reduced, found) = both(data, resize)
        assert whole.full is None and whole.image.shape == (3, 427, 640)
        assert reduced.image.shape == (3, -(-427 // part), 640 // part)
        assert min(reduced.image.shape[1:]) >= 2 * resize or part == 1
        assert found.shape == expected.shape
        difference = (found.int() - expected.int()).abs().float()
        if part == 1:
            assert torch.equal(found, expected)
        else:  # measured: 0.8 to 2.8
            assert 0 < difference.mean() < 3


def test_the_difference_is_no_shift_and_no_change_of_brightness():
    y, x = np.mgrid[:480, :640]
    smooth = np.stack([x * 0.3 + y * 0.1, 120 + 90 * np.sin(x / 60), 255 - y * 0.5], axis=2).clip(0, 255)
    (_, expected), (reduced, found) = both(jpeg(Image.fromarray(smooth.astype(np.uint8))), 60)
    assert reduced.full is not None
    assert (found.float() - expected.float()).abs().mean() < 0.5, "half a pixel to the side would be 1.5"


@pytest.mark.parametrize("resize", [100, (80, 60), (60, 60)])
def test_turned_pictures_come_out_upright_and_of_the_same_size(resize):
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        (whole, expected), (reduced, found) = both(jpeg(PHOTOS[0], exif=exif), resize, crop=(50, 50))
        assert reduced.full == whole.image.shape[1:]
        assert reduced.conversions == whole.conversions
        assert found.shape == expected.shape == (3, 50, 50)
        assert (found.float() - expected.float()).abs().mean() < 4


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_other_colour_layouts_are_the_same_pictures(mode):
    (whole, expected), (reduced, found) = both(jpeg(PHOTOS[0].convert(mode)), 100)
    assert reduced.conversions == whole.conversions
    assert (found.float() - expected.float()).abs().mean() < 2.5


@pytest.mark.parametrize("kind", ["png", "webp", "bmp"])
def test_other_formats_are_decoded_as_ever(kind):
    file = io.BytesIO()
    PHOTOS[0].save(file, kind)
    (_, expected), (reduced, found) = both(file.getvalue(), 50)
    assert reduced.full is None and torch.equal(found, expected)


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_a_truncated_jpeg_is_refused_all_the_same(options):
    data = jpeg(PHOTOS[0], **options)
    for length in np.linspace(4, len(data) - 3, 12).astype(int):
        with pytest.raises(UnreadableImage):
            decode(data[:length], "photo.jpg", Wanted(resize=50))


def test_without_a_resize_nothing_is_reduced():
    assert decode(jpeg(PHOTOS[0]), "", Wanted.by(Preprocessing(resize=None, decoder=("fast",)))).full is None
