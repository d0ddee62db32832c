"""Patches and their random masks: blocks (BEiT, iBOT, DINOv2), single patches, and coarse units (SimMIM).

Masks are drawn on the CPU, those of blocks with Python's random numbers that a generator of torch seeds: torch's
default one, whose state is part of a checkpoint, or that of an image (`image_generators`).
"""

import math
import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sslbench.errors import UsageError
from sslbench.train.method import Batch, Step

_LOG_ASPECT = math.log(0.3)


def random_numbers(generator: torch.Generator | None = None) -> random.Random:
    """Return a generator of random numbers, seeded by the next number of one of torch's, by default the default one."""
    return random.Random(int(torch.randint(2**62, (), generator=generator)))


def check_shares(mask_ratio: tuple[float, float], *, method: str) -> None:
    """Refuse ranges of the share of masked patches in a view that mask none."""
    low, high = mask_ratio
    if low > high or high == 0:
        raise UsageError(
            f"{method}: method.mask_ratio=[{low}, {high}] masks no part of the patches",
            "It is a range of shares: the lower first, the upper above 0.",
        )


def need_masked_count(share: float, patches: int, *, method: str) -> None:
    """Refuse a share of masked patches that leaves none to mask, or none to see."""
    if not 0 < int(share * patches) < patches:
        raise UsageError(
            f"{method}: method.masked={share} masks none or all of the {patches} patches",
            "Choose another method.masked, or smaller patches (--backbone NAME,patch_size=...).",
        )


