"""Video object segmentation: J and F of DAVIS, propagation of DINO and CRW."""

import dataclasses
from typing import Any

import numpy as np
import torch
from golden_arrays import by_kind, options, series
from golden_cases import Case
from helpers.davis import semi_supervised, unsupervised
from PIL import Image

from sslbench.metrics.dense import video
from sslbench.metrics.dense.video import VideoScores
from sslbench.solvers import propagation
from sslbench.solvers.upsampling import upsampled_classes

FRAMES = 256
"""Number of frames from which on davis2017-evaluation, which numbers them in 8 bits, has a wrong decay."""


def every_frame(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    args = options(case, objects=len(next(iter(expected.values()))), bound_th=0.008, void="void" in given)
    j, f = np.zeros((2, args["objects"], len(given["gt"])))
    scored = np.ones(given["gt"].shape, bool)
    if args["void"]:
        scored = ~given["void"].astype(bool) if "void" in given else given["gt"] != 255
    for k in range(args["objects"]):
        masks = ((given[name] == k + 1) & scored for name in ("gt", "pred"))
        for t, (truth, found) in enumerate(zip(*masks, strict=True)):
            j[k, t] = video.region_similarity(truth, found)
            f[k, t] = video.boundary_measure(truth, found, boundary=args["bound_th"])
    values = video.object_values(VideoScores(j, f))
    ours = {"J": j, "F": f, "J_mean_recall_decay": values[:, 1:4], "F_mean_recall_decay": values[:, 4:]}
    for name, value in expected.items():
        right = slice(2 if len(name) > 1 and j.shape[1] >= FRAMES else None)  # without the decay
        np.testing.assert_allclose(ours[name][:, right], value[:, right], rtol=1e-12, atol=1e-15, err_msg=name)


def table(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    truths, predictions = series(given, "gt"), series(given, "pred")
    order = [key.removeprefix("gt/") for key in given if key.startswith("gt/")] or list(truths)
    args = options(case, task="unsupervised", sequences=order, max_n_proposals=20)
    rows = []
    for name in args["sequences"]:
        if args["task"] == "unsupervised":
            scores = unsupervised(truths[name], predictions[name])
        else:
            scores = semi_supervised(truths[name], predictions[name])
        rows.append(video.object_values(scores))
    values = np.concatenate(rows)
    names = ("J&F-Mean", "J-Mean", "J-Recall", "J-Decay", "F-Mean", "F-Recall", "F-Decay")
    columns = {name: place for place, name in enumerate(("", "J_M", "J_R", "J_D", "F_M", "F_R", "F_D"))}
    means = dict(zip(names, values.mean(axis=0), strict=True))
    long = max(len(truths[name]) for name in args["sequences"]) >= FRAMES
    for name, recorded in expected.items():
        if long and name.endswith(("D", "Decay")):
            continue
        ours = means[name] if name in means else values[:, columns[name]]
        if args["task"] == "unsupervised":  # the reference's objects are in the order of their proposals
            recorded, ours = np.sort(recorded, axis=None), np.sort(ours, axis=None)
        np.testing.assert_allclose(ours, recorded, rtol=1e-12, atol=1e-15, err_msg=name)


def _as_recorded(ids: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return ids at another size (height, width) as Pillow resizes them: it adds up places with their rounding."""
    return np.array(Image.fromarray(ids.astype(np.uint8)).resize(size[::-1], Image.Resampling.NEAREST))


def _first_labels(given: dict[str, np.ndarray], grid: tuple[int, int], expected: dict[str, np.ndarray]) -> torch.Tensor:
    """Return the recorded labels of the first frame, compared with ours but where rounding decides."""
    mask = given["first_mask"]
    classes = len(expected["first_seg"]) if "first_seg" in expected else expected["soft"].shape[1]
    ours = propagation.sampled_labels(mask, grid, classes - 1)
    recorded = expected.get("first_seg", ours)
    centres = [(np.arange(n) + 0.5) * length / n for n, length in zip(grid, mask.shape, strict=True)]
    rows, columns = (np.abs(each - np.round(each)) > 1e-9 for each in centres)
    np.testing.assert_array_equal(ours[:, rows][..., columns], recorded[:, rows][..., columns])
    return torch.from_numpy(recorded.astype(np.float32))


def dino(case: Case) -> None:
    given, expected = case.inputs(), case.expected()
    args = options(case, patch=16, n_last_frames=7, size_mask_neighborhood=12, topk=5, temperature=0.1)
    features = torch.from_numpy(given["features"]).float()
    grid = tuple(features.shape[-2:])
    first = _first_labels(given, grid, expected)
    settings = propagation.Propagation(
        previous=args["n_last_frames"],
        topk=args["topk"],
        temperature=args["temperature"],
        radius=args["size_mask_neighborhood"] or None,
    )
    for max_memory in (1.0, 1e-9):
        soft = list(propagation.propagate_video(features, first, settings, max_memory=max_memory))[1:]
        if soft and "soft" in expected:
            np.testing.assert_allclose(torch.stack(soft).numpy(), expected["soft"], rtol=1e-4, atol=1e-6)
    size = grid[0] * args["patch"], grid[1] * args["patch"]
    for own, recorded in zip(soft, expected.get("mask", soft), strict=True):
        if "mask" in expected:
            _compare_mask(own, recorded, size)


def _compare_mask(soft: torch.Tensor, recorded: np.ndarray, size: tuple[int, int]) -> None:
    """Compare the classes of pixels, where the best differs from the next. Theirs divides a constant class by 0."""
    large = torch.nn.functional.interpolate(soft[None], size, mode="bilinear")[0]
    low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
    if ((high > 0) & (high - low < 1e-6)).any():
        return
    best = torch.where(high > 0, (large - low) / (high - low), large).topk(min(2, len(large)), dim=0).values
    unclear = (best[0] - best[-1] <= 1e-5).numpy() if len(large) > 1 else np.zeros(size, bool)
    found, unclear = (
        _as_recorded(x, recorded.shape) for x in (upsampled_classes(soft, size, min_max=True).numpy(), unclear)
    )
    np.testing.assert_array_equal(found[unclear == 0], recorded[unclear == 0])


def frame_sizes(case: Case) -> None:
    short = options(case, scale_size=[480])["scale_size"][0]
    sizes = case.inputs()["height_width"].tolist()
    for size, resized in zip(sizes, case.expected()["resized"].tolist(), strict=True):
        assert list(propagation.frame_size(*size, short=short)) == resized


def _from_sources(
    features: torch.Tensor, first: torch.Tensor, settings: propagation.Propagation, memory: list[int]
) -> list[torch.Tensor]:
    """Propagate from any frames of long memory, which have no window, and features of any length."""
    n, soft = settings.previous, [first]
    frames, labels = [features[0]] * n + list(features), [first] * n + [first]
    for t in range(1, len(features)):
        far = [0 if t <= n + place or not place else place + n + 1 for place in memory]
        sources = [*far, *range(t, t + n)]
        windowed = [False] * len(far) + [True] * n
        own = [torch.stack([each[place] for place in sources]) for each in (frames, labels)]
        label = propagation.propagate_frame(features[t], *own, settings, windowed=windowed)
        labels.append(label)
        soft.append(label)
    return soft


def crw(case: Case) -> None:
    given, wanted = case.inputs(), case.expected()["soft"]
    args = options(case, n_context=20, topk=10, temperature=0.07, radius=12, long_mem=[0], norm_mask=False, no_l2=False)
    settings = dataclasses.replace(
        propagation.CRW,
        previous=args["n_context"],
        topk=args["topk"],
        temperature=args["temperature"],
        radius=args["radius"],
    )
    first, features = given["first_label"], torch.from_numpy(given["features"]).float()
    if first.ndim == 2:
        first = first[..., None] == np.arange(wanted.shape[-1])
    labels = torch.from_numpy(np.moveaxis(first, -1, 0).astype(np.float32))
    if args["long_mem"] == [0] and not args["no_l2"]:
        soft: Any = propagation.propagate_video(features, labels, settings)
    else:
        unit = features if args["no_l2"] else torch.nn.functional.normalize(features, dim=1)
        soft = _from_sources(unit, labels, settings, args["long_mem"])
    ours = torch.stack(list(soft)).permute(0, 2, 3, 1).numpy()
    if args["norm_mask"]:  # of the output alone, over the classes of each cell
        ours = ours - ours.min(axis=-1, keepdims=True)
        with np.errstate(invalid="ignore"):
            ours = ours / ours.max(axis=-1, keepdims=True)
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)


PATTERNS = {
    "16_video_segmentation/*": by_kind(
        {
            "db_eval_iou|db_statistics|^jf": every_frame,
            "DAVISEvaluation|^davis": table,
            "read_frame|^dino_frame": frame_sizes,
            "label_propagation|eval_video|^dino": dino,
            "batched_affinity|MaskedAttention|^crw": crw,
        }
    )
}
