"""Global random number generators: separate streams for processes, states that are restored."""

import random

import numpy as np
import pytest
import torch

from sslbench.runtime.seeds import preserved_random_states, seed_process, seeded


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_generator_of_a_gpu_is_seeded_and_restored():
    device = torch.device("cuda", 0)
    before = torch.cuda.get_rng_state(device)
    drawn = []
    for _ in range(2):
        with seeded(3, device):
            drawn.append(torch.rand(4, device=device))
    assert torch.equal(*drawn) and torch.equal(before, torch.cuda.get_rng_state(device))


def test_a_block_is_seeded_and_the_state_restored_on_the_cpu():
    expected = torch.default_generator.get_state()
    drawn = []
    for device in (None, torch.device("cpu")):
        with seeded(3, device):
            drawn.append(torch.rand(4))
    assert torch.equal(*drawn) and torch.equal(expected, torch.default_generator.get_state())
