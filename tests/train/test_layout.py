"""Memory layout of a training on a processor."""

import pytest
import torch
from torch import nn

from sslbench.train.optimizers.optimizer import OptimizerSettings
from sslbench.train.state import new_state


class Tiny(nn.Module):
    block_methods = ()

    def __init__(self, conv):
        super().__init__()
        self.first, self.conv = nn.Conv2d(3, 16, 3), conv


@pytest.mark.parametrize(
    ("conv", "last"),
    [
        (nn.Conv2d(8, 16, 1, stride=2), False),
        (nn.Conv2d(16, 16, 1, stride=2), True),
        (nn.Conv2d(8, 16, 1), True),
        (nn.Conv2d(8, 16, 3, stride=2), True),
    ],
)
def test_what_onednn_writes_past_its_memory_is_not_laid_out_by_pixels(conv, last):
    state = new_state(Tiny(conv), torch.device("cpu"), OptimizerSettings(lr=0.1, lr_scaling="none"), seed=0)
    assert state.method.first.weight.is_contiguous(memory_format=torch.channels_last) == last
    assert state.rows_of_channels != last
