"""Methods around small backbones, fixed batches for them, and every value that they keep."""

import functools
import random
import types

import numpy as np
import torch
from torch import nn

from helpers import runs
from sslbench import config
from sslbench.backbones.build import build
from sslbench.backbones.sizes import feature_dim
from sslbench.data.views import Augment
from sslbench.pretraining.networks import make_method
from sslbench.train.method import Batch, Method, Setup


def make(method, *, small=None, **changes):
    """Return a method around its small backbone, and a fixed batch of 16 images."""
    own, augment, name = small or runs.METHODS[method]
    own = {**own, **changes}
    backbone = build(name, seed=0)
    backbone.module.requires_grad_(True).train()
    kinds = config.build(Augment, augment, "test")
    sizes = kinds.sizes
    dim = feature_dim(backbone.module, 32, backbone.preprocessing.channels)
    setup = Setup(dim, sizes, 16, 16, 1, 96, 10, 40, 20, name)
    made = make_method(backbone.module, {"name": method, **own}, setup, seed=0)
    generator = torch.Generator().manual_seed(1)
    images = torch.rand(16, 3, 32, 32, generator=generator) * 2 - 1
    cells = [cell for view in kinds.expanded() for cell in range(view.cells)]  # of a grid: brighter and brighter
    views = tuple(
        torch.nn.functional.interpolate(images, size=size)
        + 0.1 * torch.randn(16, 3, size, size, generator=generator)
        + cell / 4
        for size, cell in zip(sizes, cells, strict=True)
    )
    boxes = torch.tensor([0.0, 0.0, 32.0, 32.0]) + 8 * torch.rand(16, len(views), 4, generator=generator)
    return made, Batch(views, torch.arange(16) % 10, torch.arange(16), boxes=boxes)


def one_update(made, optimizer, batch, step):
    """Train by one update; return the loss."""
    optimizer.zero_grad(set_to_none=True)
    loss = made(batch, step)
    loss.value.backward()
    made.before_update(step)
    optimizer.step()
    made.after_update(step)
    return loss


def kinds_of_state(made):
    """Return the kinds of state beside trained parameters: names of buffers, moving averages, state of a process."""
    buffers = [
        name
        for path, module in made.named_modules()
        if not isinstance(module, nn.modules.batchnorm._NormBase)
        for name in (module._buffers.keys() - module._non_persistent_buffers_set)
    ]
    kinds = {name.rstrip("0123456789") for name in buffers}
    kinds |= {"moving average"} if not all(parameter.requires_grad for parameter in made.parameters()) else set()
    kinds |= {"state of a process"} if type(made).local_state is not Method.local_state else set()
    return kinds or {"none"}


@functools.cache
def one_per_kind_of_state():
    """Return the fewest methods that have all kinds of state between them, as found by taking the richest first."""
    kinds = {method: kinds_of_state(make(method)[0]) for method in runs.METHODS}
    missing, chosen = set().union(*kinds.values()), []
    while missing:
        chosen.append(max(kinds, key=lambda method: len(kinds[method] & missing)))
        missing -= kinds[chosen[-1]]
    return tuple(chosen)


def differences(one, other, where, seen=None):
    """Return the places at which two objects differ, with everything that is reached through their attributes."""
    seen = {} if seen is None else seen
    if id(one) in seen or one is other or isinstance(one, type | types.FunctionType | types.BuiltinFunctionType):
        return []
    seen[id(one)] = one
    own, others = _content(one), _content(other)
    if type(one) is not type(other):
        return [f"{where}: {type(one).__name__}, {type(other).__name__}"]
    if not isinstance(own, dict):
        return [] if own == others else [where]
    if own.keys() != others.keys():
        return [f"{where}: {sorted(map(str, own.keys() ^ others.keys()))} in one only"]
    return [place for key in own for place in differences(own[key], others[key], f"{where}.{key}", seen)]


def _content(value):
    """Return the parts of a value by name; of a value without parts something that can be compared."""
    match value:
        case torch.Tensor():
            return value.requires_grad, _content(value.detach().numpy())
        case np.ndarray():
            return str(value.dtype), value.shape, value.tobytes()
        case torch.Generator():
            return value.get_state().tolist()
        case random.Random():
            return value.getstate()
        case np.random.Generator():
            return value.bit_generator.state
        case types.MethodType():
            return {"self": value.__self__}
        case functools.partial():
            return {"function": value.func, "arguments": value.args, "named": value.keywords}
        case list() | tuple():
            return dict(enumerate(value))
        case dict():
            return value
    return getattr(value, "__dict__", value)
