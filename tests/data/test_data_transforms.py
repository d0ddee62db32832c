"""Transforms of images and colours of views."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from helpers.offenders import offenders
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

from sslbench.data.decode import transforms
from sslbench.data.decode.transforms import describe, normalise, resize_and_crop, resized
from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.open import open_data
from sslbench.data.views import Augment, Blur, Grid, Jitter, Solarize, View, colours
from sslbench.data.views.colours import change_colours
from sslbench.data.views.ops import make_view, make_views
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing


def photo(height, width, seed=0):
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(int)
    return np.clip(smooth + generator.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)


def reference(pixels, preprocessing):
    """What users of torchvision write: v2's Resize and CenterCrop on a Pillow image."""
    image = Image.fromarray(pixels)
    mode = InterpolationMode(preprocessing.interpolation)
    if isinstance(preprocessing.resize, tuple) and preprocessing.interpolation in ("bilinear", "bicubic"):
        # In two steps, since some versions of Pillow swap the two where that is cheaper, and so round differently.
        image = v2.Resize([pixels.shape[0], preprocessing.resize[1]], interpolation=mode)(image)
    if preprocessing.resize is not None:
        size = preprocessing.resize if isinstance(preprocessing.resize, int) else list(preprocessing.resize)
        image = v2.Resize(size, interpolation=mode)(image)
    if preprocessing.crop is not None:
        image = v2.CenterCrop(list(preprocessing.crop))(image)
    return np.asarray(image)


def ours(pixels, preprocessing):
    return resize_and_crop(torch.from_numpy(pixels).permute(2, 0, 1), preprocessing)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "lanczos"])
def test_resize_and_crop_agree_with_torchvision_on_pillow_images(interpolation):
    def check(case):
        size, resize = case
        preprocessing = Preprocessing(resize=resize, crop=(48, 56), interpolation=interpolation)
        expected, found = reference(photo(*size), preprocessing), ours(photo(*size), preprocessing)
        assert found.dtype == torch.uint8 and found.shape == (3, 48, 56)
        difference = np.abs(found.permute(1, 2, 0).numpy().astype(int) - expected)
        if interpolation in ("nearest", "lanczos"):
            assert difference.max() == 0
        else:
            assert difference.max() <= 1 and difference.mean() < 0.01

    sizes = [(150, 200), (201, 133), (64, 64), (40, 31)]
    assert offenders(itertools.product(sizes, [64, (48, 80), 73]), check) == []


def test_a_crop_alone_is_exact_and_pads_with_black():
    for crop in ((60, 60), (33, 20), (31, 50), (5, 41)):
        preprocessing = Preprocessing(resize=None, crop=crop)
        expected = reference(photo(40, 31), preprocessing)
        np.testing.assert_array_equal(ours(photo(40, 31), preprocessing).permute(1, 2, 0).numpy(), expected)


def test_the_result_does_not_keep_the_whole_picture_in_memory():
    found = ours(photo(400, 300), Preprocessing(resize=None, crop=(8, 8)))
    assert found.untyped_storage().nbytes() == 3 * 8 * 8


def test_without_resize_and_crop_the_picture_stays():
    found = ours(photo(40, 31), Preprocessing(resize=None, crop=None))
    np.testing.assert_array_equal(found.permute(1, 2, 0).numpy(), photo(40, 31))


def test_the_resized_size_is_torchvisions():
    for size in ((1, 1), (1, 300), (300, 1), (2, 3), (333, 500), (500, 333), (224, 224), (375, 500)):
        expected = v2.functional.resize(torch.zeros((1, *size), dtype=torch.uint8), 37).shape[1:]
        assert resized(*size, 37) == tuple(expected)
        assert ours(np.zeros((*size, 3), np.uint8), Preprocessing(resize=37, crop=None)).shape[1:] == expected


def test_a_long_thin_picture_cannot_fill_the_memory():
    with pytest.raises(ValueError, match="become"):
        ours(np.zeros((1, 100_000, 3), np.uint8), Preprocessing(resize=256))


