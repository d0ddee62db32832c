"""Solvers on places in images: correspondence, discovery, segmentation in context, joints, propagation."""

import dataclasses
import itertools
import math
from typing import get_args

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from sslbench.solvers import correspondence, discovery, in_context, propagation
from sslbench.solvers.neighbours import nearest
from sslbench.solvers.propagation import CRW, DINO, DINOV3, joint_labels, joint_places
from sslbench.solvers.upsampling import upsampled_classes


def grid(seed=0, shape=(5, 6, 7)):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


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


def picture(seed=0, shape=(9, 11), box=(2, 3, 6, 8), spread=0.1):
    """Features of a background and of an object in a box of rows and columns."""
    random = np.random.default_rng(seed)
    background, thing = random.normal(size=(2, 8))
    mask = np.zeros(shape, bool)
    mask[box[0] : box[2], box[1] : box[3]] = True
    features = np.where(mask.ravel()[:, None], thing - background, background - thing)
    return features + spread * random.normal(size=features.shape), mask


@pytest.mark.parametrize("method", [discovery.lost, discovery.token_cut])
@pytest.mark.parametrize("seed", range(5))
def test_an_object_on_a_background_is_found(method, seed):
    features, mask = picture(seed)
    found = method(features, mask.shape)
    np.testing.assert_array_equal(found.region, mask)
    assert mask.ravel()[found.seed]
    assert found.box(16, 9 * 16, 11 * 16) == (48, 32, 128, 96)


def slow_lost(features, grid, k):
    """Seed and region, with a flood fill by hand."""
    number = len(features)
    product = [[float(np.dot(a, b)) for b in features] for a in features]
    degree = [sum(product[i][j] > 0 for j in range(number) if j != i) for i in range(number)]
    order = sorted(range(number), key=lambda i: (degree[i], i))
    seed = order[0]
    similar = [i for i in order[:k] if product[seed][i] > 0]
    positive = [sum(product[i][j] for i in similar) > 0 for j in range(number)]
    region, edge = {seed}, [seed]
    while edge:
        y, x = divmod(edge.pop(), grid[1])
        for v, u in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            cell = v * grid[1] + u
            if 0 <= v < grid[0] and 0 <= u < grid[1] and positive[cell] and cell not in region:
                region.add(cell)
                edge.append(cell)
    return seed, region


@pytest.mark.parametrize("seed", range(8))
def test_lost_is_that_of_loops(seed):
    random = np.random.default_rng(seed)
    # Many sums of whole numbers are exactly zero, which is not positive.
    for features in (random.normal(size=(42, 5)), random.integers(-1, 2, (42, 3)).astype(float)):
        found = discovery.lost(features, (6, 7), k=10)
        assert (found.seed, set(np.flatnonzero(found.region).tolist())) == slow_lost(features, (6, 7), 10)


@pytest.mark.parametrize("ties", get_args(discovery.Ties))
def test_patches_come_by_ascending_degree(ties):
    degree = np.random.default_rng(0).integers(0, 9, 60)
    order = discovery.by_degree(degree, ties)
    assert sorted(order.tolist()) == list(range(60)) and degree[order].tolist() == sorted(degree.tolist())


@pytest.mark.parametrize("weighted", [False, True])
def test_the_eigenvector_is_that_of_the_generalised_problem(weighted):
    features, _ = picture(3, spread=1.5)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosine = unit @ unit.T
    edges = np.where(cosine > 0.2, cosine if weighted else 1.0, 1e-5)
    degree = np.diag(edges.sum(axis=1))
    values, vectors = scipy.linalg.eigh(degree - edges, degree)
    assert values[2] - values[1] > 1e-3
    ours = discovery.second_eigenvector(features, threshold=0.2, epsilon=1e-5, weighted=weighted)
    wanted = vectors[:, 1] * np.sign(vectors[np.abs(vectors[:, 1]).argmax(), 1])
    np.testing.assert_allclose(ours, wanted, rtol=1e-6, atol=1e-9)


