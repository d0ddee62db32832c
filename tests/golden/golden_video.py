"""Video object segmentation: J and F of DAVIS, propagation of DINO and CRW."""

import dataclasses

import numpy as np
import pytest
import torch
from golden_cases import Case

from sslbench.metrics.dense import video
from sslbench.metrics.dense.video import VideoScores
from sslbench.solvers import propagation
from sslbench.solvers.upsampling import upsampled_classes


def every_frame(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    assert not args["void"]
    j, f = np.zeros((2, args["objects"], len(given["gt"])))
    for k in range(args["objects"]):
        for t, (truth, found) in enumerate(zip(given["gt"] == k + 1, given["pred"] == k + 1, strict=True)):
            j[k, t] = video.region_similarity(truth, found)
            f[k, t] = video.boundary_measure(truth, found, boundary=args["bound_th"])
    np.testing.assert_allclose(j, expected["J"], rtol=1e-12)
    np.testing.assert_allclose(f, expected["F"], rtol=1e-12)
    values = video.object_values(VideoScores(j, f))
    np.testing.assert_allclose(values[:, 1:4], expected["J_mean_recall_decay"], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(values[:, 4:], expected["F_mean_recall_decay"], rtol=1e-12, atol=1e-15)


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
    for column, name in enumerate(("J_M", "J_R", "J_D", "F_M", "F_R", "F_D"), start=1):
        recorded, ours = expected[name], values[:, column]
        if args["task"] == "unsupervised":  # the reference's objects are in the order of their proposals
            recorded, ours = np.sort(recorded), np.sort(ours)
        np.testing.assert_allclose(ours, recorded, rtol=1e-12, atol=1e-15)
    words = ("J&F-Mean", "J-Mean", "J-Recall", "J-Decay", "F-Mean", "F-Recall", "F-Decay")
    for name, value in zip(words, values.mean(axis=0), strict=True):
        assert value == pytest.approx(float(expected[name]), rel=1e-12, abs=1e-15), name


def dino(case: Case) -> None:
    given, expected, args = case.inputs(), case.expected(), case.meta["args"]
    features = torch.from_numpy(given["features"]).float()
    grid, patch = tuple(args["grid"]), args["patch"]
    first = propagation.sampled_labels(given["first_mask"], grid, len(expected["first_seg"]) - 1)
    np.testing.assert_array_equal(first, expected["first_seg"])
    settings = propagation.Propagation(
        previous=args["n_last_frames"],
        topk=args["topk"],
        temperature=args["temperature"],
        radius=args["size_mask_neighborhood"] or None,
    )
    for max_memory in (1.0, 1e-9):
        soft = list(propagation.propagate_video(features, torch.from_numpy(first), settings, max_memory=max_memory))
        np.testing.assert_allclose(torch.stack(soft[1:]).numpy(), expected["soft"], rtol=1e-4, atol=1e-6)
    size = grid[0] * patch, grid[1] * patch
    assert size == given["first_mask"].shape
    for own, recorded in zip(soft[1:], expected["mask"], strict=True):
        large = torch.nn.functional.interpolate(own[None], size, mode="bilinear")[0]
        low, high = large.amin((1, 2), keepdim=True), large.amax((1, 2), keepdim=True)
        best = torch.where(high > 0, (large - low) / (high - low), large).topk(2, dim=0).values
        clear = (best[0] - best[1] > 1e-5).numpy()
        np.testing.assert_array_equal(upsampled_classes(own, size, min_max=True).numpy()[clear], recorded[clear])


def frame_sizes(case: Case) -> None:
    for (height, width), resized in zip(
        case.inputs()["height_width"].tolist(), case.expected()["resized"].tolist(), strict=True
    ):
        assert list(propagation.frame_size(height, width)) == resized


def crw(case: Case) -> None:
    given, args = case.inputs(), case.meta["args"]
    assert args["long_mem"] == [0] and not args["norm_mask"]
    wanted = case.expected()["soft"]
    settings = dataclasses.replace(
        propagation.CRW,
        previous=args["n_context"],
        topk=args["topk"],
        temperature=args["temperature"],
        radius=args["radius"],
    )
    number = wanted.shape[-1]
    first = torch.from_numpy((given["first_label"] == np.arange(number)[:, None, None]).astype(np.float32))
    soft = propagation.propagate_video(torch.from_numpy(given["features"]).float(), first, settings)
    ours = torch.stack(list(soft)).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(ours, wanted, rtol=1e-4, atol=1e-6)


PATTERNS = {
    "16_video_segmentation/jf_*": every_frame,
    "16_video_segmentation/davis_*": table,
    "16_video_segmentation/dino_propagation*": dino,
    "16_video_segmentation/dino_frame_sizes*": frame_sizes,
    "16_video_segmentation/crw_*": crw,
}
