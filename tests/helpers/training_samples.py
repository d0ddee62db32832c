"""A tiny network, a fixed batch, and a bare loop."""

import dataclasses
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from sslbench.backbones import resnet
from sslbench.backbones.architectures import parse
from sslbench.backbones.sizes import accept_sizes, feature_dim
from sslbench.train.method import Batch, Method, Setup, Step

SIZE = 32


def network(name: str = "resnet18w0.125", *, seed: int = 0) -> nn.Module:
    """A backbone that can be trained."""
    if name.startswith("timm:"):
        from sslbench.backbones.build import build  # importing timm takes longer than most tests

        return build(name, seed=seed).module.train().requires_grad_(True)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return resnet.ResNet(parse(name)).train()


def setup_for(net: nn.Module, *, images: int = 8, sizes: tuple[int, ...] = (SIZE, SIZE), **changes) -> Setup:
    accept_sizes(net, sizes, name="the test's")
    values = Setup(
        feature_dim=feature_dim(net, sizes[0]),
        sizes=sizes,
        batch_size=images,
        images_per_update=images,
        world=1,
        samples=100,
        classes=3,
        steps=20,
        steps_per_epoch=10,
        backbone="resnet18w0.125",
    )
    return dataclasses.replace(values, **changes)


def batch_of(setup: Setup, *, seed: int = 0) -> Batch:
    """Random images, and views of them that differ by noise; small views are cut out."""
    random = torch.Generator().manual_seed(seed)
    side = max(setup.sizes)
    base = torch.randn(setup.batch_size, 3, side, side, generator=random)
    views = tuple(
        (base[..., :size, :size] + 0.1 * torch.randn(setup.batch_size, 3, size, size, generator=random)).contiguous(
            memory_format=torch.channels_last
        )
        for size in setup.sizes
    )
    labels = torch.arange(setup.batch_size) % max(setup.classes, 1)
    boxes = side * torch.rand(setup.batch_size, len(views), 4, generator=random)
    return Batch(views, labels, torch.arange(setup.batch_size), boxes=boxes)


def made(module, default, config=None, *, sizes: tuple[int, ...], backbone: str = "resnet18w0.125", **changes):
    """A method of a module with its setup and a batch; `default` is its config where none is given."""
    net = network(backbone)
    setup = setup_for(net, sizes=sizes, backbone=backbone, **changes)
    torch.manual_seed(0)
    return module.Method(net, config or default, setup), setup, batch_of(setup)


def step_of(index: int, setup: Setup) -> Step:
    return Step(index=index, total=setup.steps, per_epoch=setup.steps_per_epoch)


def train(
    method: Method, batch: Batch, setup: Setup, updates: int, *, start: int = 0, lr: float = 0.05, passes: int = 1
) -> list[float]:
    """A bare loop with SGD; the loss of every update."""
    optimizer = torch.optim.SGD(
        [p for p in method.parameters() if p.requires_grad], lr=lr, momentum=0.9, weight_decay=1e-4
    )
    losses = []
    for index in range(start, start + updates):
        step = step_of(index, setup)
        optimizer.zero_grad()
        values = [method(batch, step).value / passes for _ in range(passes)]
        total = torch.stack(values).sum()
        total.backward()
        method.before_update(step)
        optimizer.step()
        method.after_update(step)
        losses.append(total.item())
    return losses


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def random_rows(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def gradient(loss: Callable[[Tensor], Tensor], rows: np.ndarray) -> tuple[float, np.ndarray]:
    """Value and gradient of a loss of one tensor."""
    x = torch.from_numpy(rows).clone().requires_grad_()
    value = loss(x)
    value.backward()
    return value.item(), x.grad.numpy()
