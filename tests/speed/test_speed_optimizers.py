"""LARS and LARC against a loop over parameters, SGD and AdamW against torch's defaults: `make bench`."""

import time

import pytest
import torch
import torchvision

from sslbench.train.optimizers.larc import LARC
from sslbench.train.optimizers.lars import LARS
from sslbench.train.optimizers.optimizer import OptimizerSettings, make_optimizer
from sslbench.train.parameter_groups import parameter_groups

pytestmark = pytest.mark.speed


def loop(params, buffers, *, separate, lr=0.1, momentum=0.9, weight_decay=1e-6, trust=1e-3, eps=1e-8):
    """The published way: one parameter after the other, each asked for its norms."""
    with torch.no_grad():
        for p, buffer in zip(params, buffers, strict=True):
            d = p.grad
            if separate:
                size_p, size_g = torch.norm(p), torch.norm(d)
                if size_p != 0 and size_g != 0:
                    d = (d + weight_decay * p) * (trust * size_p / (size_g + weight_decay * size_p + eps))
            else:
                d = d.add(p, alpha=weight_decay)
                size_p, size_d = torch.norm(p), torch.norm(d)
                one = torch.ones_like(size_p)
                d = d * torch.where((size_p > 0) & (size_d > 0), trust * size_p / size_d, one)
            buffer.mul_(momentum).add_(d)
            p.add_(buffer, alpha=-lr)


def seconds(ours, theirs, device, repeats=10):
    """Of one step of each, measured alternately; the best of a few."""
    best = [float("inf")] * 2
    for i in range(repeats + 1):
        for which, step in enumerate((ours, theirs)):
            started = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if i:
                best[which] = min(best[which], time.perf_counter() - started)
    return best


def network(name, device):
    torch.manual_seed(0)
    model = getattr(torchvision.models, name)().to(device)
    for p in model.parameters():
        p.grad = torch.randn_like(p) * 0.01
    return model


DEVICES = ("cpu", *(("cuda",) if torch.cuda.is_available() else ()))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
@pytest.mark.parametrize("kind", [LARS, LARC])
def test_layerwise_rates_against_a_loop(kind, name, device):
    ours, theirs = network(name, device), list(network(name, device).parameters())
    optimizer = kind(ours.parameters(), 0.1, weight_decay=1e-6)
    buffers = [torch.zeros_like(p) for p in theirs]
    together, one_by_one = seconds(optimizer.step, lambda: loop(theirs, buffers, separate=kind is LARC), device)
    for p, q in zip(ours.parameters(), theirs, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    print(
        f"\n{kind.__name__}, {name}, {device}, {torch.get_num_threads()} threads: {1000 * together:.2f} ms a step, "
        f"loop {1000 * one_by_one:.2f} ms (x{one_by_one / together:.2f})"
    )
    assert together < one_by_one


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("name", "cls"), [("sgd", torch.optim.SGD), ("adamw", torch.optim.AdamW)])
def test_sgd_and_adamw_against_torchs_defaults(name, cls, device):
    model = network("resnet50", device)
    settings = OptimizerSettings(name=name, decay_norm=False, decay_bias=False)
    optimizer = make_optimizer(parameter_groups(model, settings), settings)
    momentum = {"momentum": 0.9} if name == "sgd" else {}
    plain = cls(network("resnet50", device).parameters(), 0.1, weight_decay=1e-4, **momentum)
    ours, theirs = seconds(optimizer.step, plain.step, device)
    print(f"\n{name}, resnet50, {device}: {1000 * ours:.2f} ms a step, torch's default {1000 * theirs:.2f} ms")
    assert ours < 1.2 * theirs
