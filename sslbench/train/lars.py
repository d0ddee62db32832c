"""SGD with a rate of its own for every tensor: LARS (You et al. 2017, arXiv 1708.03888) and LARC.

The rate is `trust_coefficient * |p| / |g|`, so that each tensor moves by about the same part of its length. What the
published implementations disagree about is an option here; `momentum_buffer` and the update are those of torch's SGD.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

Denominator = Literal["joint", "separate"]
_CACHED = 2**16  # elements


class LARS(torch.optim.Optimizer):
    """Layer-wise adaptive rates; gradients stay as they are, and nothing waits for the device.

    With g the gradient, p the parameter and wd the weight decay, one step is

        d = scale * (g + wd * p);   buffer = momentum * buffer + d;   p = p - lr * buffer

    `joint`: scale is `trust_coefficient * |p| / |g + wd * p|`, or 1 where a norm is 0 (VISSL, Barlow Twins, DINO).
    `separate`: scale is `trust_coefficient * |p| / (|g| + wd * |p| + eps)`, the paper's equation 6 (solo-learn, LARC).
    There, where |p| or |g| is 0, the gradient itself is taken, without weight decay: a bias that begins at zero moves
    by its raw gradient until it is no longer zero. Both are as published; `exclude_1d` avoids it.

    VISSL's LARS is the default with `exclude_1d` as asked for; DINO's and Barlow Twins' has `exclude_1d=True,
    decay_1d=False`; solo-learn's `denominator="separate", decay_1d=False` and `exclude_1d` as asked for.
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
        """Every option can also be given per parameter group.

        Args:
            params: as for every torch optimizer.
            lr: learning rate.
            momentum: 0 keeps no buffer.
            nesterov: look ahead by one step of momentum.
            weight_decay: wd above.
            trust_coefficient: eta in the papers.
            denominator: what |p| is divided by, see above.
            eps: for 'separate'.
            clip: the scaled rate is at most lr: scale becomes `min(scale / lr, 1)` (LARC's clipping mode).
            exclude_1d: tensors of at most one dimension (biases, normalisation) keep scale 1.
            decay_1d: whether those that are excluded get weight decay.
        """
        if lr < 0 or momentum < 0 or weight_decay < 0 or trust_coefficient <= 0:
            raise ValueError("lr, momentum and weight_decay have to be 0 or more, trust_coefficient above 0")
        if nesterov and momentum == 0:
            raise ValueError("nesterov needs a momentum")
        defaults = {
            "lr": lr, "momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient, "denominator": denominator, "eps": eps, "clip": clip,
            "exclude_1d": exclude_1d, "decay_1d": decay_1d,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parts = [part for group in self.param_groups for part in _parts(group)]
        for batch in _batches(parts):
            adapted = [part for part in batch if part.adapted]
            if adapted:
                _find_scales(adapted)
            for part in batch:
                self._descend(part)
        return loss

    def _descend(self, part: "_Part") -> None:
        """Momentum and the step."""
        group, params, d = part.group, part.params, part.d
        momentum = group["momentum"]
        if part.scales and (momentum == 0 or group["nesterov"]):
            # Tensors of no dimension: the factors stay on the device.
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


class LARC(LARS):
    """SGD with layer-wise adaptive rates as NVIDIA's apex has it: `LARS` with `denominator="separate"`."""

    def __init__(self, params: ParamsT, lr: float, **options: Any) -> None:
        """The options of `LARS`."""
        super().__init__(params, lr, **{"denominator": "separate", **options})


class _Part:
    """Parameters of one group that are treated alike: adapted or not, and moved along `d`, times a scale each."""

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


def _parts(group: dict[str, Any]) -> Iterator[_Part]:
    """The parameters of a group that have a gradient, divided into adapted ones and others."""
    params = [p for p in group["params"] if p.grad is not None]
    excluded = [group["exclude_1d"] and p.dim() <= 1 for p in params]
    for adapted in (True, False):
        chosen = [p for p, out in zip(params, excluded, strict=True) if out is not adapted]
        if chosen:
            yield _Part(group, chosen, adapted)


def _batches(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """What is worked on at once: everything on an accelerator, what fits into the cache on a CPU."""
    together = []
    for part in parts:
        if part.params[0].device.type != "cpu":
            together.append(part)
            continue
        size, begin = 0, 0
        for i, p in enumerate(part.params):
            size += p.numel()
            if size >= _CACHED or i == len(part.params) - 1:
                yield [_Part(part.group, part.params[begin : i + 1], part.adapted)]
                size, begin = 0, i + 1
    if together:
        yield together


def _find_scales(parts: Sequence[_Part]) -> None:
    """The scales of all tensors. All norms come from one call and never leave the device."""
    lengths = [p for part in parts for p in part.params]
    divisors = [g for part in parts for g in (part.d if part.joint else part.gradients)]
    norms = torch.stack(torch._foreach_norm(lengths + divisors))
    begin = 0
    for part in parts:
        end = begin + len(part.params)
        of_params, of_divisors = norms[begin:end], norms[len(lengths) + begin : len(lengths) + end]
        part.scales = list(_scales(part, of_params, of_divisors).unbind())
        begin = end


def _scales(part: _Part, of_params: Tensor, of_divisors: Tensor) -> Tensor:
    """One factor per tensor, (n,)."""
    group = part.group
    divisor = of_divisors if part.joint else of_divisors + part.weight_decay * of_params + group["eps"]
    scale = group["trust_coefficient"] * of_params / divisor
    if group["clip"]:
        scale = (scale / group["lr"]).clamp(max=1) if group["lr"] > 0 else torch.ones_like(scale)
    scale = torch.where((of_params == 0) | (of_divisors == 0), 1.0, scale)
    if not part.joint:
        # d would be the weight decay alone; where the parameter is zero, d is the gradient already.
        scale = torch.where(of_divisors == 0, 0.0, scale)
    return scale