def test_features_of_zeros_and_single_patches_have_an_object():
    for features, grid in ((np.zeros((6, 3)), (2, 3)), (np.ones((1, 3)), (1, 1))):
        for found in (discovery.lost(features, grid), discovery.token_cut(features, grid)):
            assert found.region.ravel()[found.seed]


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_attended_region(seed):
    attention = np.random.default_rng(seed).random(30) ** 3
    found = discovery.dino_seg(attention, (5, 6), mass=0.6)
    order = sorted(range(30), key=lambda i: -attention[i])
    total, kept = 0.0, []
    for i in order:
        if total >= 0.6 * attention.sum():
            break
        kept.append(i)
        total += attention[i]
    mask = np.isin(np.arange(30), kept).reshape(5, 6)
    regions, number = ndimage.label(mask)
    sizes = [(regions == label).sum() for label in range(1, number + 1)]
    assert found.region.sum() == max(sizes) and (found.region <= mask).all()
    np.testing.assert_array_equal(discovery.attended(attention, 0.6), mask.ravel())


def test_the_last_and_only_region_counts():
    only = np.zeros(12)
    only[[4, 5]] = 1
    assert np.flatnonzero(discovery.dino_seg(only, (3, 4)).region).tolist() == [4, 5]
    assert discovery.dino_seg(np.zeros(12), (3, 4)) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_counts_are_those_of_single_pixels(height, width, rows, columns, seed):
    label = np.random.default_rng(seed).choice([0, 1, 2, 255], (height, width)).astype(np.uint8)
    wanted = np.zeros((rows * columns, 3), int)
    for y in range(height):
        for x in range(width):
            if label[y, x] != 255:
                wanted[y * rows // height * columns + x * columns // width, label[y, x]] += 1
    ours = in_context.class_counts(label, (rows, columns), 3, ignore=(255,))
    np.testing.assert_array_equal(ours, wanted)
    total = wanted.sum(axis=1)
    np.testing.assert_allclose(in_context.shares(ours).sum(axis=1), total > 0, rtol=1e-6)


def test_labels_that_are_no_class_are_refused():
    with pytest.raises(ValueError, match="label 7 is none of the 3 classes"):
        in_context.class_counts(np.array([[7]]), (1, 1), 3, ignore=(255,))


def test_patches_without_counted_pixels_are_never_in_the_memory():
    counts = np.array([[0, 0], [4, 0], [0, 0], [0, 4]])
    for number in (1, 2, 4):
        kept = in_context.sample_patches(counts, number, np.random.default_rng(0))
        assert len(kept) == min(number, 2) and set(kept.tolist()) <= {1, 3}


def test_rare_classes_stay_in_the_memory():
    counts = np.zeros((400, 2), int)
    counts[:, 0], counts[5] = 16, [0, 16]
    kept = [5 in in_context.sample_patches(counts, 40, np.random.default_rng(seed)) for seed in range(50)]
    assert np.mean(kept) == 1.0


def nearest_labels(memory, labels, queries, k, temperature):
    similarity, rows = nearest(memory, queries, min(k, len(memory)), metric="cosine", max_memory=1.0)
    return in_context.weighted_labels(similarity, rows, labels, temperature)


@pytest.mark.parametrize("k", [1, 5, 99])
def test_labels_are_the_weighted_mean_of_the_nearest(k, monkeypatch):
    random = np.random.default_rng(0)
    memory, queries = random.normal(size=(40, 6)).astype(np.float32), random.normal(size=(9, 6)).astype(np.float32)
    labels = random.dirichlet(np.ones(3), 40)
    monkeypatch.setattr(in_context, "_GATHERED", 20)  # several blocks
    ours = nearest_labels(memory, labels, queries, k, 0.1)
    unit = memory / np.linalg.norm(memory, axis=1, keepdims=True)
    for found, query in zip(ours, queries / np.linalg.norm(queries, axis=1, keepdims=True), strict=True):
        cosines = unit @ query
        near = np.argsort(-cosines)[:k]
        weights = np.array([math.exp(cosines[row] / 0.1) for row in near])
        np.testing.assert_allclose(found, weights @ labels[near] / weights.sum(), rtol=1e-4)


def test_features_of_zeros_give_labels_and_no_nan():
    labels = np.eye(4)
    ours = nearest_labels(np.eye(4, dtype=np.float32), labels, np.zeros((1, 4), np.float32), 4, 0.02)
    np.testing.assert_allclose(ours, 0.25)


@pytest.mark.parametrize("min_max", [False, True])
@pytest.mark.parametrize("size", [(13, 17), (4, 5), (2, 3)])
def test_classes_of_blocks_are_those_at_once(size, min_max, monkeypatch):
    scores = torch.rand(7, 4, 5, generator=torch.Generator().manual_seed(0))
    scores[3] = 0
    large = torch.nn.functional.interpolate(scores[None], size, mode="bilinear", align_corners=False)[0]
    if min_max:
        for own in large:
            if own.max() > 0:
                own.copy_((own - own.min()) / (own.max() - own.min()))
    monkeypatch.setattr("sslbench.solvers.upsampling._BLOCK", 2 * size[0] * size[1])
    assert (upsampled_classes(scores, size, min_max=min_max) == large.argmax(dim=0)).all()


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (6, 1), (5, 8)])
@pytest.mark.parametrize("sparse", [True, False])
def test_classes_that_cannot_win_are_left_out_without_a_difference(grid, sparse):
    generator = torch.Generator().manual_seed(grid[0])
    for _ in range(20):
        scores = torch.rand((40, *grid), generator=generator)
        scores = torch.where(scores > 0.9, scores, 0.0) if sparse else scores
        large = torch.nn.functional.interpolate(scores[None], (31, 43), mode="bilinear", align_corners=False)[0]
        assert (upsampled_classes(scores, (31, 43)) == large.argmax(dim=0)).all()


