"""Pictures of predictions: what is drawn where."""

import numpy as np
import pytest
from PIL import Image

from sslbench.detection.pictures import colour, draw_predictions
from sslbench.metrics.detection import Detections, Truth, masks

GAP, HEADING = 8, 20
SIDE = 240


def arrays(boxes, *, scores=None, masked=False, difficult=False):
    n = len(boxes)
    images, labels = np.zeros(n, int), np.arange(n) % 2
    boxes = np.array(boxes, dtype=float).reshape(n, 4)
    rle = None
    if masked:
        grid = np.zeros((SIDE, SIDE), dtype=bool)
        grid[100:140, 100:140] = True
        rle = (masks.encode(grid),) * n
    if scores is not None:
        return Detections(images, boxes, np.array(scores, float), labels, rle)
    flags = np.full(n, difficult)
    return Truth(2, ("cat", "dog"), images, boxes, labels, np.zeros(n, bool), flags, np.ones(n), rle)


def grey(side=SIDE):
    return np.full((side, side, 3), 128, dtype=np.uint8)


def panels(path, side=SIDE):
    """The left and the right picture of the first image."""
    sheet = np.array(Image.open(path))
    top = GAP + HEADING
    left = sheet[top : top + side, GAP : GAP + side]
    start = GAP + side + GAP // 2
    return left, sheet[top : top + side, start : start + side]


def test_truth_is_left_and_predictions_are_right(tmp_path):
    truth, found = arrays([[50, 60, 100, 120]]), arrays([[150, 160, 200, 230]], scores=[0.9])
    draw_predictions([grey()], truth, found, tmp_path / "new" / "p.png")
    left, right = panels(tmp_path / "new" / "p.png")
    assert tuple(left[60, 75]) == tuple(left[119, 75]) == tuple(left[90, 50]) == tuple(left[90, 99]) == colour(0)
    assert tuple(left[90, 75]) == tuple(left[90, 100]) == (128, 128, 128)  # inside and just outside
    assert tuple(right[229, 175]) == colour(0)
    assert tuple(right[90, 50]) == (128, 128, 128)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["p.png"]


def test_weak_predictions_are_left_out(tmp_path):
    found = arrays([[150, 160, 200, 230]], scores=[0.4])
    draw_predictions([grey()], arrays([]), found, tmp_path / "p.png")
    assert (panels(tmp_path / "p.png")[1] == 128).all()
    draw_predictions([grey()], arrays([]), found, tmp_path / "p.png", least_score=0.3)
    assert not (panels(tmp_path / "p.png")[1] == 128).all()


def test_masks_tint_and_difficult_objects_are_dashed(tmp_path):
    truth = arrays([[90, 90, 150, 150]], masked=True, difficult=True)
    draw_predictions([grey()], truth, arrays([], scores=[]), tmp_path / "p.png")
    left, _ = panels(tmp_path / "p.png")
    wanted = 0.55 * 128 + 0.45 * np.array(colour(0))
    np.testing.assert_allclose(left[120, 120], wanted, atol=1)
    on_line = (left[149, 92:148] == colour(0)).all(axis=1)
    assert 0.2 < on_line.mean() < 0.9


def test_small_images_are_enlarged_with_their_boxes(tmp_path):
    draw_predictions([grey(60)], arrays([[10, 20, 40, 50]]), arrays([], scores=[]), tmp_path / "p.png")
    left, _ = panels(tmp_path / "p.png")
    assert tuple(left[100, 40]) == tuple(left[100, 159]) == colour(0)


def test_images_are_found_by_their_position_and_stand_in_a_grid(tmp_path):
    truth, nothing = arrays([[50, 60, 100, 120]]), arrays([], scores=[])
    draw_predictions([grey()] * 3, truth, nothing, tmp_path / "p.png", which=[1, 0, 1], names=["x" * 500, "b", "c"])
    sheet = np.array(Image.open(tmp_path / "p.png"))
    pair = 2 * SIDE + GAP // 2
    assert sheet.shape == (2 * (SIDE + HEADING) + 3 * GAP, 2 * pair + 3 * GAP, 3)
    assert (panels(tmp_path / "p.png")[0] == 128).all()  # position 1 has no object
    assert tuple(sheet[GAP + HEADING + 60, 2 * GAP + pair + 75]) == colour(0)


def test_neighbouring_classes_look_different():
    colours = np.array([colour(i) for i in range(6)], dtype=int)
    apart = np.abs(colours[:, None] - colours[None]).sum(axis=2) + 999 * np.eye(6, dtype=int)
    assert apart.min() > 80


def test_images_and_names_must_fit(tmp_path):
    with pytest.raises(ValueError, match="1 images, 1 positions, 2 names"):
        draw_predictions([grey()], arrays([]), arrays([], scores=[]), tmp_path / "p.png", names=["a", "b"])
    assert not list(tmp_path.iterdir())
