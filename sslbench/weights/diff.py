"""Comparison of the backbones in two weights files of any format, under canonical names."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbench.errors import WeightsError
from sslbench.weights.formats.places import tensors_at
from sslbench.weights.formats.recognise import OPTIONAL_LEAF, Recognised, recognise
from sslbench.weights.reading import files
from sslbench.weights.reading.files import WeightsFile

RAW = "raw names"


@dataclasses.dataclass(frozen=True)
class Side:
    """Tensors of one of the two files.

    Attributes:
        tensors: canonical name -> tensor of the backbone.
        heads: name -> tensor of the heads.
    """

    format: str
    tensors: Mapping[str, Tensor]
    heads: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Change:
    """Difference between two tensors a and b of the same name and shape.

    Attributes:
        largest: largest |a - b|; infinite if a value is infinite or NaN in only one of them.
        relative: `largest` divided by the largest |a|; 0 / 0 counts as 0.
    """

    name: str
    largest: float
    relative: float
    dtypes: tuple[str, str]


@dataclasses.dataclass(frozen=True)
class Diff:
    """Differences between two files; BatchNorm counters do not count, since evaluation does not use them.

    Attributes:
        equal: names of tensors that are equal bit for bit up to the sign of zero.
        changed: tensors of equal shape with other values or another dtype, the largest relative difference first.
        reshaped: name -> the two shapes, if they differ.
        counters: number of BatchNorm counters that differ or are in one file only.
        heads_only: 'A' or 'B' if only that file has heads, which are then not compared; else ''.
    """

    formats: tuple[str, str]
    equal: tuple[str, ...]
    changed: tuple[Change, ...]
    reshaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    counters: int
    heads_only: str

    @property
    def same(self) -> bool:
        """Equality of everything that evaluation uses."""
        return not (self.changed or self.reshaped or self.only_a or self.only_b)


def read_side(path: Path, *, format: str | None = None, raw: bool = False, trust_pickle: bool = False) -> Side:
    """Return the tensors of a file: those of its backbone and heads, or with `raw` all under the names in it."""
    file = files.read(path, trust_pickle=trust_pickle)
    if raw:
        return raw_side(file)
    try:
        return recognised_side(recognise(file, format=format))
    except WeightsError as error:
        remedy = f"{error.remedy}\n" if error.remedy else ""
        raise WeightsError(error.message, f"{remedy}--raw compares the key names in the files.") from error


def recognised_side(found: Recognised) -> Side:
    """Return the recognised tensors of a file for `compare`."""
    return Side(found.format, found.canonical, found.heads)


def raw_side(file: WeightsFile) -> Side:
    """Return all tensors of a file under their dotted paths in it, e.g. 'state_dict.fc.bias'."""
    return Side(RAW, _everything(file.content, "", set()))


def compare(a: Side, b: Side) -> Diff:
    """Compare all tensors of two files; heads only if both files have some.

    >>> a = Side("torchvision", {"fc.bias": torch.tensor([1.0, 2.0])})
    >>> b = Side("torchvision", {"fc.bias": torch.tensor([1.0, 2.5])})
    >>> compare(a, b).changed[0].largest
    0.5
    """
    both_have_heads = bool(a.heads) and bool(b.heads)
    left, right = dict(a.tensors), dict(b.tensors)
    if both_have_heads:
        left, right = {**left, **a.heads}, {**right, **b.heads}
    counters = sum(
        _is_counter(name) and not (name in left and name in right and torch.equal(left[name], right[name]))
        for name in left.keys() | right.keys()
    )
    left, right = ({name: t for name, t in tensors.items() if not _is_counter(name)} for tensors in (left, right))
    shared = [name for name in left if name in right]
    alike = [name for name in shared if left[name].shape == right[name].shape]
    changes = {name: change for name in alike if (change := _change(name, left[name], right[name])) is not None}
    return Diff(
        formats=(a.format, b.format),
        equal=tuple(name for name in alike if name not in changes),
        changed=tuple(sorted(changes.values(), key=lambda change: -change.relative)),
        reshaped={n: (tuple(left[n].shape), tuple(right[n].shape)) for n in shared if n not in set(alike)},
        only_a=tuple(name for name in left if name not in right),
        only_b=tuple(name for name in right if name not in left),
        counters=counters,
        heads_only="" if both_have_heads or bool(a.heads) == bool(b.heads) else ("A" if a.heads else "B"),
    )


def _everything(content: Mapping[str, Any], where: str, seen: set[int]) -> dict[str, Tensor]:
    # A pickle may hold one dict at several keys, or inside itself.
    seen.add(id(content))
    found = {where + name: tensor for name, tensor in tensors_at(content, "").items()}
    for key, value in content.items():
        if isinstance(value, Mapping) and id(value) not in seen:
            found |= _everything(value, f"{where}{key}.", seen)
    return found


def _is_counter(name: str) -> bool:
    return name.rpartition(".")[2] == OPTIONAL_LEAF


def _change(name: str, a: Tensor, b: Tensor) -> Change | None:
    dtypes = (str(a.dtype).removeprefix("torch."), str(b.dtype).removeprefix("torch."))
    if a.dtype == b.dtype and torch.equal(a, b):
        return None
    kind = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    # Differences in float16 overflow, and those of unsigned integers wrap around.
    left, right = a.to(kind), b.to(kind)
    other = ~((left == right) | (left.isnan() & right.isnan()))
    if a.dtype == b.dtype and not other.any():
        return None  # NaN in the same places
    # Without the equal values: inf - inf would be NaN.
    gaps = (left[other] - right[other]).abs()
    largest = gaps.nan_to_num(nan=float("inf")).max().item() if gaps.numel() else 0.0
    size = left.abs().nan_to_num(nan=0.0).max().item() if left.numel() else 0.0
    relative = 0.0 if largest == 0 else (largest / size if size else float("inf"))
    return Change(name, largest, relative, dtypes)