@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_normalise_is_mean_and_std_of_images_scaled_to_one(memory_format):
    images = torch.arange(256, dtype=torch.uint8).repeat(3 * 2).view(2, 3, 16, 16)
    preprocessing = Preprocessing(mean=(0.5, 0.4, 0.1), std=(0.2, 0.3, 1.0))
    before = images.clone()
    found = normalise(images, preprocessing, torch.float32, memory_format)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (preprocessing.mean, preprocessing.std))
    expected = (images.double() / 255 - mean) / std
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6)
    assert found.dtype == torch.float32 and found.is_contiguous(memory_format=memory_format)
    assert torch.equal(images, before)


def test_normalise_is_rounded_to_other_types_at_the_end():
    images = torch.from_numpy(photo(32, 32)).permute(2, 0, 1)[None]
    exact = normalise(images, Preprocessing())
    assert torch.equal(normalise(images, Preprocessing(), torch.bfloat16), exact.to(torch.bfloat16))


@pytest.mark.parametrize("change", [{"mean": (0.5,)}, {"std": (1.0, 1.0)}, {"std": (1.0, 0.0, 1.0)}])
def test_normalise_says_when_mean_and_std_do_not_fit(change):
    with pytest.raises(UsageError, match="flag --std"):
        normalise(torch.zeros((1, 3, 4, 4), dtype=torch.uint8), Preprocessing(**change, origin="flag --std"))


def test_output_size_is_known_where_any_picture_comes_out_with_one_size():
    known, unknown = ((256, (224, 224)), (None, (8, 8)), ((8, 9), None)), ((256, None), (None, None))
    for resize, crop in (*known, *unknown):
        preprocessing = Preprocessing(resize=resize, crop=crop)
        assert (preprocessing.output_size is not None) == ((resize, crop) in known)
        sizes = {ours(photo(*size), preprocessing).shape for size in ((40, 31), (16, 50))}
        assert (len(sizes) == 1) == ((resize, crop) in known)


def test_describe_names_every_value():
    text = describe(Preprocessing(interpolation="bicubic", origin="timm resnet18"))
    for part in ("256", "224x224", "bicubic", "0.485 0.456 0.406", "0.229 0.224 0.225", "timm resnet18"):
        assert part in text
    assert "\n" not in text
    plain = Preprocessing(resize=None, crop=None)
    assert "own size" in describe(plain)
    assert "resize to 8x9" in describe(dataclasses.replace(plain, resize=(8, 9)))


def test_every_interpolation_has_a_way():
    names = set(transforms._TENSOR_MODES) | set(transforms._PILLOW_MODES)
    assert names == {"nearest", "bilinear", "bicubic", "lanczos"}


def test_one_channel_is_the_luminance_that_pillow_gives():
    pixels = photo(40, 31)
    one = Preprocessing(mean=(0.4,), std=(0.5,))
    found = normalise(torch.from_numpy(pixels).permute(2, 0, 1)[None], one)
    grey = np.asarray(Image.fromarray(pixels).convert("L"))
    torch.testing.assert_close(found[0, 0], torch.from_numpy((grey / 255 - 0.4) / 0.5).float())
    thrice = torch.from_numpy(grey.copy()).expand(1, 3, -1, -1)
    assert torch.equal(normalise(thrice, one), found), "a grey picture repeated is itself again"


def test_pictures_of_three_channels_are_nothing_for_thirteen():
    with pytest.raises(UsageError, match=r"takes images of 13 channels .* decoded to 3"):
        normalise(torch.zeros(1, 3, 4, 4, dtype=torch.uint8), Preprocessing(mean=(0.5,) * 13, std=(1.0,) * 13))


def coloured_photo(height, width, seed=0):
    """Smooth colours with some texture, uint8 (3, h, w)."""
    rng = np.random.default_rng(seed)
    smooth = np.asarray(Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height), 3))
    return torch.from_numpy((smooth + rng.normal(0, 8, smooth.shape)).clip(0, 255).astype(np.uint8)).permute(2, 0, 1)


