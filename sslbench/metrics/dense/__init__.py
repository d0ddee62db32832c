"""Metrics of dense tasks: correspondence, video objects, clusters of pixels, discovery and saliency.

Each image, pair or video first becomes a row of counts or values; scores follow from weighted sums of rows, so that an
interval over images is a resampling of rows. No image is held longer than its row is computed.
"""

from sslbench.metrics.dense.correspondence import (
    MATCH_AUC,
    MATCH_RECALL,
    PCK_PER_CLASS,
    PCK_PER_IMAGE,
    PCK_PER_POINT,
    MatchErrors,
    PairHits,
)
from sslbench.metrics.dense.discovery import DISCOVERY, SALIENCY, is_located, mask_iou, max_f, saliency_values
from sslbench.metrics.dense.matching import MATCHED, assigned_areas, each_to_best, matched_values, one_to_one
from sslbench.metrics.dense.video import TRACKING, VideoScores, object_values, semi_supervised, unsupervised

__all__ = [
    "DISCOVERY",
    "MATCHED",
    "MATCH_AUC",
    "MATCH_RECALL",
    "PCK_PER_CLASS",
    "PCK_PER_IMAGE",
    "PCK_PER_POINT",
    "SALIENCY",
    "TRACKING",
    "MatchErrors",
    "PairHits",
    "VideoScores",
    "assigned_areas",
    "each_to_best",
    "is_located",
    "mask_iou",
    "matched_values",
    "max_f",
    "object_values",
    "one_to_one",
    "saliency_values",
    "semi_supervised",
    "unsupervised",
]
