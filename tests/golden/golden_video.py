"""Video object segmentation: J and F of DAVIS, propagation of DINO and CRW."""

import dataclasses

import numpy as np
import pytest
import torch
from golden_cases import Case

from sslbench.metrics.dense import video
from sslbench.metrics.dense.video import VideoScores
from sslbench.solvers import propagation, propagation_settings
from sslbench.solvers.upsampling import upsampled_classes

FRAMES = 256
"""Number of frames from which on davis2017-evaluation, which numbers them in 8 bits, has a wrong decay."""


def every_frame(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    j, f = np.zeros((2, args["objects"], len(given["gt"])))
    scored = np.ones(given["gt"].shape, bool)
    if args["void"]:
        scored = ~given["void"].astype(bool) if "void" in given else given["gt"] != 255
    for k in range(args["objects"]):
        masks = ((given[name] == k + 1) & scored for name in ("gt", "pred"))
        for t, (truth, found) in enumerate(zip(*masks, strict=True)):
            j[k, t] = video.region_similarity(truth, found)
            f[k, t] = video.boundary_measure(truth, found, boundary=args["bound_th"])
    np.testing.assert_allclose(j, expected["J"], rtol=1e-12)
    np.testing.assert_allclose(f, expected["F"], rtol=1e-12)
    values = video.object_values(VideoScores(j, f))
    columns = 3 if j.shape[1] < FRAMES else 2  # the decay is wrong from then on
    for ours, name in ((values[:, 1:4], "J_mean_recall_decay"), (values[:, 4:], "F_mean_recall_decay")):
        np.testing.assert_allclose(ours[:, :columns], expected[name][:, :columns], rtol=1e-12, atol=1e-15)


def table(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    rows = []
    for name in args["sequences"]:
        truth, found = given[f"gt/{name}"], given[f"pred/{name}"]
        if args["task"] == "unsupervised":
            scores, _ = video.unsupervised(truth, found)
        else:
            scores = video.semi_supervised(truth, found)
        rows.append(video.object_values(scores))
    values = np.concatenate(rows)
    long = max(len(given[f"gt/{name}"]) for name in args["sequences"]) >= FRAMES
    for column, name in enumerate(("J_M", "J_R", "J_D", "F_M", "F_R", "F_D"), start=1):
        if long and name.endswith("_D"):
            continue
        recorded, ours = expected[name], values[:, column]
        if args["task"] == "unsupervised":  # the reference's objects are in the order of their proposals
            recorded, ours = np.sort(recorded), np.sort(ours)
        np.testing.assert_allclose(ours, recorded, rtol=1e-12, atol=1e-15)
    words = ("J&F-Mean", "J-Mean", "J-Recall", "J-Decay", "F-Mean", "F-Recall", "F-Decay")
    for name, value in zip(words, values.mean(axis=0), strict=True):
        if not (long and name.endswith("Decay")):
            assert value == pytest.approx(float(expected[name]), rel=1e-12, abs=1e-15), name


def dino(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    features = torch.from_numpy(given["features"]).float()
    grid, patch = tuple(args["grid"]), args["patch"]
    first = propagation.sampled_labels(given["first_mask"], grid, len(expected["first_seg"]) - 1)
    np.testing.assert_array_equal(first, expected["first_seg"])
    settings = propagation_settings.Propagation(
        previous=args["n_last_frames"],
        topk=args["topk"],
        temperature=args["temperature"],
        radius=args["size_mask_neighborhood"] or None,
    )
    for max_memory in (1.0, 1e-9):
        soft = list(propagation.propagate_video(features, torch.from_numpy(first), settings, max_memory=max_memory))
        np.testing.assert_allclose(torch.stack(soft[1:]).numpy(), expected["soft"], rtol=1e-4, atol=1e-6)
    size = grid[0] * patch, grid[1] * patch
    for own, recorded in zip(soft[1:], expected["mask"], strict=True):
        large = torch.nn.functional.interpolate(own[None], size, mode="bilinear")[0]
        low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
        best = torch.where(high > 0, (large - low) / (high - low), large).topk(2, dim=0).values
        clear = (best[0] - best[1] > 1e-5).numpy()
        rows, columns = (
            ((np.arange(n) + 0.5) * side / n).astype(int) for n, side in zip(recorded.shape, size, strict=True)
        )
        found, clear = (x[np.ix_(rows, columns)] for x in (upsampled_classes(own, size, min_max=True).numpy(), clear))
        np.testing.assert_array_equal(found[clear], recorded[clear])


def frame_sizes(case: Case) -> None:
    for (height, width), resized in zip(
        case.inputs()["height_width"].tolist(), case.expected()["resized"].tolist(), strict=True
    ):
        assert list(propagation.frame_size(height, width)) == resized


def crw(case: Case) -> None:
    given, args = case.inputs(), case.meta["args"]
    assert args["long_mem"] == [0]
    wanted = case.expected()["soft"]
    settings = dataclasses.replace(
        propagation_settings.CRW,
        previous=args["n_context"],
        topk=args["topk"],
        temperature=args["temperature"],
        radius=args["radius"],
    )
    number = wanted.shape[-1]
    first = torch.from_numpy((given["first_label"] == np.arange(number)[:, None, None]).astype(np.float32))
    soft = propagation.propagate_video(torch.from_numpy(given["features"]).float(), first, settings)
    ours = torch.stack(list(soft)).permute(0, 2, 3, 1).numpy()
    if args["norm_mask"]:  # of the output alone, over the classes of each cell
        ours = ours - ours.min(axis=-1, keepdims=True)
        ours = ours / ours.max(axis=-1, keepdims=True)
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)


PATTERNS = {
    "16_video_segmentation/jf_*": every_frame,
    "16_video_segmentation/davis_*": table,
    "16_video_segmentation/dino_propagation*": dino,
    "16_video_segmentation/dino_frame_sizes*": frame_sizes,
    "16_video_segmentation/crw_*": crw,
}
