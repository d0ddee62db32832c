"""Metrics of dense tasks: label maps, depth, normals, correspondence, videos, discovery, saliency.

Each image is reduced to counts or sums, in one pass and independent of the others. The metrics are functions of these
under any weights of the images, so that an interval over images resamples rows.

A metric that is averaged otherwise than usual is recorded with the averaging in brackets: `mIoU(images)`,
`angle_mean(images)`.

Memory and time, one core: ADE20K val (2,000 maps of 512 x 683, 150 classes) 7 MB of areas, 1 ms a map, half of decoding
it; boundaries 30 ms a map. NYUv2 (654 maps of 480 x 640) 15 ms a map for depth, 80 ms and 72 kB for normals. The
intervals of 1,000 half-samples take seconds.

SPair-71k (12,234 pairs) 400 kB of hits. DAVIS 2017 val (30 videos of 480 x 854, 61 objects) 7 ms per frame and object,
about 30 s in all. Saliency 2 kB and 15 ms a map.
"""

from sslbench.metrics.dense.anomaly import ANOMALOUS_IMAGES, ANOMALOUS_PIXELS
from sslbench.metrics.dense.contours import BOUNDARY_F, CONTOURS
from sslbench.metrics.dense.correspondence import (
    MATCH_AUC,
    MATCH_RECALL,
    PCK_PER_CLASS,
    PCK_PER_IMAGE,
    PCK_PER_POINT,
    SWAPPED,
)
from sslbench.metrics.dense.depth import DEPTH
from sslbench.metrics.dense.discovery import DISCOVERY, SALIENCY
from sslbench.metrics.dense.normals import NORMALS
from sslbench.metrics.dense.panoptic import PANOPTIC
from sslbench.metrics.dense.poses import POSE_PCK
from sslbench.metrics.dense.segmentation import MATCHED, SEGMENTATION
from sslbench.metrics.dense.video import TRACKING

__all__ = [
    "ANOMALOUS_IMAGES",
    "ANOMALOUS_PIXELS",
    "BOUNDARY_F",
    "CONTOURS",
    "DEPTH",
    "DISCOVERY",
    "MATCHED",
    "MATCH_AUC",
    "MATCH_RECALL",
    "NORMALS",
    "PANOPTIC",
    "PCK_PER_CLASS",
    "PCK_PER_IMAGE",
    "PCK_PER_POINT",
    "POSE_PCK",
    "SALIENCY",
    "SEGMENTATION",
    "SWAPPED",
    "TRACKING",
]
