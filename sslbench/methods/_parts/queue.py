"""First-in first-out queues of embeddings, in the two published memory layouts.

MoCo's is a ring buffer: new rows overwrite the oldest in place. SwAV's keeps the newest rows in front, so that samples
keep their order, and sums over them their rounding.
"""

import torch
from torch import Tensor

from sslbench.errors import UsageError


def enqueue_(queue: Tensor, new: Tensor, pointer: int) -> int:
    """Overwrite the oldest rows of a ring buffer in place, and return the next pointer.

    >>> queue = torch.arange(4.0).view(4, 1)
    >>> enqueue_(queue, torch.tensor([[8.0], [9.0]]), 2)
    0
    >>> queue.flatten().tolist()
    [0.0, 1.0, 8.0, 9.0]

    Args:
        queue: (K, d).
        new: (n, d), where K is a multiple of n.
        pointer: position of the oldest row, a multiple of n.
    """
    queue[pointer : pointer + len(new)] = new
    return (pointer + len(new)) % len(queue)


def shift_in(queue: Tensor, new: Tensor) -> Tensor:
    """Return a queue (..., K, d) with the new rows (..., n, d) in front and without its oldest n rows.

    >>> shift_in(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[9.0]])).flatten().tolist()
    [9.0, 1.0, 2.0]
    """
    return torch.cat([new, queue], dim=-2)[..., : queue.shape[-2], :]


def need_whole_updates(queue: int, images: int, *, method: str) -> None:
    """Require a queue that is a multiple of the images per update.

    Raises:
        UsageError: it is none; the message names the nearest valid values.
    """
    if queue > 0 and queue % images == 0:
        return
    below, above = queue // images * images, (max(queue, 1) + images - 1) // images * images
    queues = " or ".join(str(n) for n in (below, above) if n > 0)
    divisors = [n for n in range(1, queue + 1) if queue % n == 0]
    near = {max((n for n in divisors if n < images), default=0), min((n for n in divisors if n > images), default=0)}
    batches = " or ".join(str(n) for n in sorted(near - {0}))
    raise UsageError(
        f"{method}: queue={queue} is no multiple of images_per_update={images}",
        f"Set method.queue to {queues}" + (f", or batch_size to {batches}." if batches else "."),
    )
