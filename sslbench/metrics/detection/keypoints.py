"""Keypoints of objects: their skeleton, and object keypoint similarity (OKS), the overlap of poses in COCO.

The OKS of a detection and an object is the mean over the labelled keypoints of exp(-d^2 / (2 s^2 k^2)): d is the
distance of the keypoint in pixels, s^2 the area of the object, k = 2 sigma, and sigma the standard deviation of
annotators for this keypoint, relative to s (Ronchi and Perona 2017, arXiv 1707.05388; cocodataset.org, keypoint
evaluation). Coordinates are those of COCO's files, in which the centre of the first pixel is 0, 0.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray, FloatArray
from sslbench.errors import UsageError

COCO_SIGMAS = {
    "nose": 0.026,
    "left_eye": 0.025,
    "right_eye": 0.025,
    "left_ear": 0.035,
    "right_ear": 0.035,
    "left_shoulder": 0.079,
    "right_shoulder": 0.079,
    "left_elbow": 0.072,
    "right_elbow": 0.072,
    "left_wrist": 0.062,
    "right_wrist": 0.062,
    "left_hip": 0.107,
    "right_hip": 0.107,
    "left_knee": 0.087,
    "right_knee": 0.087,
    "left_ankle": 0.089,
    "right_ankle": 0.089,
}
"""Names of COCO's keypoints of persons, in their order, and sigma of each (pycocotools, cocoeval.py)."""

_SIDES = {"left": "right", "right": "left"}
_WORD = re.compile(r"(?<![a-z])(left|right)(?![a-z])", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Skeleton:
    """Kinds of keypoints that objects may have.

    Attributes:
        edges: pairs of positions that pictures join by a line.
        mirrors: pairs of names that change places in a mirrored image, where the data say so (kwcoco's
            reflection_id); a name without a partner stands beside itself.
        sigmas: one per keypoint, see above; empty if they are not known.
    """

    names: tuple[str, ...]
    edges: tuple[tuple[int, int], ...] = ()
    mirrors: tuple[tuple[str, str], ...] = ()
    sigmas: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Skeleton":
        """Return the skeleton that `dataclasses.asdict` wrote to JSON."""
        edges, mirrors = (tuple((a, b) for a, b in record[key]) for key in ("edges", "mirrors"))
        return cls(tuple(record["names"]), edges, mirrors, tuple(record["sigmas"]))

    @property
    def uniform(self) -> bool:
        """True if all keypoints have one sigma; the names of metrics say so."""
        return len(set(self.sigmas)) == 1

    @property
    def prefix(self) -> str:
        """Beginning of the names of its metrics in records."""
        return "uniform_keypoint_" if self.uniform else "keypoint_"

    def mirrored(self, pairs: Sequence[str] = ()) -> tuple[int, ...]:
        """Return the keypoint that each of the K becomes in a mirrored image.

        >>> Skeleton(("nose", "left_eye", "right_eye")).mirrored()
        (0, 2, 1)
        """
        partner = {name: name for name in self.names}
        stated = [tuple(pair.split(":")) for pair in pairs] or list(self.mirrors)
        for pair in stated:
            if len(pair) != 2 or not set(pair) <= set(partner):
                raise UsageError(
                    f"mirrored_keypoints: '{':'.join(pair)}' is not a pair of keypoints NAME:NAME of "
                    f"{', '.join(self.names)}"
                )
            partner[pair[0]], partner[pair[1]] = pair[1], pair[0]
        if not stated:
            partner = self._by_words()
        if any(partner[partner[name]] != name for name in self.names):
            raise UsageError(f"mirrored_keypoints: a keypoint stands in two pairs: {', '.join(map(':'.join, stated))}")
        return tuple(self.names.index(partner[name]) for name in self.names)

    def _by_words(self) -> dict[str, str]:
        lower = {name.lower(): name for name in self.names}
        others = {name: _WORD.sub(lambda word: _SIDES[word[0].lower()], name.lower()) for name in self.names}
        partner = {name: lower.get(other) for name, other in others.items()}
        alone = [name for name, other in partner.items() if other is None]
        if alone or all(name == other for name, other in partner.items()):
            why = f"'{alone[0]}' has no partner" if alone else "no name has the word left or right"
            raise UsageError(
                f"mirrored training images would need the keypoints that change places, and {why}: "
                f"{', '.join(self.names)}",
                f"Give flip=0, or mirrored_keypoints={self.names[0]}:{self.names[-1]} with all such pairs.",
            )
        return {name: str(other) for name, other in partner.items()}

    def with_sigmas(self, uniform: float = 0.0) -> "Skeleton":
        """Return the skeleton with its sigmas: those of the data, else COCO's by their names, else one for all."""
        if self.sigmas:
            return self
        if set(self.names) == set(COCO_SIGMAS):
            return dataclasses.replace(self, sigmas=tuple(COCO_SIGMAS[name] for name in self.names))
        if not uniform:
            raise UsageError(
                f"the sigmas of the keypoints {', '.join(self.names)} are not known, and OKS needs them",
                "Give the category a list 'sigmas' in the manifest, or one for all keypoints: oks_sigma=0.05, of "
                "score --oks-sigma 0.05 (the metrics are then named uniform_keypoint_AP, ...).",
            )
        return dataclasses.replace(self, sigmas=(uniform,) * len(self))


def labelled(points: npt.NDArray[np.floating]) -> BoolArray:
    """Return which keypoints (..., K, 3) are labelled: those with a visibility above 0, (..., K)."""
    visible: BoolArray = points[..., 2] > 0
    return visible


def similarity(
    points: npt.NDArray[np.floating], truth: FloatArray, boxes: FloatArray, areas: FloatArray, sigmas: Sequence[float]
) -> FloatArray:
    """Return the OKS (d, g) of detections with objects, as pycocotools computes it.

    `points`: (d, K, 2 or more), x and y of the detected keypoints; `truth`: (g, K, 3), x, y and visibility of the
    objects' keypoints; `boxes`: (g, 4), x1, y1, x2, y2 of the objects; `areas`: (g,), of the objects in pixels;
    `sigmas`: (K,).

    >>> at = np.array([[[1.0, 1.0, 2.0]]])
    >>> similarity(at + [3, 4, 0], at, np.zeros((1, 4)), np.array([100.0]), [0.5]).round(4).tolist()
    [[0.8825]]
    """
    # Of an object without a labelled keypoint it is that of the distances from its box, widened by its size on each
    # side.
    if not points.size or not truth.size:
        return np.zeros((len(points), len(truth)))
    variances = (2 * np.asarray(sigmas, dtype=np.float64)) ** 2
    found = points[:, None, :, :2].astype(np.float64)
    there = labelled(truth)
    some: BoolArray = np.asarray(there.any(axis=1))
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    wide_low, wide_high = low - (high - low), high + (high - low)
    gap = np.where(
        some[:, None, None],
        found - truth[None, :, :, :2],
        np.maximum(wide_low - found, 0) + np.maximum(found - wide_high, 0),
    )
    errors = (gap**2).sum(axis=3) / variances / (areas[:, None] + np.spacing(1)) / 2
    counted = np.where(some[:, None], there, True)
    return np.asarray((np.exp(-errors) * counted).sum(axis=2) / counted.sum(axis=1))
