"""Many heads trained at once: linear heads that see the same input are one matrix product, others share its tokens.

The heads do not influence each other. Each has parameters of its own, those of linear heads views of one tensor per
bank, so that any optimizer treats it as if it were alone.

Shapes: B images, N tokens, D features, H heads of a bank, C classes.
"""

import copy
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  torch's customary name
from torch import Tensor, nn

from sslbench.arrays import IntArray
from sslbench.backbones.attention import Attention
from sslbench.backbones.classifier import ClassifierHead, HeadNorm, linear_classifier
from sslbench.distributed.collectives import sum_
from sslbench.runtime.seeds import seeded
from sslbench.train.optimizers.optimizer import OptimizerSettings, scaled_lr
from sslbench.train.parameter_groups import GroupRates, group, norm_parameters

Norm = Literal["none", "batch", "affine"]
Init = Literal["normal", "zeros", "uniform"]

_STD = 0.01
_MOMENTUM = 0.1  # momentum of the running statistics, torch's default


@dataclasses.dataclass(frozen=True)
class Head:
    """Training settings of one head of a bank.

    Attributes:
        lr: learning rate at the batch size that the rates are meant for.
    """

    lr: float
    weight_decay: float = 0.0


def first_weights(
    init: Init, classes: int, width: int, *, seed: int, order: IntArray | None = None
) -> tuple[Tensor, Tensor]:
    """Return the weights (C, D) and biases (C,) that a linear layer begins with; they depend on shape and seed alone.

    `order`: (C,) class numbers in the order in which they get their weights; None: ascending.
    """
    generator = torch.Generator().manual_seed(seed)
    weight, bias = torch.zeros(classes, width), torch.zeros(classes)
    if init == "uniform":  # as nn.Linear initialises
        bound = 1 / math.sqrt(width)
        values = torch.rand((classes, width + 1), generator=generator) * 2 * bound - bound
        weight, bias = values[:, :-1], values[:, -1]
    elif init == "normal":
        weight = _STD * torch.randn((classes, width), generator=generator)
    if order is not None:
        place = torch.from_numpy(np.argsort(order))
        weight, bias = weight[place], bias[place]
    return weight, bias


class Bank(nn.Module):
    """Heads with one input and one kind of normalisation, which they share.

    Attributes:
        input: name of the input.
        heads: rates of each head.
        norm: 'none'; 'batch': BatchNorm without parameters; 'affine': BatchNorm with a scale and a shift per channel.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, input: str, heads: Sequence[Head], *, channels: int, norm: Norm, eps: float) -> None:
        super().__init__()
        self.input, self.heads, self.channels, self.norm, self._eps = input, tuple(heads), channels, norm, eps
        if norm != "none":
            self.register_buffer("running_mean", torch.zeros(channels))
            self.register_buffer("running_var", torch.ones(channels))

    def own_parameters(self, h: int) -> dict[str, nn.Parameter]:
        """Return the parameters of a head by name; those that are part of a bank's tensor share its memory."""
        raise NotImplementedError

    def classifier(self, h: int) -> ClassifierHead:
        """Return a trained head as a classifier of its own, on the CPU."""
        raise NotImplementedError

    def undecayed(self, settings: OptimizerSettings) -> set[str]:
        """Return the names of a head's parameters that have no weight decay."""
        raise NotImplementedError

    def standardised(self, maps: Tensor, total: int | None) -> Tensor:
        """Return values (B, channels, P) after BatchNorm without parameters; `total` as for `forward`."""
        mean, variance = self.running_mean, self.running_var
        if total is not None:
            n = total * maps.shape[2]
            mean = sum_(maps.sum((0, 2))) / n
            variance = sum_((maps - mean[:, None]).square().sum((0, 2))) / n
            self.running_mean.lerp_(mean, _MOMENTUM)
            # As in torch's BatchNorm, the running variance is the unbiased one, and that of the batch is not.
            self.running_var.lerp_(variance * (n / (n - 1)), _MOMENTUM)
        return (maps - mean[:, None]) * (variance + self._eps).rsqrt()[:, None]


