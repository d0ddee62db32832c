"""Relative pose of two cameras from the frozen features of their images, by a small network trained on pairs.

Features of both images, side by side, are mapped to the quaternion of the rotation from the first camera to the second
and, where the data have them, to the translation (`pose_network`; El Banani et al., probe3d, CVPR 2024, and VisBench).
The score is the mean angle between predicted and true rotation, in degrees; lower is better. A mean angle alone says
little: the pose that is the mean of train stands beside it as chance.

Hyper-parameters are fixed, nothing is selected. Intervals are over pairs, those of one scene together. VisBench leaves
the sign of the quaternions to the conversion from matrices; here w is not negative.
"""

import dataclasses
import itertools

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.config import setting
from sslbench.errors import DataError
from sslbench.features.array import Features
from sslbench.metrics.summary import summarise, without_intervals
from sslbench.protocols._parts.selection import check_features
from sslbench.protocols.protocol import Cost, OnFeatures, Protocol, ProtocolSettings, Shapes
from sslbench.results import Outcome
from sslbench.targets.target import Target
from sslbench_visbench.metrics import POSE_COLUMNS
from sslbench_visbench.targets import CameraPairs


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the regression of poses."""

    hidden: tuple[int, ...] = setting(
        (512, 256, 128), "widths of the hidden layers; []: a linear map", within="[1, inf)"
    )
    epochs: int = setting(30, "passes over the pairs of train", unit="epochs", within="[1, inf)")
    lr: float = setting(1e-3, "learning rate of AdamW at the start; it follows a cosine to 0", within="(0, inf)")
    weight_decay: float = setting(1e-4, "weight decay of AdamW", within="[0, inf)")
    batch_size: int = setting(128, "pairs per update", unit="pairs", within="[2, inf)")


def check(settings: Settings, train: Target) -> None:
    """Refuse settings and labels that cannot work, before any feature is computed."""
    if not isinstance(train, CameraPairs):
        raise DataError(
            f"relative-pose needs pairs of images with poses, and these samples have {train.title}",
            "Give NAVI, a table with the columns first, second, qw, qx, qy, qz, or rotations:PLACE.",
        )
    if len(train) < 2:
        raise DataError("relative-pose: there is one pair to train on")


def run(train: Features, test: Features, settings: Settings, *, seed: int, device: str = "cpu") -> Outcome:
    """Train on the pairs of train, score those of test.

    `train`: (N, 2 * D), features of the first and the second image; `seed`: of the weights, the order of pairs and the
    intervals.
    """
    from sslbench_visbench.pose_network import PoseTraining, fit_poses

    check_features(train, test)
    check(settings, train.target)
    if train.target.classes != test.target.classes:
        raise DataError("relative-pose: train or test alone has translations")
    training = PoseTraining(**dataclasses.asdict(settings))
    predict = fit_poses(train.x, train.target.values, training, seed=seed, device=device)
    predicted, fitted = predict(test.x), predict(train.x)
    if not (np.isfinite(predicted).all() and np.isfinite(fitted).all()):
        raise DataError(
            f"relative-pose: the training diverged with lr={settings.lr:g}: predicted poses are not finite",
            "Give a smaller lr=; translations should be of about 1.",
        )
    scores = _columns(predicted).astype(np.float32)
    metrics, headline, _ = summarise(
        CameraPairs, test.target.classes, test.target.values, scores, seed=seed, groups=test.groups
    )
    mean = np.broadcast_to(train.target.values.mean(axis=0), test.target.values.shape)
    return Outcome(
        metrics=metrics,
        headline=headline,
        scores=scores,
        per_class={},
        train=without_intervals(CameraPairs, train.target.values, _columns(fitted))[headline],
        chance=without_intervals(CameraPairs, test.target.values, _columns(mean)),
        notes=("Chance is the mean pose of train.",),
    )


def _columns(poses: FloatArray) -> FloatArray:
    """Return poses (N, 4 or 7) as the columns of scores, without translation NaN."""
    missing = np.full((len(poses), len(POSE_COLUMNS) - poses.shape[1]), np.nan)
    return np.concatenate([poses, missing], axis=1)


def cost(settings: Settings, shapes: Shapes) -> Cost:
    """Count the updates (a pass forward, two of its size back) and both predictions."""
    widths = (shapes.width, *settings.hidden, len(POSE_COLUMNS))
    weights = float(sum(a * b for a, b in itertools.pairwise(widths)))
    trained = float(shapes.train) * settings.epochs
    return Cost(
        products=2 * weights * (3 * trained + shapes.train + shapes.test),
        passes=32 * weights * trained / settings.batch_size + 8 * trained * shapes.width,
        memory=16 * weights + 16.0 * max(settings.batch_size, 4096) * sum(widths),
        scores=4.0 * shapes.test * len(POSE_COLUMNS),
    )


PROTOCOL = Protocol(
    version=2,
    summary="relative pose of two cameras (NAVI): a small network on the features of both images.",
    settings=Settings,
    kind=OnFeatures(check, run, cost=cost, takes=(CameraPairs,)),
)
