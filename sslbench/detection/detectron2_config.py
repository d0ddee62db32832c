"""Detectron2's whole configuration: its defaults, then what the recipe says, then d2.KEY=value of the user."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from sslbench.backbones.backbone import Backbone
from sslbench.detection.detectron2_library import load
from sslbench.detection.detectron2_options import detectron2_options
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

log = logging.getLogger("sslbench")

_EXTRA_NORM = "Res5ROIHeadsExtraNorm"
_OURS = {
    "MODEL.WEIGHTS": "the weights are given with --weights",
    "MODEL.DEVICE": "the device is given with --device",
    "MODEL.ROI_HEADS.NUM_CLASSES": "the number of classes follows from the data",
    "MODEL.LOAD_PROPOSALS": "proposals made elsewhere are not read",
    "MODEL.KEYPOINT_ON": "the data have no keypoints",
    "INPUT.FORMAT": "the order of the channels is channel_order=BGR, a setting of the recipe",
    "DATASETS": "the data are given with --data and --test-data",
    "DATALOADER.NUM_WORKERS": "processes that decode are given with --workers",
    "OUTPUT_DIR": "the folder is given with --out",
    "SEED": "the seed is given with --seed",
    "SOLVER.REFERENCE_WORLD_SIZE": "the recipe's batch and rate hold for any number of processes",
    "SOLVER.CHECKPOINT_PERIOD": "checkpoints are written as the torchvision backend does",
    "TEST.EVAL_PERIOD": "the detector is evaluated once, when it is trained",
    "TEST.EXPECTED_RESULTS": "results are compared by sslbench leaderboard",
    "TEST.AUG": "images are not augmented in evaluation",
}
"""Keys (or beginnings of them) that cannot be set by d2.KEY=value -> why, or what to give in their place."""

# What Detectron2 raises when a configuration makes no sense: it asserts, and looks names up.
_REFUSALS = (AssertionError, KeyError, ValueError, TypeError, AttributeError, IndexError, NotImplementedError)


@dataclasses.dataclass(frozen=True)
class Configured:
    """A configuration, and how it came about.

    Attributes:
        cfg: Detectron2's CfgNode, frozen.
        given: the user's keys with their values as Detectron2 understood them.
        notes: which settings of the recipe they replace, and what else is not as the recipe says.
    """

    cfg: Any
    given: dict[str, Any]
    notes: tuple[str, ...]


def configured(
    backbone: Backbone,
    recipe: DetectionRecipe,
    n_classes: int,
    given: Mapping[str, Any],
    *,
    device: torch.device,
    processes: int = 1,
) -> Configured:
    """Detectron2's configuration.

    Args:
        backbone: a ResNet.
        recipe: of the detector.
        n_classes: without background.
        given: d2.KEY=value of the user, without 'd2.'; they come last.
        device: of the detector.
        processes: that train together.

    Raises:
        UsageError: Detectron2 has no such network or key, or the value is of another type.
    """
    options = _for_device(detectron2_options(backbone, recipe, n_classes), device, processes)
    cfg = load("config").get_cfg()
    _merge(cfg, options, "the recipe")
    cfg.MODEL.DEVICE = str(device)
    cfg.MODEL.WEIGHTS = ""
    cfg.DATALOADER.NUM_WORKERS = 0
    _check_keys(cfg, given)
    before = {key: _value(cfg, key) for key in given}
    _merge(cfg, given, "d2.")
    if cfg.SOLVER.AMP.ENABLED and device.type == "cpu":
        raise UsageError("d2.SOLVER.AMP.ENABLED=true: Detectron2's mixed precision needs a GPU", "Leave it out.")
    understood = {key: _value(cfg, key) for key in given}
    replaced = [key for key in given if key in options and understood[key] != before[key]]
    notes = [f"d2.{key}={understood[key]} replaces {before[key]}, which the recipe says." for key in replaced]
    cfg.freeze()
    return Configured(cfg, understood, tuple(notes))


def _for_device(options: dict[str, Any], device: torch.device, processes: int) -> dict[str, Any]:
    """SyncBN works on GPUs only; Detectron2's naive variant works everywhere, and alone it is plain BatchNorm."""
    if device.type != "cpu" or "SyncBN" not in options.values():
        return options
    other = "BN" if processes == 1 else "naiveSyncBN"
    why = "the same for a single process" if processes == 1 else "Detectron2's own, also over all processes"
    log.info(f"norm=sync needs GPUs; on the CPU Detectron2's {other} is taken, {why}")
    return {key: other if value == "SyncBN" else value for key, value in options.items()}


def _check_keys(cfg: Any, given: Mapping[str, Any]) -> None:
    known = set(_keys(cfg))
    for key in given:
        taken = next((own for own in _OURS if key == own or key.startswith(f"{own}.")), None)
        if taken is not None:
            raise UsageError(f"d2.{key} cannot be given here", f"{_OURS[taken][0].upper()}{_OURS[taken][1:]}.")
        if key not in known:
            raise UsageError(f"Detectron2 has no key '{key}' (d2.{key})", did_you_mean(key, known))


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """All keys with a value, with dots."""
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _value(cfg: Any, key: str) -> Any:
    for part in key.split("."):
        cfg = cfg[part]
    return cfg


def _merge(cfg: Any, values: Mapping[str, Any], origin: str) -> None:
    """Key by key, so that the message names the one that does not fit."""
    for key, value in values.items():
        try:
            cfg.merge_from_list([key, value])
        except (AssertionError, KeyError, ValueError) as error:
            name = f"d2.{key}={value}" if origin == "d2." else f"{key}={value} ({origin})"
            now = _value(cfg, key)
            raise UsageError(
                f"{name}: Detectron2 does not take this value, a {type(value).__name__}",
                f"By default it is {now!r}, a {type(now).__name__}.",
            ) from error


@contextlib.contextmanager
def refusals(given: Mapping[str, Any]) -> Iterator[None]:
    """What Detectron2 refuses while it builds something is the user's error if they changed its configuration.

    Raises:
        UsageError: it refused, and there are keys by the user; without them the error is raised as it is.
    """
    try:
        yield
    except _REFUSALS as error:
        if not given:
            raise
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        keys = ", ".join(f"d2.{key}={value}" for key, value in given.items())
        raise UsageError(f"Detectron2 cannot work with {keys} ({words})", "Leave out what it does not know.") from error


def build_model(configuration: Configured) -> Any:
    """Detectron2's model, on its device, with random weights.

    Raises:
        UsageError: the user's keys make no sense to Detectron2.
    """
    _register_extra_norm()
    with refusals(configuration.given):
        return load("modeling").build_model(configuration.cfg)


def _register_extra_norm() -> None:
    """'Res5ROIHeadsExtraNorm' of VISSL and MoCo: Res5ROIHeads with a norm at the end of the fifth stage."""
    heads, layers = load("modeling.roi_heads"), load("layers")
    if _EXTRA_NORM in heads.ROI_HEADS_REGISTRY:
        return

    class Res5ROIHeadsExtraNorm(heads.Res5ROIHeads):  # type: ignore[misc,name-defined]
        @classmethod
        def _build_res5_block(cls, cfg: Any) -> tuple[Any, int]:
            blocks, channels = super()._build_res5_block(cfg)
            norm = layers.get_norm(cfg.MODEL.RESNETS.NORM, channels)
            if norm is not None:
                blocks.add_module("norm", norm)
            return blocks, channels

    heads.ROI_HEADS_REGISTRY.register(Res5ROIHeadsExtraNorm)
