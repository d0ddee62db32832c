"""Models of timm: NAME or timm:NAME."""

import logging
from collections.abc import Mapping

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.family import Family
from sslbench.backbones.timm_models import build_timm, check_recorded_options, is_timm_name
from sslbench.backbones.vit.recognise import recognise_vit
from sslbench.errors import BackboneError, UsageError

log = logging.getLogger("sslbench")
_HUBS = ("hf-hub:", "hf_hub:", "local-dir:", "hf:", "http:", "https:")


def _takes(name: str) -> bool:
    return name.startswith(("timm:", *_HUBS)) or (":" not in name and is_timm_name(name))


def _build(name: str) -> Backbone:
    if name.startswith(_HUBS):
        remedy = "Nothing is downloaded: give the architecture as --backbone timm:NAME and the file as --weights."
        raise UsageError(f"there is no backbone '{name}'", remedy)
    return build_timm(name.removeprefix("timm:"))


def _check_recorded(name: str, where: str) -> None:
    if name.startswith("timm:"):
        check_recorded_options(name.removeprefix("timm:"), where)


def _recognise(shapes: Mapping[str, tuple[int, ...]], format: str, weights: str) -> str | None:
    vit = recognise_vit(shapes, format=format)
    if vit is None:
        return None
    if not vit.heads_known:
        raise BackboneError(
            f"{weights}: {vit.describe()}? The number of heads is not visible in the "
            "tensors, and models of this size differ in it",
            f"Give the number of heads: --backbone {vit.name}",
        )
    for note in vit.notes:
        log.info(f"{weights}: {note}")
    return vit.name


FAMILY = Family(_takes, _build, _check_recorded, _recognise, last_resort=True)
