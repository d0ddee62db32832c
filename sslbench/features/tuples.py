"""Features of samples that are pairs or triplets of images: those of their images side by side."""

import numpy as np

from sslbench.data.groups import inseparable
from sslbench.data.source import Source
from sslbench.features.array import Features
from sslbench.targets.target import SeveralImages


def side_by_side(features: Features, source: Source) -> Features:
    """Return the features of the samples of a source, (N, n * D), from those of its images (M, D).

    Samples of which an image is missing, since it could not be read, are left out.

    Args:
        features: of the images of `source.every_image()`.
        source: samples of n images each.
    """
    target = source.target
    if not isinstance(target, SeveralImages):
        return features
    place = {name: row for row, name in enumerate(features.ids)}
    every = [place.get(name, -1) for name in source.every_image().ids]
    rows = np.array([[every[row] for row in target.rows(i)] for i in range(len(source))], dtype=np.int64)
    kept = np.flatnonzero((rows >= 0).all(axis=1))
    samples = source.select(kept)
    x = features.x[rows[kept]].reshape(len(kept), -1)
    groups = inseparable(samples)
    regions = rows.shape[1] * features.regions
    return Features(x, samples.target, samples.ids, groups=groups, regions=regions, rank=samples.rank)
