"""Clipping of gradients: all together, and each tensor by itself as DINO's code does."""

import copy

import pytest
import torch
from helpers import two_processes
from torch import nn

from sslbench.distributed.parallel import clip_gradients, wrap


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 2), nn.Linear(2, 2))


def with_gradients(module):
    """Gradients of very different lengths, and one parameter without any."""
    for number, parameter in enumerate(list(module.parameters())[:-1]):
        parameter.grad = torch.full_like(parameter, 10.0 ** (number - 2))
    return module


@pytest.mark.parametrize("largest", [0.05, 3.0])
def test_each_tensor_by_itself(largest):
    module = with_gradients(network())
    before = [None if p.grad is None else p.grad.clone() for p in module.parameters()]
    norm = clip_gradients(module.parameters(), largest, each=True)
    for parameter, gradient in zip(module.parameters(), before, strict=True):
        if gradient is None:
            assert parameter.grad is None
            continue
        length = gradient.square().sum().sqrt()
        wanted = gradient * min(1.0, largest / (length + 1e-6))
        torch.testing.assert_close(parameter.grad, wanted)
    wanted = torch.cat([gradient.flatten() for gradient in before if gradient is not None]).norm()
    torch.testing.assert_close(norm, wanted)


def test_the_two_ways_differ():
    each, together = with_gradients(network()), with_gradients(network())
    clip_gradients(each.parameters(), 1.0, each=True)
    clip_gradients(together.parameters(), 1.0)
    assert each[0].weight.grad.norm() > 100 * together[0].weight.grad.norm()


def clip_sharded(rank):
    """The clipped gradients of a network whose parameters are sharded over two processes."""
    module = network()
    plain = copy.deepcopy(module)
    sharded = wrap(module, torch.device("cpu"), "fsdp")
    images = torch.arange(24.0).view(4, 6)
    results = []
    for model in (plain, sharded):
        model(images).square().sum().backward()
        norm = clip_gradients(model.parameters(), 2.0, each=True)
        gradients = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
        results.append([norm.numpy(), *(gradient.numpy() for gradient in gradients)])
    return results


def test_each_tensor_of_a_sharded_network():
    for plain, sharded in two_processes.run(clip_sharded):
        for ours, wanted in zip(sharded, plain, strict=True):
            torch.testing.assert_close(torch.from_numpy(ours), torch.from_numpy(wanted))
