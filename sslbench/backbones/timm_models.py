"""Any timm model by its name, with random weights; nothing is ever downloaded."""

import logging
import math
from typing import Any

import timm
from timm.data.config import resolve_model_data_config
from torch import nn

from sslbench.backbones.backbone import Backbone
from sslbench.errors import BackboneError, UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import Preprocessing

log = logging.getLogger("sslbench")


def is_timm_name(name: str) -> bool:
    """Whether timm has an architecture of this name; a tag after the first dot is allowed."""
    return bool(timm.is_model(name.partition(".")[0]))


def build_timm(name: str) -> Backbone:
    """A timm model without its classifier, initialised by timm from the global random state.

    Args:
        name: an architecture, or architecture.tag: the tag chooses the preprocessing (`vit_base_patch16_224.dino`).

    Raises:
        UsageError: timm has no such architecture or tag.
    """
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise UsageError(f"timm has no model '{architecture}'", did_you_mean(architecture, timm.list_models()))
    if tag:
        tags = {
            known.partition(".")[2] for known in timm.list_pretrained(architecture + "*") if _same(known, architecture)
        }
        if tag not in tags:
            raise UsageError(f"timm's {architecture} has no tag '{tag}'", did_you_mean(tag, tags))
    module = timm.create_model(name, pretrained=False, num_classes=0)
    return Backbone(
        name=f"timm:{name}",
        builder="timm",
        module=module,
        preprocessing=timm_preprocessing(module),
        aliases=_aliases(module),
        default_layer="features",
        identity={"builder": "timm", "timm": timm.__version__},
    )


def _same(full_name: str, architecture: str) -> bool:
    return full_name.partition(".")[0] == architecture


def classifier_names(module: nn.Module) -> tuple[str, ...]:
    """Module paths of the classifier that was left out: tensors below them in a checkpoint belong to the head."""
    names = (getattr(module, "pretrained_cfg", None) or {}).get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)


def timm_preprocessing(module: nn.Module) -> Preprocessing:
    """The evaluation transform that timm records with the weights (or, untagged, with the architecture)."""
    cfg: dict[str, Any] = resolve_model_data_config(module)  # type: ignore[no-untyped-call]
    recorded = getattr(module, "pretrained_cfg", None) or {}
    channels, height, width = cfg["input_size"]
    if channels != 3:
        raise BackboneError(f"this timm model takes images of {channels} channels; sslbench gives 3")
    origin = "timm " + str(recorded.get("architecture", "default"))
    origin += f".{recorded['tag']}" if recorded.get("tag") else ""
    scaled = (math.floor(height / cfg["crop_pct"]), math.floor(width / cfg["crop_pct"]))
    exact = cfg["crop_mode"] == "squash"
    if not exact and (cfg["crop_mode"] != "center" or height != width):
        exact = True
        log.warning(
            f"{origin} wants the crop mode '{cfg['crop_mode']}' at {height}x{width}; images are squashed instead"
        )
        origin += ", squashed"
    return Preprocessing(
        resize=scaled if exact else scaled[0],
        crop=(height, width),
        interpolation=cfg["interpolation"],
        mean=tuple(cfg["mean"]),
        std=tuple(cfg["std"]),
        origin=origin,
    )


def _aliases(module: nn.Module) -> dict[str, str]:
    """`features` (pooled), `features.0`, `features.1`, ... (timm's own list of stages), `last` (the last, unpooled)."""
    modules = {path for path, _ in module.named_modules() if path}
    info = getattr(module, "feature_info", None) or []
    stages = [entry["module"] for entry in info if isinstance(entry, dict) and entry.get("module") in modules]
    aliases = {"features": ""} | {f"features.{index}": path for index, path in enumerate(stages)}
    if "norm" in modules:
        return aliases | {"last": "norm"}
    return aliases | ({"last": stages[-1]} if stages else {})
