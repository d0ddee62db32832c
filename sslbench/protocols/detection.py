"""Detector trained around the backbone, scored by the average precision of its boxes."""

from sslbench.detection import VERSION
from sslbench.detection.settings import DetectionSettings, check_settings, complete, recorded
from sslbench.protocols.protocol import OnObjects, Protocol

PROTOCOL = Protocol(
    version=VERSION,
    summary="Detector trained around the backbone: average precision of its boxes.",
    settings=DetectionSettings,
    kind=OnObjects(),
    check_settings=check_settings,
    complete=complete,
    recorded=recorded,
)
