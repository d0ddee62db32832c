"""Log records count the images of all processes, and tell the longest wait."""

import time

import torch
from helpers import two_processes

from sslbench.data.loading.batch import RawBatch
from sslbench.train.meter import TrainingMeter
from sslbench.train.method import Loss


def counted(rank):
    """Counts in the record of an update: rank 0 saw 4 images of 'a', rank 1 three of 'b' and one of 'a'."""
    meter = TrainingMeter(torch.device("cpu"))
    origins = ("a", "b", "b", "b") if rank else ("a",) * 4
    replaced = torch.arange(4) < rank * 2 + 1
    raw = RawBatch((torch.zeros(4, 1),), torch.zeros(4), torch.arange(4), replaced, origins=origins)
    meter.wait_for(iter([raw]))
    meter.started, meter.waited = time.perf_counter() - 1e6, 1e5 * (rank + 1)  # a slow machine adds seconds
    loss = Loss(torch.zeros(()), torch.randn(4, 3, generator=torch.Generator().manual_seed(rank)))
    record = meter.line(1.0, 1, loss, 0.0, (0.1, None), None, {})
    assert not meter.origins and not meter.replaced
    return record.replaced, record.origins, round(record.waiting, 2)


def test_images_of_all_processes_are_counted():
    assert two_processes.run(counted) == [(4, {"a": 5, "b": 3}, 0.2)] * 2, "a fifth of the time on the second process"
