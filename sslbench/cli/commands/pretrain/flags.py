"""Flags of `sslbench pretrain`."""

import dataclasses
import re
from pathlib import Path
from typing import Any

from sslbench.errors import UsageError


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
        """Refuse flags that depend on another one that is not given.

        Raises:
            UsageError: the message names the flag.
        """
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
