"""Copies of rows to a device, two buffers ahead of the computation, and its free memory."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sslbench.solvers import transfer

CPU = torch.device("cpu")


def test_parts_arrive_in_order_whatever_the_caller_does_with_them():
    rows = np.random.default_rng(0).normal(size=(101, 3)).astype(np.float16)
    parts = transfer.blocks_of(len(rows), 10)
    kept = [block for _, block in transfer.sent(rows, parts, CPU)]  # the buffers are used again, the blocks are not
    np.testing.assert_array_equal(torch.cat(kept).numpy(), rows)
    np.testing.assert_array_equal(transfer.resident(rows, CPU).numpy(), rows)
    assert list(transfer.sent(rows, [], CPU)) == []


def test_a_caller_that_stops_early_leaves_no_thread():
    before = threading.active_count()
    for _ in transfer.sent(np.zeros((50, 2)), transfer.blocks_of(50, 5), CPU):
        break
    assert threading.active_count() == before


def test_an_error_of_reading_reaches_the_caller():
    class Damaged:
        def __getitem__(self, part):
            raise OSError("damaged")

    with pytest.raises(OSError, match="damaged"):
        list(transfer.sent(Damaged(), [slice(0, 1)], CPU))


def test_free_memory_counts_what_the_allocator_keeps_and_the_share_of_the_process(monkeypatch):
    state = SimpleNamespace(share=1.0)
    for name, value in {"mem_get_info": (10, 100), "memory_allocated": 30, "memory_reserved": 50}.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda device: state.share, raising=False)
    assert transfer.free_memory(torch.device("cuda")) == 30  # 10 of the driver and 20 that torch keeps
    state.share = 0.4
    assert transfer.free_memory(torch.device("cuda")) == 10
    assert transfer.free_memory(CPU) == float("inf")


def test_rows_that_fill_more_than_half_of_the_free_memory_do_not_stay(monkeypatch):
    rows = np.zeros((10, 2), np.float32)
    monkeypatch.setattr(transfer, "free_memory", lambda device: 159.0)
    assert transfer.resident(rows, CPU) is None
    monkeypatch.setattr(transfer, "free_memory", lambda device: 160.0)
    assert transfer.resident(rows, CPU).shape == (10, 2)
