"""Output of `sslbench pretrain --dry-run`: every setting with its origin, and quantities derived from them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from sslbench.cli.settings_page import section, show_value
from sslbench.cli.slurm import Slurm
from sslbench.config import build
from sslbench.library.recipes import leaves
from sslbench.pretraining import PretrainRequest, prepare
from sslbench.train.loop import RateSchedules
from sslbench.train.method import find_method


def print_plan(request: PretrainRequest, origins: Mapping[str, str], launcher: Slurm | None) -> None:
    """Print the plan; opens the data, builds the networks and reads a few images for their channels.

    Raises:
        SslbenchError: anything that the run itself would refuse.
    """
    prepared = prepare(request)
    settings = dataclasses.asdict(prepared.request.settings)
    origins = {**origins, **prepared.changes}
    settings["method"] = _with_defaults(settings["method"])
    groups = {key: value for key, value in settings.items() if key in ("method", "augment", "optimizer", "schedule")}
    for name, values in groups.items():
        section(name, _rows({name: values}, origins, f"{name}."))
    section("run", _rows({k: v for k, v in settings.items() if k not in groups}, origins, ""))
    if launcher is not None:
        section("launcher", _rows({"launcher": dataclasses.asdict(launcher)}, {}, "launcher."))
    setup, plan = prepared.setup, prepared.plan
    trained = sum(p.numel() for p in prepared.method.parameters() if p.requires_grad)
    rest = sum(p.numel() for p in prepared.method.backbone.parameters())
    rows = [
        ("data", f"{request.data}: {setup.samples} images", ""),
        ("updates", f"{plan.steps} ({plan.per_epoch} per epoch, {setup.images_per_update} images each)", ""),
        ("processes", f"{setup.world} on {prepared.device}, {setup.batch_size} images per forward pass of each", ""),
        ("views", ", ".join(f"{size} x {size}" for size in setup.sizes), ""),
        *(
            (f"rate of {name}" if name else "rate", f"{rates.lr(0.0):.4g} at first, {_most(rates):.4g} at most", "")
            for name, rates in {"": plan.rates, **plan.parts}.items()
        ),
        ("parameters", f"{trained:,} trained; the backbone has {rest:,}", ""),
        ("folder", str(request.out), ""),
    ]
    section("derived", rows)


def _most(rates: RateSchedules) -> float:
    """Return the largest learning rate."""
    return max(rates.lr(i / 200) for i in range(200))


def _with_defaults(method: dict[str, Any]) -> dict[str, Any]:
    """Return the method's name and all of its settings, defaults included."""
    own = {key: value for key, value in method.items() if key != "name"}
    config = build(find_method(method["name"]).config_type, own, f"method {method['name']}")
    return {"name": method["name"], **dataclasses.asdict(config)}


def _rows(values: Mapping[str, Any], origins: Mapping[str, str], prefix: str) -> list[tuple[str, str, str]]:
    """Return a row per dotted key; mappings in a list (kinds of views) have one row each."""
    rows = []
    for key, value in leaves(values).items():
        many = isinstance(value, tuple) and value and isinstance(value[0], dict)
        entries = [(f"{key}[{i}]", entry) for i, entry in enumerate(value)] if many else [(key, value)]
        rows += [(name.removeprefix(prefix), _text(entry), _origin(key, origins)) for name, entry in entries]
    return rows


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_text(entry)}" for key, entry in value.items()) + "}"
    return show_value(value)


def _origin(key: str, origins: Mapping[str, str]) -> str:
    """Return the origin of a value or of the mapping that contains it (schedule.lr={...})."""
    while key:
        if key in origins:
            return origins[key]
        key = key.rpartition(".")[0]
    return "default"
