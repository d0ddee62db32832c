"""Metrics of dense tasks: semantic and panoptic segmentation, boundaries, depth and surface normals.

Each image is reduced to counts or sums, in one pass and independent of the others. The metrics are functions of these
under any weights of the images, so that an interval over images resamples rows.

A metric that is averaged otherwise than usual is recorded with the averaging in brackets: `d1(pixels)`,
`angle_mean(images)`, `mIoU(images)`.

Memory and time, one core: ADE20K val (2,000 maps of 512 x 683, 150 classes) 7 MB of areas, 1 ms a map, half of decoding
it; boundaries 30 ms a map. NYUv2 (654 maps of 480 x 640) 15 ms a map for depth, 80 ms and 72 kB for normals. The
intervals of 1,000 half-samples take seconds.
"""

from sslbench.metrics.dense.boundary import BOUNDARY_F
from sslbench.metrics.dense.depth import DEPTH
from sslbench.metrics.dense.normals import NORMALS
from sslbench.metrics.dense.panoptic import PANOPTIC
from sslbench.metrics.dense.segmentation import SEGMENTATION

__all__ = ["BOUNDARY_F", "DEPTH", "NORMALS", "PANOPTIC", "SEGMENTATION"]
