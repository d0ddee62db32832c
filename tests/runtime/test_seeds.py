"""Global random number generators: separate streams for processes, states that are restored."""

import random

import numpy as np
import pytest
import torch

from sslbench.runtime.seeds import preserved_random_states, seed_process


def draw():
    return torch.rand(1).item(), np.random.rand(), random.random()


def test_states_are_restored_even_after_an_error():
    with preserved_random_states():
        expected = draw()
    with pytest.raises(KeyError), preserved_random_states():
        draw()
        raise KeyError
    assert draw() == expected


def test_every_seed_and_process_has_its_own_stream():
    with preserved_random_states():
        drawn = set()
        for seed in range(3):
            for rank in range(3):
                seed_process(seed, rank)
                drawn.add(torch.rand(1).item())
    assert len(drawn) == 9
