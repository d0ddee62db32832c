"""Label propagation against loops over all cells of all sources."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch

from sslbench.solvers import propagation
from sslbench.solvers.propagation_settings import CRW, DINO, DINOV3


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
