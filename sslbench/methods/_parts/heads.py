"""Heads of supervised training: networks on layers of the backbone, losses of torch by name, targets from columns."""

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sslbench.config import setting
from sslbench.distributed.collectives import sum_, world_size
from sslbench.errors import DataError, UsageError
from sslbench.methods._parts.losses import in_float32
from sslbench.names import did_you_mean
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

LOSSES: Mapping[str, type[Target]] = {
    nn.CrossEntropyLoss.__name__: Classes,
    nn.MultiMarginLoss.__name__: Classes,
    nn.BCEWithLogitsLoss.__name__: MultiLabel,
    nn.MSELoss.__name__: Numbers,
    nn.L1Loss.__name__: Numbers,
    nn.SmoothL1Loss.__name__: Numbers,
    nn.HuberLoss.__name__: Numbers,
}
"""Losses of torch.nn on outputs of a linear layer, and the kind of targets that each takes."""


@dataclasses.dataclass(frozen=True)
class Head:
    """Settings of one of several heads."""

    layer: str = setting("", "layer of the backbone with its pool, as in --layers (layer3, res4:max); '': the output")
    target: str = setting("", "column of a table with labels or, by the loss, numbers; '': the labels of the data")
    weight: float = setting(1.0, "factor of its loss", within="(0, inf)")
    hidden: tuple[int, ...] = setting((), "widths of hidden layers", within="[1, inf)")
    norm: Literal["none", "batch", "layer"] = setting("none", "norm behind each hidden layer", needs="hidden")
    relu: bool = setting(True, "ReLU behind each hidden layer", needs="hidden")
    dropout: float = setting(
        0.0, "share of values that is dropped behind each hidden layer", within="[0, 1)", needs="hidden"
    )
    bias: bool = setting(True, "linear layers have a bias")
    loss: str = setting("", f"loss of torch: {', '.join(LOSSES)}; '': as without heads")
    loss_options: dict[str, Any] | None = setting(
        None, "arguments of the loss by name, {label_smoothing: 0.1}", needs="loss"
    )

    @property
    def name(self) -> str:
        """Name in the log, `colour@layer3`."""
        return (self.target or "labels") + (f"@{self.layer}" if self.layer else "")

    def network(self, width: int, outputs: int) -> nn.Module:
        """Return the layers of the head: (B, width) -> (B, outputs)."""
        if not self.hidden:
            return nn.Linear(width, outputs, bias=self.bias)
        layers: list[nn.Module] = []
        for inside, outside in itertools.pairwise((width, *self.hidden)):
            layers.append(nn.Linear(inside, outside, bias=self.bias))
            layers += (
                [] if self.norm == "none" else [{"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[self.norm](outside)]
            )
            layers += [nn.ReLU()] if self.relu else []
            layers += [nn.Dropout(self.dropout)] if self.dropout else []
        return nn.Sequential(*layers, nn.Linear(self.hidden[-1], outputs, bias=self.bias))


def find_loss(name: str, options: Mapping[str, Any] | None) -> type[nn.Module]:
    """Return the class of a loss; refuse names and arguments that it does not have."""
    if name not in LOSSES:
        raise UsageError(f"supervised: there is no loss '{name}' for heads", did_you_mean(name, LOSSES))
    found: type[nn.Module] = getattr(nn, name)
    # Reduction and its former names: the mean over the known targets is taken here.
    known = set(inspect.signature(found).parameters) - {"size_average", "reduce", "reduction", "ignore_index"}
    for key in options or {}:
        if key == "ignore_index":
            raise UsageError(
                f"supervised: the argument '{key}' of losses is not taken",
                "Leave it out: unknown labels are -1 or empty cells, and are left out of the mean.",
            )
        if key not in known:
            raise UsageError(f"supervised: {name} has no argument '{key}'", did_you_mean(key, known))
    return found


class TorchLoss(nn.Module):
    """Mean of a loss of torch over the known targets of all processes.

    >>> loss = TorchLoss("CrossEntropyLoss", None, 4)
    >>> round(float(loss(torch.zeros(3, 4), torch.tensor([1, 3, -1]))), 4)  # log(4); -1 is ignored
    1.3863
    >>> float(TorchLoss("MSELoss", None, 1)(torch.zeros(3, 1), torch.tensor([1.0, 3.0, float("nan")])))
    5.0

    Args:
        name: class in torch.nn.
        options: its arguments; lists become tensors.
        outputs: width of the head, 1 for numbers.
    """

    def __init__(self, name: str, options: Mapping[str, Any] | None, outputs: int) -> None:
        super().__init__()
        self.kind = LOSSES[name]
        try:
            given = {
                k: torch.tensor(v, dtype=torch.float32) if isinstance(v, list | tuple) else v
                for k, v in (options or {}).items()
            }
            self.function = find_loss(name, options)(**given, reduction="none")
            empty = torch.zeros(2, dtype=torch.int64) if self.kind is Classes else torch.zeros(2, outputs).squeeze(1)
            self(torch.zeros(2, outputs), empty)
        except (TypeError, ValueError, RuntimeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise UsageError(f"supervised: {name} with {dict(options or {})} fails: {reason}") from error

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of (B, C) outputs.

        `targets`: int64 (B,), or (B, C) with the shares of the classes; (B, C) of 1, 0; float32 (B,). Those of -1, and
        numbers that are NaN, are unknown and left out.
        """
        value: Tensor = self._mean(outputs, targets)
        return value

    @in_float32
    def _mean(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if self.kind is Classes and targets.is_floating_point():  # mixed images
            shares: Tensor = self.function(outputs, targets)
            return shares.mean()
        known = ~targets.isnan() if self.kind is Numbers else targets >= 0
        filled = torch.where(known, targets, 0)
        if self.kind is not Classes:
            filled = filled.to(outputs.dtype)
        each = self.function(outputs.squeeze(1) if self.kind is Numbers else outputs, filled)
        weights = known.to(each.dtype)
        counted = weights
        # torch divides by the weights of the classes that occur.
        if isinstance(self.function, nn.CrossEntropyLoss) and self.function.weight is not None:
            counted = weights * self.function.weight[filled]
        # Over the images of all processes, so that the mean over processes is the loss of the whole batch.
        total = sum_(counted.sum()).clamp(min=torch.finfo(each.dtype).tiny) / world_size()
        mean: Tensor = (each * weights).sum() / total
        return mean


def column_target(name: str, texts: Sequence[str], kind: type[Target]) -> tuple[Tensor, int]:
    """Return the targets in a column, on the CPU, and the number of outputs that they need.

    >>> column_target("colour", ["red", "", "blue"], Classes)
    (tensor([ 1, -1,  0]), 2)
    >>> column_target("size", ["1.5", ""], Numbers)
    (tensor([1.5000,    nan]), 1)
    """
    if kind is Numbers:
        values = [_number(text) for text in texts]
        if None in values:
            row = values.index(None)
            raise DataError(
                f"the column '{name}' has no number in row {row + 1} ('{texts[row]}')",
                "Numbers are written like 1.5 or 2e3, are finite and fit float32 (up to 3.4e38); leave unknown ones "
                "empty.",
            )
        numbers = torch.tensor(values, dtype=torch.float32)
        if numbers.isnan().all():
            raise DataError(f"the column '{name}' has no number", "Name another column as target, or fill its cells.")
        return numbers, 1
    classes = {text: number for number, text in enumerate(sorted({*texts} - {""}))}
    if len(classes) < 2:
        raise DataError(f"the column '{name}' has {len(classes)} classes; a head needs at least two")
    return torch.tensor([classes.get(text, -1) for text in texts]), len(classes)


def _number(text: str) -> float | None:
    """Return the number of a cell, NaN if it is empty; None if it has none that float32 holds."""
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    # Python also reads 1_000, which other programs that read tables do not.
    return None if "_" in text or abs(value) > torch.finfo(torch.float32).max else value
