"""Training of heads on the outputs of a frozen backbone, for heads on features and on maps."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from sslbench.distributed.collectives import rank
from sslbench.errors import BackboneError, DataError
from sslbench.train import loop
from sslbench.train.method import Learner, Loss, Step
from sslbench.train.state import State, save
from sslbench.weights.reading.folders import checkpoint_files

RawT = TypeVar("RawT")


class HeadTraining(Learner, loop.Run[RawT]):
    """Training of heads, of which some may diverge while others learn. The backbone must not move: that is checked."""

    stored_as = "heads"
    draws = False  # dropout is seeded by the update
    state: State

    def __init__(self, heads: nn.Module, backbone_sha256: Callable[[], str], *, folder: Path, updates: int) -> None:
        super().__init__()
        self.heads, self.folder, self.updates = heads, folder, updates
        self.backbone_sha256, self.frozen = backbone_sha256, backbone_sha256()

    @property
    def stored(self) -> nn.Module:
        """The heads."""
        return self.heads

    def diverged(self, raw: RawT, step: Step, loss: Loss, own: float, mean: float) -> None:
        """Go on: others may learn."""

    def more(self) -> dict[str, Any]:
        """Return further entries of a checkpoint."""
        return {}

    def save(self) -> None:
        """Write a checkpoint; after the last update only if the backbone is as it was."""
        if self.state.step == self.updates and self.backbone_sha256() != self.frozen:
            # The checkpoints are wrong too and must not be resumed.
            for file in checkpoint_files(self.folder) if rank() == 0 else ():
                file.unlink(missing_ok=True)
            raise BackboneError(
                "the backbone changed while heads were trained on it: parameters or BatchNorm statistics moved",
                "Its forward pass should not switch to training mode or modify weights.",
            )
        save(self.state, self.folder, **self.more())


def stop_diverged(features: Mapping[str, Tensor], done: int, who: str, remedy: str) -> NoReturn:
    """Stop because no head has a finite loss: the features or the learning rates are the reason."""
    for name, values in features.items():
        if not torch.isfinite(values).all():
            raise DataError(
                f"the features of layer '{name}' are not finite numbers (update {done})",
                "The backbone overflowed (try --precision fp32) or its weights are damaged (see sslbench inspect).",
            )
    raise loop.NotFiniteError(f"{who} diverged: each loss was NaN or infinite by update {done}", remedy)
