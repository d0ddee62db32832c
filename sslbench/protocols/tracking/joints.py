"""Joints of persons (JHMDB): each a soft label of its own that is propagated, placed and scored."""

from collections.abc import Mapping

import numpy as np
import torch

from sslbench.arrays import BoolArray, FloatArray
from sslbench.data.poses import inside
from sslbench.metrics.dense.poses import joint_counts
from sslbench.protocols._parts.dense_images import Fitted
from sslbench.protocols._parts.untrained import MapRun
from sslbench.protocols.tracking.propagation import propagated
from sslbench.protocols.tracking.settings import Settings
from sslbench.protocols.tracking.tracked import KEPT, FrameDone, Tracked
from sslbench.solvers.joints import joint_labels, joint_places
from sslbench.targets.videos import Poses


def track_joints(run: MapRun[Settings], poses: Poses, number: int, done: FrameDone) -> Tracked:
    """Score the joints of a video; a row has the counts of each joint, see `metrics.dense.poses.COUNTS`.

    The joints are those inside the first frame, which itself is not scored. In later frames they count wherever they
    are, as in the published evaluation.
    """
    rows, joints = poses.rows(number), poses.joints[number]

    def first(fitted: Fitted, grid: tuple[int, int], path: str) -> torch.Tensor:
        given = np.where(inside(joints[0], fitted.original)[:, None], joints[0], np.nan)
        return torch.from_numpy(joint_labels(fitted.to_cells(given, grid), grid))

    predicted: dict[str, list[FloatArray]] = {}
    grids: dict[str, tuple[int, int]] = {}
    given = np.zeros(joints.shape[1], np.bool_)
    for position, (fitted, labels) in enumerate(propagated(run, rows, first)):
        grids = {name: (label.shape[1], label.shape[2]) for name, label in labels.items()}
        given = inside(joints[0], fitted.original)
        if position:
            predicted.setdefault(KEPT, []).append(joints[0])
            for name, label in labels.items():
                places = fitted.from_cells(joint_places(label, run.settings.peak), grids[name])
                predicted.setdefault(name, []).append(places)
        done()
    return Tracked(_rows(predicted, joints[1:], given, run.settings), grids)


def _rows(
    predicted: Mapping[str, list[FloatArray]],
    joints: FloatArray,
    given: BoolArray,
    settings: Settings,
) -> dict[str, FloatArray]:
    found = {}
    for name, frames in predicted.items():
        places = np.stack(frames)
        counted = np.broadcast_to(given, places.shape[:2])
        if settings.lost == "left out":
            counted = counted & ~np.isnan(places).any(axis=2)
        found[name] = joint_counts(places, joints, counted).ravel().astype(np.float64)
    return found
