"""The losses of one batch, and what is done when they are not finite."""

from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from sslbench.detection.batches import Batch
from sslbench.detection.models.boxes import Target
from sslbench.detection.recipe import DetectionRecipe
from sslbench.distributed.collectives import rank, sum_, world_size
from sslbench.train import checkpoints
from sslbench.train.loop import NotFiniteError


def losses_of(model: nn.Module, batch: Batch, device: torch.device, *, seed: int, iteration: int) -> dict[str, Tensor]:
    """The losses by name; which anchors and regions are drawn follows from seed, iteration and process."""
    number = int(np.random.SeedSequence((seed, iteration, rank())).generate_state(1)[0])
    generator = torch.Generator().manual_seed(number)
    images = [image.to(device, non_blocking=True) for image in batch[0]]
    return cast(dict[str, Tensor], model(images, [_moved(target, device) for target in batch[1]], generator))


def _moved(target: Target, device: torch.device) -> Target:
    masks = None if target.masks is None else target.masks.to(device)
    return Target(target.boxes.to(device), target.classes.to(device), masks)


def finite_mean(
    losses: dict[str, Tensor], total: Tensor, recipe: DetectionRecipe, iteration: int, folder: Path
) -> Tensor:
    """The loss averaged over the processes; every one comes to the same verdict, before the weights are touched.

    Raises:
        NotFiniteError: it is NaN or infinite.
    """
    mean = sum_(total.detach().clone()) / world_size()
    if torch.isfinite(mean):
        return mean
    bad = ", ".join(name for name, value in losses.items() if not torch.isfinite(value)) or "that of another process"
    kept = checkpoints.newest(folder)
    where = f" The last checkpoint, {kept}, is from before." if kept else ""
    raise NotFiniteError(
        f"the loss is {float(mean)} in iteration {iteration + 1} of {recipe.iterations} ({bad}).{where}",
        f"Try a lower rate (lr={recipe.lr:g} now) or a longer warm-up (warmup_iterations={recipe.warmup_iterations} "
        "now); or are these the weights that you meant?",
    )
