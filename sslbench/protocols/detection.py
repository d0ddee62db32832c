"""Detector trained around the backbone, scored by the average precision of its boxes."""

from sslbench.detection import VERSION
from sslbench.detection.recipe import DetectionRecipe, check
from sslbench.protocols.protocol import OnObjects, Protocol

PROTOCOL = Protocol(
    version=VERSION,
    summary="Detector trained around the backbone: average precision of its boxes.",
    settings=DetectionRecipe,
    kind=OnObjects(),
    check_settings=check,
)
