"""Flags of `sslbench pretrain`."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import click

from sslbench.cli.tables import show_value
from sslbench.config import describe
from sslbench.errors import UsageError
from sslbench.library.recipes import leaves, read_recipe
from sslbench.names import find_file, list_names
from sslbench.train.method_settings import declared_config


@dataclasses.dataclass(frozen=True)
class PretrainFlags:
    """Values of the flags of `sslbench pretrain`."""

    data: str | None = None
    out: str | None = None
    init: str | None = None
    init_format: str | None = None
    stem: str | None = None
    eval_data: str | None = None
    eval_test_data: str | None = None
    image_column: str | None = None
    label_column: str | None = None
    limit: int | None = None
    resume: bool = True
    resume_from: str | None = None
    tensorboard: bool = False
    histograms: bool = False
    wandb: str | None = None
    profile: int | None = None
    observer: tuple[str, ...] = ()
    launcher: str | None = None
    dry_run: bool = False
    backbone: str | None = None
    epochs: float | None = None
    batch_size: int | None = None
    device: str | None = None
    precision: str | None = None
    workers: int | None = None
    seed: int | None = None

    def settings(self) -> dict[str, Any]:
        """Return the given flags that are keys of configs/pretrain.yaml."""
        keys = ("backbone", "epochs", "batch_size", "device", "precision", "workers", "seed")
        values = dataclasses.asdict(self)
        return {key: values[key] for key in keys if values[key] is not None}

    def check(self) -> None:
        """Refuse flags that depend on another one that is not given."""
        if self.init is None and (self.init_format or self.stem):
            raise UsageError(f"{'--format' if self.init_format else '--stem'} needs --init, a weights file")
        if self.eval_test_data and not self.eval_data:
            raise UsageError("--eval-test-data needs --eval-data")
        if self.histograms and not self.tensorboard:
            raise UsageError("--histograms needs TensorBoard", "Add --tensorboard.")
        if self.resume_from and not self.resume:
            raise UsageError("--resume-from and --no-resume exclude each other")

    def folder(self, method: str, backbone: str) -> Path:
        """Return the folder of the run: --out, by default runs/METHOD-BACKBONE."""
        if self.out:
            return Path(self.out)
        name = Path(method).stem if "/" in method else method
        architecture = str(backbone).partition(",")[0]  # its options are in config.yaml
        return Path("runs") / re.sub(r"[^\w.-]+", "-", f"{name}-{architecture}")


def write_method(name: str, formatter: click.HelpFormatter) -> None:
    """Write the sections about one recipe."""
    path = find_file("method", name)
    own = _values(name)
    module = str(own.get("method.name", ""))
    config = declared_config(module)
    if config is not None and (rows := describe(config)):
        with formatter.section(f"Settings of {module} (method.KEY=VALUE), as {name} has them"):
            formatter.write_dl(
                [
                    (f"{row.name}={_text(own.get(f'method.{row.name}', row.default))}", f"{row.meaning} [{row.type}]")
                    for row in rows
                ]
            )
    with formatter.section(f"The recipe {name} ({path})"):
        for line in path.read_text(encoding="utf-8").rstrip().splitlines():
            formatter.write(" " * formatter.current_indent + line + "\n")


def _values(name: str) -> dict[str, Any]:
    """Return dotted key -> value of a recipe and of those that it builds on."""
    content = read_recipe("method", name)
    found: dict[str, Any] = {}
    for entry in content.pop("defaults", None) or ():
        # Entries for groups, and '_self_', stand in the same list.
        if isinstance(entry, str) and entry in list_names("method"):
            found |= _values(entry)
    return found | leaves(content)


def _text(value: Any) -> str:
    """Return a value as it is typed after KEY=."""
    return show_value(tuple(value) if isinstance(value, list) else value)
