"""Views in a grid of one crop: place, colours, and the crop of a square."""

import dataclasses

import numpy as np
import pytest
import torch

from sslbench import config, paths
from sslbench.data.views import Augment, Grid, Jitter, View, ops
from sslbench.data.views.ops import make_view, make_views
from sslbench.errors import UsageError

WHOLE = {"scale": (1.0, 1.0), "ratio": (1.0, 1.0), "flip": 0.0}


def numbered(side):
    """Return a picture whose pixels are all different, row and column as colours."""
    rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([rows, columns, torch.zeros_like(rows)]).to(torch.uint8)


def test_cells_are_taken_column_by_column_without_a_gap():
    views = make_views(View(size=4, grid=Grid(side=3), **WHOLE))(numbered(12))[0]
    assert [tuple(view[:2, 0, 0].tolist()) for view in views] == [(4 * y, 4 * x) for x in range(3) for y in range(3)]
    assert all(view.shape == (3, 4, 4) for view in views)


def test_places_in_a_cell_are_uniform_over_the_gap():
    torch.manual_seed(0)
    make, counts = make_views(View(size=4, grid=Grid(side=3, gap=2), **WHOLE)), np.zeros((9, 3, 3))
    for _ in range(300):
        for i, view in enumerate(make(numbered(18))[0]):
            y, x = (int(view[axis, 0, 0]) - 6 * at for axis, at in ((0, i % 3), (1, i // 3)))
            counts[i, y, x] += 1
    assert (counts.sum(axis=(1, 2)) == 300).all()
    assert ((counts - 300 / 9) ** 2 / (300 / 9)).sum() < 115  # chi squared with 72 degrees of freedom: 1 in 1,000


@pytest.mark.parametrize("augment", ["crop", "views"])
def test_colours_and_flips_are_of_the_crop_or_of_each_view(augment):
    torch.manual_seed(0)
    kind = View(
        size=4, grid=Grid(side=3, augment=augment), **{**WHOLE, "flip": 0.5}, jitter=Jitter(p=1.0, brightness=0.9)
    )
    grey, flips = torch.full((3, 12, 12), 100, dtype=torch.uint8), []
    for _ in range(20):
        levels = {int(view[0, 0, 0]) for view in make_views(kind)(grey)[0]}
        assert (len(levels) == 1) == (augment == "crop")
        views = make_views(dataclasses.replace(kind, jitter=Jitter()))(numbered(12))[0]
        flips.append({bool(view[1, 0, 0] > view[1, 0, 3]) for view in views})
    assert {len(each) for each in flips} == ({1} if augment == "crop" else {2}) or augment == "views"
    assert any(True in each for each in flips) and any(False in each for each in flips)


def test_an_undivided_crop_is_the_view():
    kind, image = View(size=8, jitter=Jitter(1.0, 0.4, 0.4, 0.4, 0.1)), numbered(20)
    torch.manual_seed(4)
    one = make_view(kind)(image)
    torch.manual_seed(4)
    (other,) = make_views(kind)(image).views
    assert torch.equal(one, other)


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_the_edges_of_a_view_are_the_places_of_its_pixels(flip):
    """A picture whose colours are its rows and columns shows where a crop comes from, and whether it is mirrored."""
    torch.manual_seed(0)
    rows, columns = torch.meshgrid(torch.arange(120), torch.arange(160), indexing="ij")
    image = torch.stack([rows, columns, torch.zeros_like(rows)]).to(torch.uint8)
    for _ in range(20):
        ((view,), (top, left, bottom, right), _) = make_views(View(size=40, scale=(0.1, 0.5), flip=flip))(image)
        centres = (torch.arange(40) + 0.5) / 40
        wanted = top + (bottom - top) * centres - 0.5, left + (right - left) * centres - 0.5
        inner = slice(4, 36)  # the filter of the resize meets no border here
        assert (view[0].float().mean(1) - wanted[0])[inner].abs().max() <= 1
        assert (view[1].float().mean(0) - wanted[1])[inner].abs().max() <= 1
        assert (right < left) == bool(flip)


def test_a_crop_of_a_square_has_its_share_of_the_shorter_side_anywhere():
    for height, width in ((100, 160), (160, 100), (64, 64)):
        torch.manual_seed(0)
        share = (255 / 256) ** 2
        boxes = np.array(
            [ops.crop_box(height, width, (share, share), (1.0, 1.0), ops.Uniform(), square=True) for _ in range(400)]
        )
        side = round(min(height, width) * 255 / 256)
        assert (boxes[:, 2:] == side).all()
        for axis, whole in ((0, height), (1, width)):
            assert boxes[:, axis].min() == 0 or whole - side > 20
            assert boxes[:, axis].max() <= whole - side
            assert boxes[:, axis].std() == pytest.approx(np.sqrt(((whole - side + 1) ** 2 - 1) / 12), rel=0.1, abs=0.3)


def recipe(name):
    file = paths.builtin_dir("configs") / "augment" / f"{name}.yaml"
    return config.build(Augment, config.read_yaml(file), str(file))


def test_sizes_and_evaluated_size_of_the_recipes():
    assert recipe("pirl").sizes == (224, *[64] * 9)
    assert [view.crop_side for view in recipe("pirl").expanded()] == [224, 255]
    assert recipe("jigsaw").sizes == (64,) * 9
    assert recipe("pirl").whole_size == 224
    assert recipe("jigsaw").whole_size == 223  # the centre of 255 pixels, as 224 of 256
    assert Augment((View(size=8, grid=Grid(side=3, gap=2)),)).whole_size == 30
    assert recipe("swav").whole_size == 224


def test_senseless_grids_are_refused():
    for settings, message in (
        ({"side": 0}, "grid: side should be 1 or more"),
        ({"side": 3, "gap": -1}, "grid: gap should be 0 or more"),
        ({"gap": 2}, "no effect without side=2"),
        ({"augment": "views"}, "no effect without side=2"),
    ):
        with pytest.raises(UsageError, match=message):
            Grid(**settings)
