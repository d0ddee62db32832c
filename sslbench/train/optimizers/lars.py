"""SGD with layer-wise adaptive rates: LARS (You et al. 2017, arXiv 1708.03888).

The rate of a tensor is `trust_coefficient * |p| / |g|`, so each tensor moves by about the same fraction of its norm.
Differences between the published implementations are options here; `momentum_buffer` and the update are those of
torch's SGD.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from sslbench.train.optimizers.optimizer import OptimizerKind

Denominator = Literal["joint", "separate"]
_CACHE_ELEMENTS = 2**16


class LARS(torch.optim.Optimizer):
    """SGD with layer-wise adaptive rates; gradients are not modified, and the device is never synchronised.

    With g the gradient, p the parameter and wd the weight decay, one step is

        d = scale * (g + wd * p);   buffer = momentum * buffer + d;   p = p - lr * buffer

    `joint`: scale is `trust_coefficient * |p| / |g + wd * p|`, or 1 where a norm is 0 (VISSL, Barlow Twins, DINO).
    `separate`: scale is `trust_coefficient * |p| / (|g| + wd * |p| + eps)`, the paper's equation 6 (solo-learn, LARC).
    With `separate`, where |p| or |g| is 0, d is the gradient without weight decay: a bias initialised to zero moves by
    its raw gradient until it is no longer zero. Both are as published; `exclude_1d` avoids it.

    VISSL's LARS is the default, with or without `exclude_1d`; DINO's and Barlow Twins' is `exclude_1d=True,
    decay_1d=False`; solo-learn's is `denominator="separate", decay_1d=False`, with or without `exclude_1d`.

    >>> p = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> p.grad = torch.tensor([0.0, 2.0])
    >>> LARS([p], lr=1.0, momentum=0.0, trust_coefficient=0.1).step()
    >>> [round(x, 4) for x in p.tolist()]  # |p| = 5, |g| = 2: the step is 0.1 * 5 / 2 * g
    [3.0, 3.5]
    """

    def __init__(  # noqa: PLR0913  the options of an optimizer are its arguments, as torch's are
        self,
        params: ParamsT,
        lr: float,
        *,
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        denominator: Denominator = "joint",
        eps: float = 1e-8,
        clip: bool = False,
        exclude_1d: bool = False,
        decay_1d: bool = True,
    ) -> None:
        """Set the default options; each can be overridden per parameter group.

        Args:
            params: parameters or parameter groups, as for every torch optimizer.
            lr: learning rate.
            momentum: factor of the momentum buffer; 0 keeps no buffer.
            nesterov: use Nesterov momentum.
            weight_decay: wd above.
            trust_coefficient: eta in the papers.
            denominator: denominator of the scale, see above.
            eps: added to the denominator of 'separate'.
            clip: limit the scaled rate to lr: scale becomes `min(scale / lr, 1)` (LARC's clipping mode).
            exclude_1d: use scale 1 for tensors of at most one dimension (biases, normalisation).
            decay_1d: apply weight decay to the excluded tensors too.
        """
        if lr < 0 or momentum < 0 or weight_decay < 0 or trust_coefficient <= 0:
            raise ValueError("lr, momentum and weight_decay must be at least 0, trust_coefficient above 0")
        if nesterov and momentum == 0:
            raise ValueError("nesterov needs momentum above 0")
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient, "denominator": denominator, "eps": eps, "clip": clip,
            "exclude_1d": exclude_1d, "decay_1d": decay_1d,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parts = []
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            excluded = [group["exclude_1d"] and p.dim() <= 1 for p in params]
            for scaled in (True, False):
                alike = [p for p, out in zip(params, excluded, strict=True) if out is not scaled]
                parts += [_Part(group, alike, scaled)] if alike else []
        for batch in _batches(parts):
            adapted = [part for part in batch if part.adapted]
            if adapted:
                _find_scales(adapted)
            for part in batch:
                self._descend(part)
        return loss

    def _descend(self, part: "_Part") -> None:
        """Apply momentum and the step to the parameters of a part."""
        group, params, d = part.group, part.params, part.d
        momentum = group["momentum"]
        if part.scales and (momentum == 0 or group["nesterov"]):
            # The scales are tensors of no dimension, so they stay on the device.
            d = list(torch._foreach_mul(d, part.scales))
        if momentum != 0:
            for p in params:
                if "momentum_buffer" not in self.state[p]:
                    self.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            buffers = [self.state[p]["momentum_buffer"] for p in params]
            torch._foreach_mul_(buffers, momentum)
            if part.scales and not group["nesterov"]:
                torch._foreach_addcmul_(buffers, d, part.scales)
            else:
                torch._foreach_add_(buffers, d)
            d = list(torch._foreach_add(d, buffers, alpha=momentum)) if group["nesterov"] else buffers
        torch._foreach_add_(params, d, alpha=-group["lr"])


class _Part:
    """Parameters of one group with the same treatment: layer-wise scales or not, and the same weight decay."""

    def __init__(self, group: dict[str, Any], params: list[Tensor], adapted: bool) -> None:
        self.group, self.params, self.adapted = group, params, adapted
        self.weight_decay: float = group["weight_decay"] if adapted or group["decay_1d"] else 0.0
        self.joint = group["denominator"] == "joint"
        self.scales: list[Tensor] = []

    @functools.cached_property
    def gradients(self) -> list[Tensor]:
        return [p.grad for p in self.params if p.grad is not None]

    @functools.cached_property
    def d(self) -> list[Tensor]:
        if self.weight_decay == 0:
            return self.gradients
        return list(torch._foreach_add(self.gradients, self.params, alpha=self.weight_decay))


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Yield parts to process together: all of them on an accelerator, as many as fit into the cache on a CPU."""
    together = []
    for part in parts:
        # On a GPU all parameters together: fewer kernels; on a processor as many as its cache holds.
        if part.params[0].device.type != "cpu":
            together.append(part)
            continue
        size, begin = 0, 0
        for i, p in enumerate(part.params):
            size += p.numel()
            if size >= _CACHE_ELEMENTS or i == len(part.params) - 1:
                yield [_Part(part.group, part.params[begin : i + 1], part.adapted)]
                size, begin = 0, i + 1
    if together:
        yield together


def _find_scales(parts: Sequence[_Part]) -> None:
    """Compute the scales of all tensors; the norms come from one call and stay on the device."""
    lengths = [p for part in parts for p in part.params]
    divisors = [g for part in parts for g in (part.d if part.joint else part.gradients)]
    norms = torch.stack(torch._foreach_norm(lengths + divisors))
    begin = 0
    for part in parts:
        end = begin + len(part.params)
        of_params, of_divisors = norms[begin:end], norms[len(lengths) + begin : len(lengths) + end]
        begin, group = end, part.group
        divisor = of_divisors if part.joint else of_divisors + part.weight_decay * of_params + group["eps"]
        scale = group["trust_coefficient"] * of_params / divisor
        if group["clip"]:
            scale = (scale / group["lr"]).clamp(max=1) if group["lr"] > 0 else torch.ones_like(scale)
        scale = torch.where((of_params == 0) | (of_divisors == 0), 1.0, scale)
        if not part.joint:
            # d is the weight decay alone where |g| is 0, and the gradient itself where |p| is 0.
            scale = torch.where(of_divisors == 0, 0.0, scale)
        part.scales = list(scale.unbind())


OPTIMIZER = OptimizerKind(
    LARS,
    uses={
        **{name: name for name in ("momentum", "nesterov", "trust_coefficient")},
        "exclude_norm_and_bias": "exclude_1d",
    },
)