class LinearBank(Bank):
    """Linear heads: (B, D) -> (B, H, C)."""

    def __init__(  # noqa: PLR0913  each is a fact of its own
        self,
        input: str,
        heads: Sequence[Head],
        *,
        widths: tuple[int, int],
        classes: int,
        norm: Norm = "none",
        eps: float = 1e-5,
        init: Init = "normal",
        seed: int = 0,
        order: IntArray | None = None,
    ) -> None:
        """Build heads that all start with the same values; `order` as for `first_weights`."""
        width, channels = widths
        super().__init__(input, heads, channels=channels, norm=norm, eps=eps)
        weight, bias = first_weights(init, classes, width, seed=seed, order=order)
        # `expand` alone gives all heads one memory.
        self.weight = nn.Parameter(weight.expand(len(heads), -1, -1).clone())
        self.bias = nn.Parameter(bias.expand(len(heads), -1).clone())
        if norm == "affine":
            self.scale = nn.Parameter(torch.ones(len(heads), self.channels))
            self.shift = nn.Parameter(torch.zeros(len(heads), self.channels))

    def forward(self, x: Tensor, total: int | None = None) -> Tensor:
        """Return logits (B, H, C) of features (B, D).

        `total`: images of all processes together: statistics are those of the batch, and the running ones move; every
        process calls this. None: the running statistics are used.
        """
        weight: Tensor = self.weight
        bias: Tensor = self.bias
        if self.norm != "none":
            x = self.standardised(x.reshape(len(x), self.channels, -1), total).flatten(1)
        if self.norm == "affine":
            # Scaling a head's weights equals scaling its input, and does so for all heads at once.
            repeats = weight.shape[2] // self.channels
            bias = bias + (weight @ self.shift.repeat_interleave(repeats, dim=1)[:, :, None]).squeeze(2)
            weight = weight * self.scale.repeat_interleave(repeats, dim=1)[:, None, :]
        scores: Tensor = F.linear(x, weight.flatten(0, 1), bias.flatten())
        return scores.view(-1, *weight.shape[:2])

    def own_parameters(self, h: int) -> dict[str, nn.Parameter]:
        """Return views of the bank's tensors: what an optimizer does to them changes the bank."""
        return {name: nn.Parameter(whole.data[h]) for name, whole in self._parameters.items() if whole is not None}

    def undecayed(self, settings: OptimizerSettings) -> set[str]:
        """Return the names of biases, scales and shifts that the settings exempt."""
        plain = {"bias", "shift"} if not settings.decay_bias else set()
        return plain | ({"scale", "shift"} if not settings.decay_norm else set())

    def classifier(self, h: int) -> ClassifierHead:
        """Return a trained head with the normalisation folded into weights and biases."""
        weight, bias = self.weight[h].detach().double().cpu(), self.bias[h].detach().double().cpu()
        if self.norm != "none":
            repeats = weight.shape[1] // self.channels
            factor = (self.running_var.double().cpu() + self._eps).rsqrt()
            shift = -self.running_mean.double().cpu() * factor
            if self.norm == "affine":
                scale = self.scale[h].detach().double().cpu()
                factor, shift = factor * scale, shift * scale + self.shift[h].detach().double().cpu()
            bias = bias + weight @ shift.repeat_interleave(repeats)
            weight = weight * factor.repeat_interleave(repeats)
        return linear_classifier(weight, bias)


class AttentiveBank(Bank):
    """Heads that attend to tokens, each with queries and projections of its own: (B, N, D) -> (B, H, C)."""

    def __init__(
        self,
        input: str,
        heads: Sequence[Head],
        attention: Attention,
        *,
        width: int,
        norm: Norm = "none",
        eps: float = 1e-5,
        first: tuple[Tensor, Tensor],
        seed: int = 0,
    ) -> None:
        """Build heads that all start with the same values; `first`: weights and biases of the classes."""
        super().__init__(input, heads, channels=width, norm=norm, eps=eps)
        self.attention = attention
        with seeded(seed), torch.no_grad():
            head = ClassifierHead(width, len(first[1]), "none", attention)
            head.head.weight.copy_(first[0])
            head.head.bias.copy_(first[1])
        self.each = nn.ModuleList(copy.deepcopy(head) for _ in heads)

    def forward(self, x: Tensor, total: int | None = None) -> Tensor:
        """Return logits (B, H, C) of tokens (B, N, D); `total` as for linear heads."""
        if self.norm != "none":
            # Once, for all heads.
            x = self.standardised(x.transpose(1, 2), total).transpose(1, 2).contiguous()
        return torch.stack([head(x) for head in self.each], dim=1)

    def own_parameters(self, h: int) -> dict[str, nn.Parameter]:
        """Return the head's parameters themselves."""
        return dict(self.each[h].named_parameters())

    def undecayed(self, settings: OptimizerSettings) -> set[str]:
        """Return the names of parameters that the settings exempt, by the rules of other networks."""
        norms = norm_parameters(self.each[0])
        return {
            name
            for name, _ in self.each[0].named_parameters()
            if (name in norms and not settings.decay_norm) or (name.endswith("bias") and not settings.decay_bias)
        }

    def classifier(self, h: int) -> ClassifierHead:
        """Return a trained head, after BatchNorm of the tokens with the running statistics."""
        tensors = dict(self.each[h].state_dict())
        norm: HeadNorm = "none" if self.norm == "none" else "batch"
        found = ClassifierHead(self.channels, len(tensors["head.bias"]), norm, self.attention)
        if isinstance(found.norm, nn.BatchNorm1d):
            tensors |= {f"norm.{name}": value for name, value in found.norm.state_dict().items()}
            tensors["norm.running_mean"] = self.running_mean
            # torch's BatchNorm adds its own epsilon.
            tensors["norm.running_var"] = self.running_var + (self._eps - found.norm.eps)
        found.load_state_dict(tensors)
        return found.eval().requires_grad_(False)


