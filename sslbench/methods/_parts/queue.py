"""First-in first-out queues of embeddings, in the two published memory layouts.

MoCo's is a ring buffer: new rows overwrite the oldest in place. SwAV's keeps the newest rows in front, so that samples
keep their order, and sums over them their rounding.
"""

import torch
from torch import Tensor


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
