"""Random numbers of images: they follow from the run's seed, the update and the image, for any number of processes."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sslbench.train.method import Batch, Step


def image_generators(seed: int, batch: Batch, step: Step, device: torch.device | str = "cpu") -> list[torch.Generator]:
    """Return a generator of random numbers for each image of a batch.

    An image that occurs twice in an update has the same numbers twice.

    >>> batch = Batch((), None, torch.tensor([4, 7]))
    >>> both = [torch.rand(1, generator=each) for each in image_generators(0, batch, Step(2, 10, 5))]
    >>> second = Batch((), None, torch.tensor([7]))  # of another process
    >>> torch.equal(both[1], torch.rand(1, generator=image_generators(0, second, Step(2, 10, 5))[0]))
    True

    Args:
        seed: of the run, `Method.seed`.
        batch: this process's part.
        step: the update.
        device: of the drawn numbers.
    """
    return [_generator(device, seed, step, index) for index in batch.indices.tolist()]


def update_generator(seed: int, step: Step) -> torch.Generator:
    """Return a generator of random numbers on the CPU that all processes and passes of an update share."""
    return _generator("cpu", seed, step)


def view_by_view(of_images: Sequence[Tensor]) -> Tensor:
    """Join the rows (V, ...) of B images, one for each view, in the order of `torch.cat(batch.views)`: (V * B, ...).

    >>> view_by_view([torch.tensor([1, 2]), torch.tensor([10, 20])]).tolist()
    [1, 10, 2, 20]
    """
    return torch.stack(list(of_images), dim=1).flatten(0, 1)


def _generator(device: torch.device | str, seed: int, step: Step, *image: int) -> torch.Generator:
    update = step.per_epoch + step.index  # not negative in a first pass
    number = np.random.SeedSequence((seed, update, *image)).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(number))
