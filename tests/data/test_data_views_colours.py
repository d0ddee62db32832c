"""Colours that the training device changes are those of the workers, drawn alike, apart from rounding."""

import dataclasses

import numpy as np
import pytest
import torch
from PIL import Image

from sslbench.data.loading.pretraining import TrainingData
from sslbench.data.open import open_data
from sslbench.data.views import Augment, Blur, Grid, Jitter, Solarize, View, colours
from sslbench.data.views.colours import change_colours
from sslbench.data.views.ops import make_view, make_views
from sslbench.errors import UsageError


def photo(height, width, seed=0):
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
        Image.fromarray(photo(40, 50, number).permute(1, 2, 0).numpy()).save(folder / f"{number}.png")
    return open_data(str(tmp_path / "photos"))["all"]


def both(view, number=64):
    """Return views made by the workers alone, and with the colours changed in a batch; the same random numbers."""
    image = photo(40, 50)
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