def block_masks(
    grid: tuple[int, int],
    counts: Sequence[float],
    *,
    smallest: float,
    largest: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return masks of overlapping rectangles (BEiT, Bao et al., arXiv 2106.08254, Algorithm 1)."""
    # Rectangles have a random area and a random aspect ratio from 0.3 to 1 / 0.3. They are added until the number of
    # masked patches is reached, or until ten of them in a row do not fit.
    numbers = random_numbers(generator)
    masks = []
    for count in counts:
        mask = 0
        while (masked := mask.bit_count()) < count:
            added = _with_block(mask, grid, count - masked, smallest, largest, numbers)
            if added == mask:
                break
            mask = added
        masks.append(mask)
    return unpack(masks, grid[0] * grid[1])


def _with_block(
    mask: int, grid: tuple[int, int], room: float, smallest: float, largest: float, numbers: random.Random
) -> int:
    """Return a mask with a random rectangle of at most `room` new patches; after ten failures as it is."""
    for _ in range(10):
        area = numbers.uniform(smallest, min(room, largest))
        aspect = math.exp(numbers.uniform(_LOG_ASPECT, -_LOG_ASPECT))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height >= grid[0] or width >= grid[1]:
            continue
        top, left = numbers.randrange(grid[0] - height + 1), numbers.randrange(grid[1] - width + 1)
        added = mask | block(grid[1], (height, width), top, left)
        if 0 < (added ^ mask).bit_count() <= room:
            return added
    return mask


def block(columns: int, size: tuple[int, int], top: int, left: int) -> int:
    """Return the mask of a rectangle: bit r * columns + c is the patch in row r and column c.

    A mask in a number costs a few operations where one in a tensor costs a call of torch for each.

    >>> bin(block(4, (2, 2), 0, 1))
    '0b1100110'
    """
    height, width = size
    every_row = ((1 << columns * height) - 1) // ((1 << columns) - 1)  # the first bit of each row
    return ((1 << width) - 1) * every_row << top * columns + left


def unpack(masks: Sequence[int], patches: int) -> Tensor:
    """Return masks of patches as (len(masks), patches) booleans.

    >>> unpack([0b110], 4).int().tolist()
    [[0, 1, 1, 0]]
    """
    length = -(-patches // 8)
    packed = np.frombuffer(b"".join(mask.to_bytes(length, "little") for mask in masks), dtype=np.uint8)
    bits = np.unpackbits(packed.reshape(len(masks), length), axis=1, count=patches, bitorder="little")
    return torch.from_numpy(bits.view(np.bool_))


def filled_block_masks(
    images: int, grid: tuple[int, int], masked: int, *, smallest: float, generator: torch.Generator | None = None
) -> Tensor:
    """Return masks of rectangles, and of single patches where no more rectangles fit: `masked` patches in each.

    Source: BEiT v2's masking_generator.py, where `smallest` is the least area of a rectangle.

    >>> filled_block_masks(3, (4, 4), 6, smallest=2).sum(1).tolist()
    [6, 6, 6]
    """
    blocks = block_masks(grid, [masked] * images, smallest=smallest, largest=masked, generator=generator)
    order = torch.rand(blocks.shape, generator=generator) + blocks
    return torch.zeros_like(blocks).scatter_(1, order.topk(masked, dim=1).indices, True)


def filled_masks_of(
    batch: Batch, step: Step, seed: int, grid: tuple[int, int], masked: int, *, smallest: int
) -> Tensor:
    """Return `filled_block_masks` of all views of a batch, in the order of `torch.cat(batch.views)`."""
    generators = image_generators(seed, batch, step)
    drawn = [
        filled_block_masks(len(batch.views), grid, masked, smallest=smallest, generator=each) for each in generators
    ]
    return view_by_view(drawn)


def inverse_block_masks(
    grid: tuple[int, int], counts: Sequence[int], *, aspect: float, generator: torch.Generator | None = None
) -> Tensor:
    """Return masks of all patches but a rectangle, which wraps around the edges: `counts[i]` true in row i.

    The rectangle's aspect ratio is from `aspect` to its inverse; of its last row some patches may lack. A count of 0
    masks nothing. Source: CAPI (Darcet et al. 2025, arXiv 2502.08769) and its data.py, with roll.

    >>> inverse_block_masks((4, 4), [0, 10, 16], aspect=0.5).sum(1).tolist()
    [0, 10, 16]
    """
    numbers, (rows, columns) = random_numbers(generator), grid
    masks = []
    for count in counts:
        visible = rows * columns - count
        low = max(math.log(aspect), math.log(max(visible, 1) / columns**2))
        high = min(-math.log(aspect), math.log(rows**2 / max(visible, 1)))
        ratio = math.exp(numbers.uniform(min(low, high), high))
        width = min(max(math.ceil(math.sqrt(visible / ratio)), -(-visible // rows)), columns)
        top, left = numbers.randrange(rows), numbers.randrange(columns)
        seen = [(top + i // width) % rows * columns + (left + i % width) % columns for i in range(visible)]
        masks.append((1 << rows * columns) - 1 - sum(1 << patch for patch in seen))
    return unpack(masks, rows * columns)


def random_masks(patches: int, counts: Sequence[int], generator: torch.Generator | None = None) -> Tensor:
    """Return masks of single patches: (len(counts), patches) booleans, with `counts[i]` true in row i.

    >>> random_masks(4, [0, 4, 1]).sum(1).tolist()
    [0, 4, 1]
    """
    order = torch.rand(len(counts), patches, generator=generator).argsort(dim=1).argsort(dim=1)
    return order < torch.as_tensor(counts)[:, None]


def patchify(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Cut images into patches: (B, C, H, W) -> (B, patches, h * w * C), row by row, with channels last.

    >>> patchify(torch.arange(16.0).view(1, 1, 4, 4), (2, 2))[0].int().tolist()
    [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    """
    b, c, height, width = images.shape
    h, w = size
    grid = images.reshape(b, c, height // h, h, width // w, w)
    return grid.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, h * w * c)


def normalise_patches(patches: Tensor) -> Tensor:
    """Return patches (..., pixels) of mean 0 and variance 1 each (unbiased, plus 1e-6), as in MAE's code.

    >>> print(normalise_patches(torch.tensor([[1.0, 3.0]])))
    tensor([[-0.7071,  0.7071]])
    """
    variance, mean = torch.var_mean(patches, dim=-1, keepdim=True)
    return (patches - mean) / (variance + 1e-6).sqrt()


def unit_masks(
    images: int, grid: tuple[int, int], unit: int, masked: int, generator: torch.Generator | None = None
) -> Tensor:
    """Return masks of coarse units (SimMIM, Xie et al., arXiv 2111.09886, section 3.2).

    Returns (images, rows * columns) booleans, true for masked patches.
    """
    rows, columns = grid[0] // unit, grid[1] // unit
    units = random_masks(rows * columns, [masked] * images, generator).view(images, rows, columns)
    return units.repeat_interleave(unit, dim=1).repeat_interleave(unit, dim=2).flatten(1)


def masked_rows(mask: Tensor, device: torch.device) -> Tensor:
    """Return the numbers of the masked patches, (M,) on a device, counted through a mask (V, N) on the CPU."""
    # With `take_rows` they take the place of `tokens[mask]`, for which the processor waits until a GPU has counted.
    return mask.flatten().nonzero()[:, 0].to(device, non_blocking=True)


def take_rows(tokens: Tensor, rows: Tensor) -> Tensor:
    """Return the tokens at these rows of all: (V, N, d), (M,) -> (M, d).

    >>> mask = torch.tensor([[True, False], [False, True]])
    >>> take_rows(torch.arange(4.0).view(2, 2, 1), masked_rows(mask, torch.device("cpu"))).flatten().tolist()
    [0.0, 3.0]
    """
    return tokens.flatten(0, 1).index_select(0, rows)


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """Return the tokens of each image at its indices: (B, n, d), (B, m) -> (B, m, d)."""
    return tokens.gather(1, index[..., None].expand(-1, -1, tokens.shape[-1]))


def image_generators(seed: int, batch: Batch, step: Step, device: torch.device | str = "cpu") -> list[torch.Generator]:
    """Return a generator of random numbers for each image of a batch.

    An image that occurs twice in an update has the same numbers twice.

    >>> batch = Batch((), None, torch.tensor([4, 7]))
    >>> both = [torch.rand(1, generator=each) for each in image_generators(0, batch, Step(2, 10, 5))]
    >>> second = Batch((), None, torch.tensor([7]))  # of another process
    >>> torch.equal(both[1], torch.rand(1, generator=image_generators(0, second, Step(2, 10, 5))[0]))
    True
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
