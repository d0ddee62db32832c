"""Search of neighbours on a CUDA GPU: train stays there where it fits, and candidates are compared there."""

import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from sslbench.arrays import FloatArray, IntArray
from sslbench.solvers import transfer
from sslbench.solvers.neighbour_blocks import CACHED, Blocks, rounded

_SHARE = 0.25  # of the free memory beside train
_DROPPED = 13  # of the 53 digits of a float64 number, where 40 are compared


class DeviceBlocks(Blocks):
    """Blockwise similarities on a GPU; the neighbours are those of `Blocks`, bit by bit.

    >>> from sslbench.solvers.neighbour_blocks import Engine, Scope
    >>> x = np.array([[0.0, 1.0], [1.0, 0.0]], dtype=np.float32)
    >>> blocks = DeviceBlocks(x, x, "dot", Scope(), Engine("torch", "cpu"), 1.0)
    >>> blocks.refine(np.array([0]), np.array([[0, 1]]), 1, np.zeros(1))[1].tolist()
    [[0]]
    """

    all_queries: ClassVar[bool] = True

    @functools.cached_property
    def resident(self) -> Tensor | None:
        """(N, D) train on the device as it is stored; None where its memory has no room."""
        return transfer.resident(self.train, torch.device(self.engine.device))

    @functools.cached_property
    def budget(self) -> float:
        """Working memory in bytes: that of the setting, and at least a quarter of what is free beside train."""
        self.resident  # noqa: B018 - before the rest is counted
        free = transfer.free_memory(torch.device(self.engine.device))
        return max(self.max_memory * 1e9, _SHARE * free) if np.isfinite(free) else self.max_memory * 1e9

    def blocks(self, step: int, *, precise: bool) -> Iterator[tuple[slice, Tensor]]:
        """Yield the parts of train with their rows on the device; the next ones are copied meanwhile."""
        dtype, parts = torch.float64 if precise else torch.float32, transfer.blocks_of(len(self.train), step)
        for part, block in transfer.parts_of(self.resident, self.train, parts, torch.device(self.engine.device)):
            yield part, self.centred(block.to(dtype))

    def refine(self, own: IntArray, rows: IntArray, k: int, error: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return the k nearest of the candidates by float64 similarities, see `Blocks.refine`."""
        similarity, nearest = np.empty((len(own), k)), np.empty((len(own), k), dtype=np.int64)
        step = int(max(1, self.budget / 3 / (40 * max(1, rows.shape[1]) * self.width)))
        for part in transfer.blocks_of(len(own), step):
            found = self._rounded(own[part], rows[part], error[part])
            places = torch.from_numpy(rows[part]).to(found.device)
            # Of equals the lower row first: stable sorts, by the rows and then by the similarities.
            places, order = places.sort(dim=1, stable=True)
            found, order = found.gather(1, order).sort(dim=1, descending=True, stable=True)
            similarity[part], nearest[part] = found[:, :k].cpu().numpy(), places.gather(1, order)[:, :k].cpu().numpy()
        return similarity, nearest

    def _rounded(self, own: IntArray, rows: IntArray, error: FloatArray) -> Tensor:
        """Return the (m, c) rounded similarities.

        The processor computes those again that another order of the sum could round to another number.
        """
        device = torch.device(self.engine.device)
        places = torch.from_numpy(rows).to(device)
        held = self.resident
        chosen = torch.from_numpy(self.train[rows]).to(device) if held is None else held[places]
        queries = torch.from_numpy(np.ascontiguousarray(self.test[own])).to(device).double()[:, None]
        exact, errors = self._similarity(chosen.double(), queries), torch.from_numpy(error).to(device)[:, None]
        found = _round(exact)
        unclear = ~(_round(exact - errors) == _round(exact + errors))
        if unclear.any():
            samples, columns = (each.cpu().numpy() for each in unclear.nonzero(as_tuple=True))
            again = np.empty(len(samples))
            for part in transfer.blocks_of(len(samples), max(1, CACHED // self.width)):
                again[part] = self.exact(own[samples[part]], rows[samples[part], columns[part], None])[:, 0]
            found[unclear] = torch.from_numpy(rounded(again)).to(device)
        return found

    def _similarity(self, chosen: Tensor, queries: Tensor) -> Tensor:
        """Return the (m, c) similarities of rows (m, c, D) with queries (m, 1, D)."""
        if self.metric == "l2":
            return -_sum((chosen - queries).square_())
        similarity = _sum(chosen * queries)
        if self.metric == "cosine":
            lengths = _sum(chosen.square()).sqrt_() * _sum(queries.square()).sqrt_()
            similarity = torch.where(lengths > 0, similarity / lengths, 0.0)
        return similarity


def _sum(values: Tensor) -> Tensor:
    """Return sums (...,) over the last dimension by halves: the order is the same for all rows, so copies are equal."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        pairs = values[..., :half] + values[..., half : 2 * half]
        values = torch.cat([pairs, values[..., 2 * half :]], dim=-1) if values.shape[-1] % 2 else pairs
    return values[..., 0]


def _round(similarity: Tensor) -> Tensor:
    """Return float64 numbers with their leading 40 digits, halves to even, as `rounded` does by numpy."""
    digits = similarity.contiguous().view(torch.int64)
    odd = (digits >> _DROPPED) & 1
    kept: Tensor = (digits + (2 ** (_DROPPED - 1) - 1) + odd) & -(2**_DROPPED)
    return kept.view(torch.float64)
