"""Models of timm: NAME or timm:NAME."""

import logging
from collections.abc import Mapping

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import Family
from sslbench.backbones.timm_models import build_timm, check_recorded_options, is_timm_name
from sslbench.backbones.timm_recognise import recognise_convnext, recognise_regnet, recognise_swin
from sslbench.backbones.vit_recognise import UNKNOWN, check_config, recognise_vit
from sslbench.errors import BackboneError, UsageError
from sslbench.weights.reading.model_config import ModelConfig

log = logging.getLogger("sslbench")
_HUBS = ("hf-hub:", "hf_hub:", "local-dir:", "hf:", "http:", "https:")


def _build(name: str) -> Backbone:
    if name.startswith(_HUBS):
        remedy = "Nothing is downloaded: give the architecture as --backbone timm:NAME and the file as --weights."
        raise UsageError(f"there is no backbone '{name}'", remedy)
    return build_timm(name.removeprefix("timm:"))


def _check_recorded(name: str, where: str) -> None:
    if name.startswith("timm:"):
        check_recorded_options(name.removeprefix("timm:"), where)


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig) -> str | None:
    vit = recognise_vit(shapes, format=format, config=config)
    if vit is None:
        others = (recognise_convnext, recognise_swin, recognise_regnet)
        return next((name for recognise in others if (name := recognise(shapes, config, weights))), None)
    check_config(vit, shapes, config, weights)
    beside = f"its {config.path.name} does not say" if config.path else "no config.json is beside them"
    if format == "huggingface_clip" and not vit.activation:
        quick = vit.name.replace("_clip_", "_clip_quickgelu_")
        raise BackboneError(
            f"{weights}: the activation of a CLIP {'is' if vit.heads else 'and its number of heads are'} not "
            f"visible in its tensors, and {beside}",
            f"Put the model's config.json beside the file, or name the network: --backbone {quick} (OpenAI's own), "
            f"--backbone {vit.name} (most of open_clip's).",
        )
    if vit.heads is None:
        raise BackboneError(
            f"{weights}: {vit.describe()}: the number of heads is not visible in the tensors, {beside}, and no "
            "published network has this size",
            f"Put the model's config.json beside the file, or give the number of its training for {UNKNOWN}: "
            f"--backbone {vit.name}",
        )
    for note in vit.notes:
        log.info(f"{weights}: {note}")
    return vit.name


FAMILY = Family(
    lambda name: name.startswith(("timm:", *_HUBS)) or (":" not in name and is_timm_name(name)),
    _build,
    _check_recorded,
    _recognise,
    last_resort=True,
)