def test_a_joint_is_a_small_gaussian_at_the_nearest_cell():
    (label,) = joint_labels(np.array([[1.4, 2.6]]), (5, 4))
    assert np.unravel_index(label.argmax(), label.shape) == (3, 1)
    assert label[3, 2] == pytest.approx(np.exp(-2)) and label[2, 2] == pytest.approx(np.exp(-4))
    assert (label > 0).sum() == 9


def test_joints_at_the_border_stay_on_the_grid():
    labels = joint_labels(np.array([[-0.5, -0.5], [3.49, 4.49]]), (5, 4))
    assert labels[0, 0, 0] == labels[1, 4, 3] == 1 and (labels[0] > 0).sum() == 4


def test_the_place_is_the_weighted_mean_of_the_largest_cells():
    rng = np.random.default_rng(0)
    labels = rng.random((3, 5, 4))
    labels[2] = 0
    found = joint_places(torch.from_numpy(labels), 5)
    for label, place in zip(labels[:2], found, strict=False):
        cells = sorted(((label[y, x], x, y) for y in range(5) for x in range(4)), reverse=True)[:5]
        total = sum(value for value, _, _ in cells)
        assert place.tolist() == pytest.approx([sum(c[0] * c[k] for c in cells) / total for k in (1, 2)])
    assert np.isnan(found[2]).all()


def slow(video, first, settings):
    """Soft labels of every frame, cell by cell."""
    frames = [x / np.linalg.norm(x, axis=0) for x in video]
    height, width = frames[0].shape[1:]
    labels = [first]
    for t in range(1, len(frames)):
        before = list(range(max(1, t - settings.previous), t))
        # Frames before the second one are missing: the first stands in for them, or none does.
        missing = max(0, settings.previous - len(before)) if settings.repeat_first else 0
        sources = [(0, settings.window_on_first), *[(0, True)] * missing, *[(s, True) for s in before]]
        own = np.zeros_like(first)
        for y, x in itertools.product(range(height), range(width)):
            found = []
            for s, windowed in sources:
                for v, u in itertools.product(range(height), range(width)):
                    r = settings.radius
                    square, disk = max(abs(y - v), abs(x - u)), math.hypot(y - v, x - u)
                    inside = (
                        r is None or {"square": square <= r, "disk": disk <= r, "open disk": disk < r}[settings.shape]
                    )
                    if inside or not windowed:
                        found.append((frames[t][:, y, x] @ frames[s][:, v, u], labels[s][:, v, u]))
            found.sort(key=lambda pair: -pair[0])
            number = settings.topk
            while settings.all_ties and number < len(found) and found[number][0] == found[number - 1][0]:
                number += 1
            kept = [(math.exp(value / settings.temperature), label) for value, label in found[:number]]
            own[:, y, x] = sum(w * label for w, label in kept) / sum(w for w, _ in kept)
        labels.append(own)
    return labels


