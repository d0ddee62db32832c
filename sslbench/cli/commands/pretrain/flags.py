"""Flags of `sslbench pretrain`."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import click

from sslbench.cli.flags import flag, flags_of, same
from sslbench.cli.options import DataFlags
from sslbench.cli.tables import show_value
from sslbench.config import describe
from sslbench.errors import UsageError
from sslbench.library.recipes import leaves, read_recipe
from sslbench.names import find_file, list_names, module_file
from sslbench.pretraining.settings import PretrainSettings


@dataclasses.dataclass(frozen=True)
class PretrainFlags:
    """Flags of `sslbench pretrain`, and settings of the run that were given as flags."""

    data: str | None = flag(
        "Images: folder, table, manifest, torchvision:NAME, ... Labels are ignored.", "--data", "-d"
    )
    out: str | None = flag("Folder of the run. Default: runs/METHOD-BACKBONE.", "--out", "-o")
    init: str | None = flag("Weights file to start from, in any format. Default: random initialisation.")
    init_format: str | None = flag("Format of --init (sslbench list formats). Default: recognised.", "--format")
    stem: str | None = flag(
        "Rule that adapts the first convolution of --init to the number of channels: average, repeat, ..."
    )
    eval_data: str | None = flag(
        "Labelled data for kNN and feature spectra every eval_every epochs (eval_linear=true: a linear head, too)."
    )
    eval_test_data: str | None = flag("Test split of --eval-data. Default: found there, or split off.")
    image_column: str | None = same(DataFlags, "image_column")
    label_column: str | None = same(DataFlags, "label_column")
    limit: int | None = flag("Largest number of images, for a quick look.", within="[1, inf)")
    resume: bool = flag(
        "Continue the run in --out (default), or refuse a folder in use.", "--resume/--no-resume", default=True
    )
    resume_from: str | None = flag("Checkpoint to continue from. Default: the newest in --out.")
    tensorboard: bool = flag("Write scalars for TensorBoard below --out.", default=False)
    histograms: bool = flag(
        "Write histograms of parameters and gradients each epoch (--tensorboard, --wandb).", default=False
    )
    histograms_every: int | None = flag(
        "Write them so many updates apart, each with the next line of the log. Default: an epoch.", within="[1, inf)"
    )
    wandb: str | None = flag("Weights & Biases project to log to (WANDB_MODE=offline works).", metavar="PROJECT")
    observer: tuple[str, ...] = flag(
        "Observer of your own, built without arguments; repeatable.", default=(), metavar="MODULE:CLASS"
    )
    profile: int | None = flag("Updates to profile; writes a table and a trace.", within="[1, inf)", metavar="N")
    launcher: str | None = flag(
        "Launcher: local, or slurm (launcher.partition=..., launcher.nodes=...). Default: local."
    )
    dry_run: bool = flag("Print the settings with their origins and stop.", default=False)
    typed: dict[str, Any] = flags_of(PretrainSettings, backbone=("--backbone", "-b"))

    def check(self) -> None:
        """Refuse flags that depend on another one that is not given."""
        if self.init is None and (self.init_format or self.stem):
            raise UsageError(f"{'--format' if self.init_format else '--stem'} needs --init, a weights file")
        if self.eval_test_data and not self.eval_data:
            raise UsageError("--eval-test-data needs --eval-data")
        if (self.histograms or self.histograms_every) and not (self.tensorboard or self.wandb):
            name = "--histograms" if self.histograms else "--histograms-every"
            raise UsageError(f"{name} needs TensorBoard or Weights & Biases", "Add --tensorboard or --wandb PROJECT.")
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
    rows = []
    if module_file("method", module) is not None:  # code of the user's own is not run for the help
        from sslbench.train.method import find_method  # imports torch

        for row in describe(find_method(module).config_type):
            value = own.get(f"method.{row.name}", row.default)
            shown = show_value(tuple(value) if isinstance(value, list) else value)
            rows.append((f"{row.name}={shown}", f"{row.meaning} [{row.type}]"))
    if rows:
        with formatter.section(f"Settings of {module} (method.KEY=VALUE), as {name} has them"):
            formatter.write_dl(rows)
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
