"""Metrics of dense tasks: semantic and panoptic segmentation, boundaries, depth and surface normals.

Each image is reduced to counts or sums, in one pass and independent of the others. The metrics are functions of these
under any weights of the images, so that an interval over images resamples rows.

Memory and time, one core: ADE20K val (2,000 maps of 512 x 683, 150 classes) 7 MB of areas, TIME_MIOU a map, less than
decoding it; boundaries TIME_BOUNDARY a map. NYUv2 (654 maps of 480 x 640) TIME_DEPTH a map for depth, TIME_NORMALS and
72 kB for normals. The intervals of 1,000 half-samples take a second or two.
"""

from sslbench.metrics.dense.boundary import BOUNDARY_F
from sslbench.metrics.dense.depth import DEPTH
from sslbench.metrics.dense.normals import NORMALS
from sslbench.metrics.dense.panoptic import PANOPTIC
from sslbench.metrics.dense.segmentation import SEGMENTATION

__all__ = ["BOUNDARY_F", "DEPTH", "NORMALS", "PANOPTIC", "SEGMENTATION"]
