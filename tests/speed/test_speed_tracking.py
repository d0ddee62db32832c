"""Propagation of masks against the bare products of features that it needs."""

import time

import pytest
import torch

from sslbench.solvers.propagation import Propagation, propagate_frame

GRID, WIDTH, SOURCES = (30, 52), 384, 8


def seconds(function, repeats=3):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


@pytest.mark.speed
def test_a_frame_takes_at_most_six_times_the_products_of_all_cells():
    """Windows are index arithmetic: python loops over 1,560 cells would take a hundred times the products."""
    generator = torch.Generator().manual_seed(0)
    sources = torch.nn.functional.normalize(torch.randn(SOURCES, WIDTH, *GRID, generator=generator), dim=1)
    labels = torch.rand(SOURCES, 4, *GRID, generator=generator)
    flat = [source.flatten(1) for source in sources]
    bare = seconds(lambda: [flat[0].T @ other for other in flat])
    own = seconds(lambda: propagate_frame(sources[0], sources, labels, Propagation(), windowed=[True] * SOURCES))
    assert own < 6 * bare, f"{own:.3f} s against {bare:.3f} s"
