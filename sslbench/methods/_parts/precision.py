"""Losses in full precision, independent of the precision of the networks."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

P = ParamSpec("P")
R = TypeVar("R")


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function outside autocast, with half-precision arguments converted to float32; float64 is kept.

    Autocast would compute the matrix products of a loss in half precision even on float32 tensors. Arguments may be
    tensors, or lists, tuples and dictionaries of tensors.
    """

    @functools.wraps(function)
    def widened(*args: P.args, **kwargs: P.kwargs) -> R:
        device = next(_tensors((args, kwargs))).device.type
        wide, named = _widen(list(args)), _widen(kwargs)
        with torch.autocast(device, enabled=False):
            return function(*wide, **named)

    return widened


@in_float32
def unit_length(x: Tensor) -> Tensor:
    """Return the rows of a (n, d) tensor scaled to length 1."""
    return functional.normalize(x, dim=1)


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for item in value:
            yield from _tensors(item)


def _widen(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value
    if isinstance(value, dict):
        return {key: _widen(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_widen(item) for item in value]
    if type(value) is tuple:
        return tuple(_widen(item) for item in value)
    return value
