"""Constant box: a floor of detection that sees no pixels."""

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.objects.types import ObjectSource
from sslbench.metrics.detection import Detections


def constant_boxes(train: ObjectSource, test: ObjectSource) -> Detections:
    """Return one box per class on every test image: the median of each edge of the class's boxes in train.

    Edges are shares of the image's width and height; in pixels if a manifest leaves out the size of an image. Crowds
    and difficult objects do not count. All boxes of a class have the same score, the class's share of the objects.

    Args:
        train: training part.
        test: test part, of the same classes.
    """
    truth = train.truth()
    counted = ~(truth.crowd | truth.difficult)
    labels, images = truth.labels[counted], truth.images[counted]
    relative = bool((train.sizes > 0).all() and (test.sizes > 0).all())
    edges = truth.boxes[counted] / _scales(train, relative)[images]
    classes = np.unique(labels)
    medians = np.array([np.median(edges[labels == c], axis=0) for c in classes]).reshape(-1, 4)
    shares = np.bincount(labels, minlength=1)[classes] / max(len(labels), 1) if len(classes) else np.zeros(0)
    boxes = _scales(test, relative)[:, None] * medians[None]
    return Detections(
        np.repeat(np.arange(len(test)), len(classes)),
        boxes.reshape(-1, 4).astype(np.float32),
        np.tile(shares, len(test)).astype(np.float32),
        np.tile(classes, len(test)),
    )


def _scales(source: ObjectSource, relative: bool) -> FloatArray:
    """Return the units of x1, y1, x2, y2 in pixels for each image, (N, 4)."""
    sizes = source.sizes if relative else np.ones_like(source.sizes)
    return np.asarray(sizes[:, [1, 0, 1, 0]], dtype=np.float64)
