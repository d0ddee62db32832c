"""Detector trained around the backbone, scored by the average precision of its boxes."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sslbench.data.source import Source
from sslbench.detection import VERSION
from sslbench.detection.detectron2 import library
from sslbench.detection.recipe import DetectionSettings, check, complete, recorded
from sslbench.errors import UsageError
from sslbench.protocols.protocol import NeededBenchmark, OnObjects, Protocol
from sslbench.targets.objects import Boxes

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer


def check_settings(settings: DetectionSettings) -> None:
    """Refuse settings that are not possible, or are of the other backend."""
    check(settings)
    detectron2 = settings.program == "detectron2"
    if settings.d2 and not detectron2:
        raise UsageError(
            f"d2.{next(iter(settings.d2))} is a setting of Detectron2, but the backend is {settings.program}",
            "Add --backend detectron2.",
        )
    if detectron2 and (settings.metric == "lvis" or settings.repeat_threshold):
        key = "metric=lvis" if settings.metric == "lvis" else f"repeat_threshold={settings.repeat_threshold:g}"
        raise UsageError(f"{key} is a setting of the torchvision backend", "Leave out --backend detectron2.")
    if detectron2 and (settings.tensorboard or settings.wandb):
        raise UsageError("tensorboard and wandb log the torchvision backend", "Leave out --backend detectron2.")
    if detectron2:
        library.require()


@dataclasses.dataclass(frozen=True)
class Detection(OnObjects[DetectionSettings]):
    """Detector trained around the backbone."""

    def refuse_weights(self, settings: DetectionSettings, backbone: "Backbone", weights: str) -> None:
        """Refuse settings that are not possible, and weights that a detector cannot be built around."""
        from sslbench.detection import checks

        check_settings(settings)
        checks.check_weights(settings, backbone, weights)

    def refuse_parts(self, settings: DetectionSettings, train: Source, test: Source) -> None:
        """Refuse data that do not go together with the recipe; see `detection.checks`."""
        from sslbench.detection import checks

        checks.check_parts(settings.recipe, train, test)

    def row_names(
        self,
        protocol: str,
        backbone: "Backbone",
        layers: "Sequence[Layer]",
        train: Source,
        settings: DetectionSettings,
        *,
        seed: int,
    ) -> tuple[str, ...]:
        """Return the name of the only result; the detector is built once, to find what does not fit."""
        import torch

        from sslbench.detection import backends

        backends.try_backend(settings, backbone, torch.device("cpu"))
        return (settings.architecture,)


PROTOCOL = Protocol(
    version=VERSION,
    summary="Detector trained around the backbone: average precision of its boxes.",
    settings=DetectionSettings,
    kind=Detection(takes=(Boxes,)),
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
