"""Views have the published distribution: each change against Pillow or exact arithmetic, whole recipes too."""

import functools
import math
import pickle
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy.ndimage import gaussian_filter
from scipy.stats import ks_2samp
from torchvision import transforms
from torchvision.transforms.v2 import functional

from sslbench import config, paths
from sslbench.data.views import Augment, Blur, Grid, Jitter, Solarize, View, ops
from sslbench.data.views.ops import make_view
from sslbench.errors import UsageError

WHOLE = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0}
CONFIGS = sorted((paths.builtin_dir("configs") / "augment").glob("*.yaml"))


def photo(height=48, width=48, seed=0):
    """Smooth colours with some texture, uint8 (h, w, 3)."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((width, height), 3)
    return (np.asarray(smooth) + rng.normal(0, 8, (height, width, 3))).clip(0, 255).astype(np.uint8)


def tensor(pixels):
    return torch.from_numpy(pixels).permute(2, 0, 1)


def array(view):
    return view.permute(1, 2, 0).numpy()


def recipe(name):
    file = paths.builtin_dir("configs") / "augment" / f"{name}.yaml"
    return config.build(Augment, config.read_yaml(file), str(file))


# ---- one change at a time


def test_brightness_and_contrast_are_pillows_but_for_its_rounding():
    pixels = photo()
    for ours, theirs in (
        (ops.adjust_brightness, ImageEnhance.Brightness),
        (ops.adjust_contrast, ImageEnhance.Contrast),
    ):
        for factor in (0.2, 0.9, 1.0, 1.3, 1.8):
            expected = np.array(theirs(Image.fromarray(pixels)).enhance(factor))
            difference = np.abs(ours(pixels, factor).astype(int) - expected)
            assert difference.max() <= 1 and difference.mean() < 0.1


def test_saturation_is_pillows_within_a_level():
    pixels = photo()
    for factor in (0.0, 0.4, 1.0, 1.7):
        theirs = np.array(ImageEnhance.Color(Image.fromarray(pixels)).enhance(factor)).astype(int)
        assert np.abs(ops.adjust_saturation(pixels, factor) - theirs).max() <= 1


def test_hue_is_nearer_to_the_exact_one_than_twice_what_pillow_is():
    pixels = photo()
    for turns in (-0.5, -0.2, -0.03, 0.0, 0.1, 0.4):
        exact = array(functional.adjust_hue(tensor(pixels).double() / 255, turns)) * 255
        pillow = np.array(functional.adjust_hue(Image.fromarray(pixels), turns))
        ours = ops.adjust_hue(pixels.copy(), turns)
        assert np.abs(ours - exact).mean() < 2 * np.abs(pillow - exact).mean() < 3


def test_blur_is_the_gaussian_that_pillow_approximates():
    pixels = photo()
    for sigma in (0.1, 0.3, 0.7, 1.0, 1.5, 2.0):
        exact = np.stack(
            [gaussian_filter(pixels[..., c].astype(float), sigma, mode="mirror", truncate=8) for c in range(3)]
        )
        ours = ops.gaussian_blur(pixels, sigma, reach=math.ceil(3 * sigma))
        assert np.abs(ours - exact.transpose(1, 2, 0)).max() < 1.2
        inside = np.s_[8:-8, 8:-8]  # at the borders Pillow repeats the last pixel
        pillow = np.array(Image.fromarray(pixels).filter(ImageFilter.GaussianBlur(sigma)))
        assert np.abs(ours[inside].astype(int) - pillow[inside]).max() <= 7


def test_a_small_kernel_cuts_the_gaussian_off():
    pixels = photo(96, 96)
    ours = ops.gaussian_blur(pixels, 2.0, reach=4)
    expected = functional.gaussian_blur(tensor(pixels), [9, 9], [2.0, 2.0])
    assert np.abs(ours.astype(int) - array(expected)).max() <= 1
    assert not np.array_equal(ours, ops.gaussian_blur(pixels, 2.0, reach=6))


def test_solarise_is_pillows():
    pixels = photo()
    for threshold in (0, 1, 128, 256):
        assert np.array_equal(ops.invert_from(pixels, threshold), ImageOps.solarize(Image.fromarray(pixels), threshold))


def test_greyscale_is_pillows_luma_within_a_level():
    pixels = photo()
    grey = ops.to_grayscale(pixels)
    assert (grey == grey[:, :, :1]).all()
    assert np.abs(grey[..., 0].astype(int) - np.array(Image.fromarray(pixels).convert("L"))).max() <= 1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_crop_is_resized_as_pillow_does(interpolation):
    pixels = photo(40, 60)
    view = View(size=24, interpolation=interpolation, flip=0.0)
    torch.manual_seed(4)
    ours = array(make_view(view)(tensor(pixels))).astype(int)
    torch.manual_seed(4)
    top, left, height, width = ops.crop_box(40, 60, view.scale, view.ratio, ops.Uniform())
    crop = Image.fromarray(pixels[top : top + height, left : left + width])
    theirs = np.array(crop.resize((24, 24), {"bilinear": 2, "bicubic": 3}[interpolation])).astype(int)
    assert (height, width) != (40, 60) and np.abs(ours - theirs).max() <= 3


# ---- distributions


@pytest.mark.parametrize(("height", "width"), [(200, 300), (28, 28)])
def test_crops_are_distributed_as_torchvisions(height, width):
    torch.manual_seed(0)
    image, n = torch.zeros(3, height, width), 3000
    scale, ratio = (0.08, 1.0), (3 / 4, 4 / 3)
    ours = np.array([ops.crop_box(height, width, scale, ratio, ops.Uniform()) for _ in range(n)])
    theirs = np.array([transforms.RandomResizedCrop.get_params(image, scale, ratio) for _ in range(n)])
    for quantity in (lambda b: b[:, 2] * b[:, 3], lambda b: b[:, 3] / b[:, 2], lambda b: b[:, 0], lambda b: b[:, 1]):
        assert ks_2samp(quantity(ours), quantity(theirs)).pvalue > 1e-4


def test_when_no_crop_fits_the_middle_is_taken_as_torchvision_does():
    for size in ((10, 100), (100, 10), (1, 1), (1, 500)):
        for scale, ratio in (((1.0, 1.0), (3 / 4, 4 / 3)), ((0.9, 1.0), (1.0, 1.0))):
            ours = ops.crop_box(*size, scale, ratio, ops.Uniform())
            assert ours == tuple(transforms.RandomResizedCrop.get_params(torch.zeros(3, *size), scale, ratio))


@settings(max_examples=60, deadline=None)
@given(height=st.integers(1, 40), width=st.integers(1, 40), low=st.floats(0.01, 1), seed=st.integers(0, 2**31))
def test_a_crop_lies_within_the_picture(height, width, low, seed):
    torch.manual_seed(seed)
    top, left, h, w = ops.crop_box(height, width, (low, 1.0), (0.5, 2.0), ops.Uniform())
    assert 0 <= top <= top + h <= height and 0 <= left <= left + w <= width and h >= 1 and w >= 1


class PillowBlur:
    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def statistics(pixels):
    """What the changes change: brightness, contrast, colour, hue and sharpness."""
    values = pixels.astype(float)
    red, green, blue = values.mean(axis=(0, 1))
    sharp = np.abs(np.diff(values.mean(axis=2), axis=1)).mean()
    return values.mean(), values.std(), np.ptp(values, axis=2).mean(), red - green, green - blue, sharp, values[0, 0, 0]


@pytest.mark.parametrize("name", ["simclr", "moco_v1", "moco_v2"])
def test_whole_recipes_are_distributed_as_their_authors_pipelines(name):
    jitter = {"simclr": (0.8, 0.8, 0.8, 0.2), "moco_v1": (0.4, 0.4, 0.4, 0.4), "moco_v2": (0.4, 0.4, 0.4, 0.1)}[name]
    colour, grey = transforms.ColorJitter(*jitter), transforms.RandomGrayscale(0.2)
    crop = transforms.RandomResizedCrop(32, scale=(0.08 if name == "simclr" else 0.2, 1.0))
    steps = [transforms.RandomApply([colour], 0.8), grey, transforms.RandomApply([PillowBlur()], 0.5)]
    steps = [grey, colour] if name == "moco_v1" else steps
    theirs = transforms.Compose([crop, transforms.RandomHorizontalFlip(), *steps])
    view = recipe(name).expanded()[0]
    ours = make_view(config.build(View, {**vars_of(view), "size": 32}, name))
    torch.manual_seed(1)
    random.seed(1)
    pixels, n = photo(48, 64), 700
    image, picture = tensor(pixels), Image.fromarray(pixels)
    samples = [np.array([statistics(array(ours(image))) for _ in range(n)])]
    samples.append(np.array([statistics(np.array(theirs(picture))) for _ in range(n)]))
    for column in range(samples[0].shape[1]):
        assert ks_2samp(samples[0][:, column], samples[1][:, column]).pvalue > 1e-4, column


def vars_of(view):
    return {k: vars(v) if isinstance(v, Jitter | Blur | Solarize | Grid) else v for k, v in vars(view).items()}


def test_each_change_happens_as_often_as_it_says():
    for what in ("flip", "grayscale", "blur", "solarize", "jitter"):
        never = View(size=12, **WHOLE)
        kinds = {
            "flip": {"flip": 0.3},
            "grayscale": {"grayscale": 0.3},
            "blur": {"blur": Blur(0.3, (1.0, 2.0))},
            "solarize": {"solarize": Solarize(0.3, 100)},
            "jitter": {"jitter": Jitter(0.3, brightness=0.5)},
        }
        make, pixels = make_view(View(size=12, **{**WHOLE, **kinds[what]})), tensor(photo(12, 12))
        unchanged = make_view(never)(pixels)
        torch.manual_seed(0)
        changed = np.mean([not torch.equal(make(pixels), unchanged) for _ in range(2000)])
        assert changed == pytest.approx(0.3, abs=0.05)


def test_a_random_threshold_is_uniform():
    """VISSL draws it; of a grey ramp, the part that stays is the threshold."""
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    view = View(size=16, solarize=Solarize(1.0, "random"), **WHOLE)
    torch.manual_seed(0)
    thresholds = [int((ops._solarize(ramp, view, ops.Uniform())[0, :, 0] == ramp[0, :, 0]).sum()) for _ in range(600)]
    assert ks_2samp(thresholds, np.arange(257)).pvalue > 1e-3


def test_the_four_parts_of_the_jitter_come_in_every_order(monkeypatch):
    called = []
    record = [functools.partial(lambda kind, pixels, amount: called.append(kind) or pixels, kind) for kind in range(4)]
    monkeypatch.setattr(ops, "_JITTERS", record)
    make, pixels = make_view(View(size=4, jitter=Jitter(1.0, 0.4, 0.4, 0.4, 0.1))), tensor(photo(4, 4))
    torch.manual_seed(0)
    n = 1200
    for _ in range(n):
        make(pixels)
    orders = Counter(tuple(called[4 * i : 4 * i + 4]) for i in range(n))
    assert len(called) == 4 * n and len(orders) == 24 and max(orders.values()) < 100


def test_the_colour_can_be_taken_before_the_jitter():
    """MoCo v1: then hue and saturation have nothing left to change."""
    pixels = photo(16, 16)
    settings_ = {**WHOLE, "size": 16, "grayscale": 1.0, "jitter": Jitter(1.0, saturation=0.5, hue=0.4)}
    grey = ops.to_grayscale(pixels)
    before = View(**settings_, order=("grayscale", "jitter", "blur", "solarize"))
    assert np.abs(array(make_view(before)(tensor(pixels))).astype(int) - grey).max() <= 1
    assert np.abs(array(make_view(View(**settings_))(tensor(pixels))).astype(int) - grey).max() > 5


# ---- the function


def other_process(make):
    return pickle.loads(pickle.dumps(make))  # noqa: S301


def test_a_view_is_repeatable_and_leaves_its_picture_alone():
    make, image = make_view(recipe("byol").expanded()[1]), tensor(photo())
    before = image.clone()
    torch.manual_seed(7)
    first, second = make(image), make(image)
    torch.manual_seed(7)
    assert torch.equal(make(image), first) and torch.equal(other_process(make)(image), second)
    assert not torch.equal(first, second) and torch.equal(image, before)


def test_a_view_takes_equally_many_random_numbers_whatever_happens():
    make, small = make_view(recipe("simclr").expanded()[0]), tensor(photo(9, 50))
    after = []
    for image in (tensor(photo()), small, small):
        torch.manual_seed(3)
        make(image)
        after.append(torch.rand(1).item())
    assert after[0] == after[1] == after[2]


def test_pictures_of_any_shape_give_a_view_of_the_size_asked_for():
    for shape in ((1, 1), (1, 90), (90, 1), (5, 7), (300, 200)):
        for view in recipe("dino").expanded()[:3]:
            made = make_view(view)(tensor(photo(*shape)))
            assert made.shape == (3, view.size, view.size) and made.dtype == torch.uint8
            assert made.permute(1, 2, 0).is_contiguous()


def test_planar_pictures_give_the_same_views():
    make, image = make_view(recipe("swav").expanded()[2]), tensor(photo())
    torch.manual_seed(0)
    expected = make(image)
    torch.manual_seed(0)
    assert (make(image.contiguous()).int() - expected).abs().max() <= 1


# ---- settings


def test_the_recipes_are_all_there_and_valid():
    found = {file.stem: recipe(file.stem).sizes for file in CONFIGS}
    assert found == {
        "emp_ssl": (32,) * 20,
        "fastsiam": (128,) * 4,
        "nnbyol": (32, 32),
        "smog": (128, 128),
        **dict.fromkeys(["barlow_twins", "byol", "moco_v1", "moco_v2", "moco_v3", "moco_v3_resnet"], (224, 224)),
        **dict.fromkeys(["ressl", "simclr", "simsiam", "vicreg"], (224, 224)),
        "colorization_alexnet": (180,),
        **dict.fromkeys(["clusterfit", "colorization", "mae", "npid", "rotnet", "supervised"], (224,)),
        **dict.fromkeys(["dino", "dino_resnet"], (224,) * 2 + (96,) * 8),
        **dict.fromkeys(["pirl", "pirl_blur"], (224,) + (64,) * 9),
        "jigsaw": (64,) * 9,
        "small_patches": (32,) + (8,) * 9,
        **dict.fromkeys(["deepclusterv2", "simclr_multicrop"], (160,) * 2 + (96,) * 4),
        **dict.fromkeys(["digits", "small", "supcon", "wmse"], (32, 32)),
        "small_multicrop": (32,) * 2 + (16,) * 4,
        "swav": (224,) * 2 + (96,) * 6,
        "densecl": (224, 224),
        **dict.fromkeys(["aim", "beitv2", "capi", "data2vec2", "ijepa", "maskfeat", "simmim", "vqkd"], (224,)),
        **dict.fromkeys(["ibot", "msn"], (224,) * 2 + (96,) * 10),
        "dinov2": (224,) * 2 + (98,) * 8,
        "dinov2_short": (224,) * 2 + (96,) * 8,
        "dinov2_highres": (518,) * 2 + (98,) * 8,
        "lejepa": (224,) * 2 + (98,) * 6,
    }


def test_asymmetric_pairs_are_asymmetric():
    for name in ("barlow_twins", "byol", "dino", "dinov2", "ibot", "moco_v3", "moco_v3_resnet", "vicreg"):
        first, second = recipe(name).expanded()[:2]
        assert (first.blur.p, second.blur.p) == (1.0, 0.1), name
        assert (first.solarize.p, second.solarize.p) == (0.0, 0.2), name
        assert first.jitter == second.jitter == Jitter(0.8, 0.4, 0.4, 0.2, 0.1), name


def test_large_views_come_first_in_the_order_they_are_listed():
    small, large, other = View(2, 96), View(1, 224), View(1, 224, flip=0.0)
    expanded = Augment((small, large, other)).expanded()
    assert [view.size for view in expanded] == [224, 224, 96, 96] and Counter(v.count for v in expanded) == {1: 4}
    assert expanded[1].flip == 0.0


def test_sizes_can_be_replaced():
    values = {"views": [{"count": 2, "size": 224}, {"count": 3, "size": 96}], "size": 64, "small_size": 24}
    assert config.build(Augment, values, "x").sizes == (64, 64, 24, 24, 24)
    assert Augment(size=96).sizes == (96, 96)


def test_wrong_settings_are_explained():
    for values, words in (
        ({"sizes": 3}, "unknown key 'sizes'"),
        ({"views": []}, "views is empty"),
        ({"views": [{"scales": [0, 1]}]}, "unknown key 'scales'"),
        ({"views": [{"jitter": {"colour": 1}}]}, "unknown key 'colour'"),
        ({"views": [{"scale": [1.0, 0.2]}]}, "scale should ascend"),
        ({"views": [{"scale": [0.2, 1.5]}]}, "scale should be above 0 to 1"),
        ({"views": [{"ratio": [2, 1]}]}, "ratio should ascend"),
        ({"views": [{"flip": 1.5}]}, "flip should be from 0 to 1, not 1.5"),
        ({"views": [{"count": 0}]}, "count should be 1 or more, not 0"),
        ({"views": [{"size": 0}]}, "size should be 1 or more, not 0"),
        ({"views": [{"interpolation": "nearest"}]}, "interpolation"),
        ({"views": [{"jitter": {"p": 1, "hue": 0.7}}]}, "jitter: hue should be from 0 to 0.5"),
        ({"views": [{"jitter": {"p": 1, "contrast": -1}}]}, "contrast should be 0 or more, not -1"),
        ({"views": [{"blur": {"sigma": [2, 1]}}]}, "sigma should ascend"),
        ({"views": [{"blur": {"kernel": 23}}]}, "kernel should be above 0 to 1, not 23"),
        ({"views": [{"solarize": {"threshold": 300}}]}, "threshold should be from 0 to 256"),
        ({"views": [{"order": ["jitter", "jitter", "blur", "solarize"]}]}, "order should name"),
        ({"std": [0, 1, 1]}, "std should be above 0, not 0"),
        ({"mean": []}, "mean should be one number per channel"),
        ({"size": 0}, "augment: size should be 1 or more"),
        ({"small_size": 32}, "small_size=32 has no effect"),
        ({"views": [{"size": 224}, {"size": 96}], "size": 64}, "small views (96 pixels) should be smaller"),
    ):
        with pytest.raises(UsageError) as caught:
            config.build(Augment, values, "augment.yaml")
        assert words in str(caught.value)


def test_the_settings_are_listed_without_loading_torch():
    code = "import sys, sslbench.data.views as v; v.Augment(); print({'torch', 'cv2', 'numpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
    for cls in (Augment, View, Jitter, Blur, Solarize):
        assert all(row.meaning for row in config.describe(cls))
