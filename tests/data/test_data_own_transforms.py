"""Transforms of torchvision and the user's own functions in the order of a view."""

import pickle
import sys

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from sslbench import config
from sslbench.data.views import Augment, View
from sslbench.data.views.ops import make_view
from sslbench.errors import UsageError

WHOLE = {"size": 8, "scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0}
COLOURS = ("jitter", "grayscale", "blur", "solarize")


def picture(seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, (3, 8, 8), dtype=np.uint8))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of the user's own."""
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "def halved(picture, *, times=1): return picture // 2**times\n"
        "def noisy(picture): return picture + torch.randint(3, picture.shape, dtype=picture.dtype)\n"
        "def broken(picture): raise KeyError('key')\n"
        "def cut(picture): return picture[:, :4]\n"
        "number = 3\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine", None)


def test_a_transform_has_its_place_in_the_order(mine):
    image = picture()
    inverted = {"name": "v2.RandomInvert", "p": 1.0}
    halved = {"name": "mine:halved", "times": 2}
    first = make_view(View(**WHOLE, order=(inverted, *COLOURS, halved)))(image)
    assert torch.equal(first, (255 - image) // 4)
    second = make_view(View(**WHOLE, order=(halved, *COLOURS, inverted)))(image)
    assert torch.equal(second, 255 - image // 4)
    between = View(**WHOLE, order=("jitter", halved, "grayscale", "blur", "solarize"), grayscale=1.0)
    assert make_view(between)(image).max() < 64


@pytest.mark.parametrize(
    ("entry", "transform"),
    [
        ({"name": "v2.RandomPosterize", "bits": 3, "p": 0.5}, v2.RandomPosterize(3, p=0.5)),
        ({"name": "v2.RandomPerspective", "distortion_scale": 0.4}, v2.RandomPerspective(0.4)),
        (
            {"name": "v2.RandomApply", "p": 0.5, "transforms": [{"name": "v2.RandomRotation", "degrees": 30}]},
            v2.RandomApply([v2.RandomRotation(30)], p=0.5),
        ),
        ("v2.RandomAutocontrast", v2.RandomAutocontrast()),
    ],
)
def test_it_is_torchvisions_with_the_same_random_numbers(entry, transform):
    make = pickle.loads(pickle.dumps(make_view(View(**WHOLE, order=(*COLOURS, entry)))))  # noqa: S301
    plain = make_view(View(**WHOLE))
    for seed in range(8):
        torch.manual_seed(seed)
        found = make(picture(seed))
        torch.manual_seed(seed)
        assert torch.equal(found, transform(plain(picture(seed))))


def test_pictures_of_16_bits_are_changed_in_floats():
    image = picture().float() * 0.9
    found = make_view(View(**WHOLE, order=(*COLOURS, {"name": "v2.RandomInvert", "p": 1.0})))(image)
    torch.testing.assert_close(found, 255 - image)


def test_building_a_view_leaves_the_random_numbers_alone(mine):
    torch.manual_seed(0)
    state = torch.get_rng_state()
    make_view(View(**WHOLE, order=(*COLOURS, "mine:noisy", "v2.RandomInvert")))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_does_not_work_is_refused_before_training(mine):
    for entry, message in (
        ("v2.RandomPosteriz", "no transform 'RandomPosteriz'.*RandomPosterize"),
        ({"name": "v2.RandomPosterize", "bit": 4}, "does not take {'bit': 4}"),
        ({"name": "v2.Resize", "size": 4}, r"gives \(3, 4, 4\) torch.uint8 for a picture \(3, 8, 8\)"),
        ({"name": "v2.MixUp", "num_classes": 3}, "v2.MixUp fails on a picture"),
        ("mine:broken", "mine:broken fails on a picture of shape .* KeyError"),
        ("mine:cut", r"mine:cut gives \(3, 4, 8\)"),
        ("mine:number", "a int, not a function"),
        ("mine:missing", "has no 'missing'"),
        ({"name": "mine:halved", "amount": 2}, "unexpected keyword argument 'amount'"),
    ):
        with pytest.raises(UsageError, match=f"(?s){message}"):
            make_view(View(**WHOLE, order=(*COLOURS, entry)))


def test_an_order_that_cannot_be_meant_is_refused():
    for values, message in (
        ({"views": [{"order": [*COLOURS, "blurr"]}]}, "no operation 'blurr'"),
        ({"views": [{"order": [*COLOURS, {"bits": 4}]}]}, "no operation ''"),
        ({"views": [{"order": [*COLOURS, {"name": "v2.RandomApply", "transforms": 5}]}]}, "should be a list, not 5"),
        ({"views": [{"order": [*COLOURS, {"name": "v2.RandomApply", "transforms": [5]}]}]}, "no operation '5'"),
        ({"views": [{"order": [*COLOURS[:3], {"name": "solarize", "p": 1}]}]}, "solarize takes no arguments here"),
        ({"views": [{"order": ["v2.RandomInvert"]}]}, "order should name"),
        ({"views": [{}], "code": ["mine:halved"]}, "no view's order names 'mine:halved'"),
    ):
        with pytest.raises(UsageError, match=message):
            config.build(Augment, values, "test")