STRONG = Jitter(0.8, 0.4, 0.4, 0.4, 0.2)
VIEWS = {
    "brightness": View(jitter=Jitter(1.0, brightness=0.8)),
    "contrast": View(jitter=Jitter(1.0, contrast=0.8)),
    "saturation": View(jitter=Jitter(1.0, saturation=0.8)),
    "hue": View(jitter=Jitter(1.0, hue=0.5)),
    "grey": View(grayscale=0.5),
    "blur": View(blur=Blur(1.0)),
    "blur with a short kernel": View(blur=Blur(0.7, (0.5, 4.0), kernel=0.2)),
    "solarize": View(solarize=Solarize(0.5, "random")),
    "all": View(jitter=STRONG, grayscale=0.2, blur=Blur(0.5), solarize=Solarize(0.2)),
    "all in another order": View(
        jitter=STRONG,
        grayscale=0.2,
        blur=Blur(0.5),
        solarize=Solarize(0.2),
        order=("solarize", "blur", "grayscale", "jitter"),
    ),
}
LEVELS = {"hue": 6, "all": 8, "all in another order": 8}
"""Largest difference of 99.9 % of the values: two roundings of hue and saturation to 8 bits; all others 1."""


@pytest.fixture
def photos_source(tmp_path):
    for number in range(14):
        folder = tmp_path / "photos" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(coloured_photo(40, 50, number).permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    return open_data(str(tmp_path / "photos"))["all"]


def both(view, number=64):
    """Return views made by the workers alone, and with the colours changed in a batch; the same random numbers."""
    image = coloured_photo(40, 50)
    expected, left = [], []
    for seed in range(number):
        torch.manual_seed(seed)
        expected.append(make_view(view)(image))
        torch.manual_seed(seed)
        left.append(make_views(view, colours=False)(image))
    values = torch.tensor([crop.colours for crop in left])
    assert values.shape == (number, colours.VALUES)
    found = change_colours(torch.stack([crop.views[0] for crop in left]), values, view.order)
    return torch.stack(expected).float(), found


@pytest.mark.parametrize("name", VIEWS)
def test_a_batch_has_the_colours_that_the_workers_give(name):
    view = dataclasses.replace(VIEWS[name], size=24)
    expected, found = both(view)
    assert torch.equal(found, found.round()) and found.min() >= 0 and found.max() <= 255
    errors = (expected - found).abs()
    assert errors.flatten().quantile(0.999) <= LEVELS.get(name, 1) and errors.mean() < 0.6
    assert (found - found.mean()).abs().mean() > 5  # pictures, not grey areas


def test_a_stream_of_batches_is_the_same_picture_by_picture(photos_source):
    augment = Augment((View(size=24, count=2, jitter=STRONG, grayscale=0.2, blur=Blur(0.5)), View(size=16, flip=0.5)))
    made, left = (
        next(TrainingData(photos_source, augment, batch_size=6, seed=3, colours=here).batches(1, 2))
        for here in (True, False)
    )
    assert made.colours is None and left.colours.shape == (6, 3, colours.VALUES)
    assert torch.equal(made.boxes, left.boxes) and torch.equal(made.indices, left.indices)
    for number, (expected, view) in enumerate(zip(augment.expanded(), left.views, strict=True)):
        found = change_colours(view, left.colours[:, number], expected.order)
        assert (found - made.views[number].float()).abs().flatten().quantile(0.99) <= 6
    assert torch.equal(left.rows(torch.tensor([4, 1])).colours, left.colours[[4, 1]])


def test_views_that_only_workers_make_are_refused(photos_source):
    for view, channels, words in (
        (View(size=8, jitter=Jitter(1.0, 0.4)), 4, "for RGB images only; these have 4 channels"),
        (View(size=8, jitter=Jitter(1.0, 0.4), grid=Grid(side=3)), 3, "views in a grid"),
        (View(size=8, order=(*View().order, "v2.RandomInvert")), 3, "augment.order: v2.RandomInvert"),
        (View(size=8), 3, "has no effect"),
    ):
        with pytest.raises(UsageError, match=words):
            TrainingData(photos_source, Augment((view,)), batch_size=2, channels=channels, colours=False)


def test_a_kernel_reaches_beyond_a_small_picture():
    for size in (1, 2, 5):
        view = View(size=size, scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, blur=Blur(1.0, (2.0, 2.0)))
        expected, found = both(view, 2)
        assert (expected - found).abs().max() <= 1
