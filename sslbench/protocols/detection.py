"""Detector trained around the backbone, scored by the average precision of its boxes."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sslbench.data.source import Source
from sslbench.detection import VERSION
from sslbench.detection.settings import DetectionSettings, check_settings, complete, recorded
from sslbench.distributed import this_process
from sslbench.protocols.protocol import NeededBenchmark, OnObjects, Protocol

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer


def check_weights(settings: DetectionSettings, backbone: "Backbone", weights: str) -> None:
    """Refuse settings that are not possible, and weights that a detector cannot be built around."""
    from sslbench.detection import checks

    check_settings(settings)
    checks.check_weights(settings.recipe, backbone, weights)


def check_parts(settings: DetectionSettings, train: Source, test: Source) -> None:
    """Refuse data that do not go together with the recipe; see `detection.checks`."""
    from sslbench.data.splits.objects import objects_of
    from sslbench.detection import checks

    checks.check_parts(settings.recipe, objects_of(train), objects_of(test))


def rows(
    backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: DetectionSettings, *, seed: int
) -> tuple[str, ...]:
    """Return the name of the only result; the detector is built once, to find what does not fit.

    Raises:
        SslbenchError: the batch cannot be divided among the processes, or recipe and backbone do not go together.
    """
    import torch

    from sslbench.detection.backends import try_backend
    from sslbench.detection.train import check_processes

    check_processes(settings.recipe, this_process().world)
    try_backend(settings, backbone, torch.device("cpu"))
    return (settings.architecture,)


PROTOCOL = Protocol(
    version=VERSION,
    summary="Detector trained around the backbone: average precision of its boxes.",
    settings=DetectionSettings,
    kind=OnObjects(check_weights=check_weights, check_parts=check_parts, rows=rows),
    check_settings=check_settings,
    complete=complete,
    recorded=recorded,
    benchmark=NeededBenchmark(
        "detection/toy",
        "kwcoco's toy shapes",
        "the training recipe",
        "detection/small suits a few hundred images on a CPU, detection/toy the toy shapes.",
    ),
)