class Heads(nn.Module):
    """All banks of a run, with parameter groups per head for the optimizer."""

    def __init__(self, banks: Sequence[Bank]) -> None:
        super().__init__()
        self.banks = nn.ModuleList(banks)
        self._views: list[tuple[nn.Parameter, int, nn.Parameter]] = []

    def all_heads(self) -> list[tuple[Bank, int, Head]]:
        """Return every head with its bank and its number there, in the order of `losses`."""
        return [(bank, h, head) for bank in self.all_banks() for h, head in enumerate(bank.heads)]

    def losses(self, features: Mapping[str, Tensor], labels: Tensor, total: int) -> Tensor:
        """Return (H of all banks,) this process's part of each head's mean loss; the sum over processes is the loss.

        `features`: name of an input -> (B, D), or (B, N, D) of heads that attend; `labels`: int64 (B,) classes, or int8
        (B, C) with 1 present, 0 absent, -1 ignore.
        """
        labelled = sum_((labels >= 0).sum(0)) if labels.ndim == 2 else None
        return torch.cat(
            [head_losses(bank(features[bank.input], total), labels, total, labelled) for bank in self.all_banks()]
        )

    def groups(self, settings: OptimizerSettings, batch_size: int) -> list[dict[str, Any]]:
        """Return parameter groups for `make_optimizer`: one or two per head, with its rate and decay.

        The rates are in `lr_factor`: the optimizer's own rate is the factor of the schedule.
        """
        self._views = []
        groups = []
        for bank, h, head in self.all_heads():
            rate = scaled_lr(dataclasses.replace(settings, lr=head.lr), batch_size)
            own = bank.own_parameters(h)
            # Views get their part of the gradient of the bank's tensor.
            wholes = {name: whole for name, whole in bank._parameters.items() if whole is not None}
            self._views += [(whole, h, own[name]) for name, whole in wholes.items()]
            plain = bank.undecayed(settings)
            for decayed in (True, False):
                named = {name: parameter for name, parameter in own.items() if (name not in plain) == decayed}
                if named:
                    rates = GroupRates(decayed=decayed, own_weight_decay=head.weight_decay, lr_factor=rate)
                    groups.append(group(named, rates))
        return groups

    def share_gradients(self) -> None:
        """Sum gradients over processes after the backward pass and give each head its own."""
        for parameter in self.parameters():
            if parameter.grad is not None:
                sum_(parameter.grad)
        for whole, h, own in self._views:
            own.grad = None if whole.grad is None else whole.grad[h]

    def finite(self) -> list[bool]:
        """Return a mask of the heads whose parameters are finite."""
        return [
            all(bool(torch.isfinite(parameter).all()) for parameter in bank.own_parameters(h).values())
            for bank, h, _ in self.all_heads()
        ]

    def all_banks(self) -> Sequence[Bank]:
        """Return the banks in order."""
        return [bank for bank in self.banks if isinstance(bank, Bank)]


def head_losses(logits: Tensor, labels: Tensor, total: int, labelled: Tensor | None) -> Tensor:
    """Return (H,) cross-entropy; for several labels binary cross-entropy, mean over known labels, sum over classes.

    The latter is VISSL's (`bce_logits_multiple_output_single_target`): each class is a problem of its own, to which
    further classes make no difference.

    `logits`: (B, H, C); `labels`: int64 (B,), or int8 (B, C) with 1 present, 0 absent, -1 ignore; `labelled`: (C,), the
    number of those images whose label is known; None for one label per image.
    """
    heads = logits.shape[1]
    if labelled is None:
        targets = labels[:, None].expand(-1, heads).reshape(-1)
        return F.cross_entropy(logits.flatten(0, 1), targets, reduction="none").view(-1, heads).sum(0) / total
    targets = labels.clamp(min=0).to(logits.dtype)[:, None, :].expand_as(logits)
    each = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    return ((each * (labels >= 0)[:, None, :]).sum(0) / labelled.clamp(min=1)).sum(1)
