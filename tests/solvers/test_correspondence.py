"""Search of keypoints and of mutual cells against loops over all cells."""

import math

import numpy as np
import pytest
import torch

from sslbench.solvers import correspondence


def grid(seed=0, shape=(5, 6, 7)):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_centres_of_cells_and_back():
    cells = torch.tensor([[0.0, 0.0], [3.0, 1.5]])
    assert correspondence.to_pixels(cells, 16, first_pixel=0.5).tolist() == [[8.0, 8.0], [56.0, 32.0]]
    for first_pixel in (0.0, 0.5):
        pixels = correspondence.to_pixels(cells, 16, first_pixel=first_pixel)
        torch.testing.assert_close(correspondence.to_grid(pixels, 16, first_pixel=first_pixel), cells)


def test_samples_are_those_of_torch():
    features = grid()
    positions = torch.tensor([[0.0, 0.0], [6.0, 5.0], [2.3, 4.7], [-1.0, 9.0]], dtype=torch.float64)
    unit = torch.nn.functional.normalize(features, dim=0)
    at = 2 * positions / torch.tensor([6.0, 5.0]) - 1
    wanted = torch.nn.functional.grid_sample(unit[None], at[None, None], align_corners=True, padding_mode="border")
    torch.testing.assert_close(correspondence.sample(features, positions), wanted[0, :, 0].T)


def test_a_cell_is_nearest_to_itself():
    features = grid()
    cells = torch.tensor([[3.0, 2.0], [6.0, 5.0]], dtype=torch.float64)
    maps = correspondence.similarity_maps(correspondence.sample(features, cells), features)
    torch.testing.assert_close(correspondence.nearest_cells(maps), cells)
    assert maps.amax((1, 2)).tolist() == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("radius", [None, 0, 1, 2, 9])
def test_soft_argmax_is_the_mean_over_the_window(radius):
    maps = grid(1, (4, 6, 7))
    ours = correspondence.soft_argmax(maps, temperature=0.3, radius=radius)
    for own, (column, row) in zip(maps.tolist(), ours.tolist(), strict=True):
        best = max((own[y][x], y, x) for y in range(6) for x in range(7))
        cells = [
            (math.exp(own[y][x] / 0.3), x, y)
            for y in range(6)
            for x in range(7)
            if radius is None or max(abs(y - best[1]), abs(x - best[2])) <= radius
        ]
        total = sum(weight for weight, _, _ in cells)
        assert column == pytest.approx(sum(weight * x for weight, x, _ in cells) / total)
        assert row == pytest.approx(sum(weight * y for weight, _, y in cells) / total)


@pytest.mark.parametrize(("ratio", "most"), [(0.9, 1000), (1.0, 5), (0.5, 1000)])
def test_matches_are_those_of_all_distances(ratio, most):
    random = np.random.default_rng(2)
    source, target = random.normal(size=(30, 3)), random.normal(size=(20, 3))
    target[7] = target[3]  # equally near: no match
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (source, target)]
    wanted = []
    for row, x in enumerate(unit[0]):
        distances = np.linalg.norm(unit[1] - x, axis=1)
        first, second = np.sort(distances)[:2]
        if first < ratio * second - 1e-12:
            wanted.append((first, row, int(distances.argmin())))
    wanted = sorted(wanted)[:most]
    ours = correspondence.ratio_matches(source, target, ratio=ratio, most=most)
    assert list(zip(ours.source.tolist(), ours.target.tolist(), strict=True)) == [
        (row, cell) for _, row, cell in wanted
    ]
    np.testing.assert_allclose(ours.distance, [first for first, _, _ in wanted], atol=1e-7)


def test_a_single_target_is_a_match():
    assert correspondence.ratio_matches(np.eye(2), np.eye(2)[:1]).target.tolist() == [0, 0]