@pytest.mark.parametrize(
    "settings",
    [
        dataclasses.replace(DINO, previous=2, topk=3, radius=1),
        dataclasses.replace(DINO, previous=3, topk=4, radius=None),
        dataclasses.replace(DINOV3, previous=2, topk=3, radius=2),
        dataclasses.replace(CRW, previous=3, topk=4, radius=2),
        dataclasses.replace(CRW, previous=0, topk=50, radius=1.5),
        dataclasses.replace(DINO, previous=2, window_on_first=False, radius=1, topk=100),
    ],
    ids=str,
)
def test_labels_are_those_of_loops_in_any_memory(settings):
    random = np.random.default_rng(0)
    video = random.normal(size=(5, 3, 4, 5))
    first = random.dirichlet(np.ones(3), size=(4, 5)).transpose(2, 0, 1)
    if settings.repeat_first and settings.previous:
        assert settings.previous <= len(video)  # the loop above counts the copies of the first frame
    wanted = slow(video, first, settings)
    for max_memory in (1.0, 1e-9, 5e-6):
        ours = propagation.propagate_video(
            torch.from_numpy(video), torch.from_numpy(first), settings, max_memory=max_memory
        )
        np.testing.assert_allclose(torch.stack(list(ours)).numpy(), np.array(wanted), rtol=1e-9, atol=1e-12)


def test_small_memory_is_kept_by_one_row_of_cells_after_the_other(monkeypatch):
    weighted, cells = propagation._weighted, []

    def noted(similarity, *rest):
        cells.append(len(similarity))
        return weighted(similarity, *rest)

    monkeypatch.setattr(propagation, "_weighted", noted)
    list(propagation.propagate_video(torch.rand(2, 3, 4, 5), torch.ones(1, 4, 5), DINO, max_memory=1e-9))
    assert cells == [5] * 4


def test_labels_stay_shares():
    video = torch.randn(6, 8, 6, 6, generator=torch.Generator().manual_seed(0))
    first = torch.from_numpy(propagation.sampled_labels(np.arange(36).reshape(6, 6) // 12, (6, 6), 2))
    for label in propagation.propagate_video(video, first, CRW):
        torch.testing.assert_close(label.sum(dim=0), torch.ones(6, 6))


def test_a_still_video_keeps_its_labels():
    frame = torch.randn(16, 5, 5, generator=torch.Generator().manual_seed(0))
    first = torch.from_numpy(propagation.sampled_labels(np.eye(5, dtype=int), (5, 5), 1))
    settings = dataclasses.replace(DINO, topk=1)
    *_, last = propagation.propagate_video([frame] * 4, first, settings)
    torch.testing.assert_close(last, first)


def test_frames_may_be_computed_one_by_one():
    read = []

    def frames():
        for t in range(3):
            read.append(t)
            yield torch.randn(4, 3, 3)

    video = propagation.propagate_video(frames(), torch.ones(1, 3, 3), DINO)
    next(video)
    assert read == [0]


def test_an_object_that_vanishes_on_the_grid_keeps_its_place():
    ids = np.zeros((8, 8), int)
    ids[0, 0], ids[4:, 4:] = 1, 2
    labels = propagation.sampled_labels(ids, (2, 2), 2)
    assert labels.shape == (3, 2, 2) and labels[1].sum() == 0 and labels[2, 1, 1] == 1
