"""Filling a module with tensors: strictly, all or nothing, with a report of what was done."""

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sslbench.errors import WeightsError
from sslbench.weights.diagnosis import likely_cause
from sslbench.weights.recognise import OPTIONAL_LEAF


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """What filling a module did.

    Attributes:
        loaded: tensors of the module that were filled.
        total: tensors of the module that should have been (BatchNorm counters that the file lacks are not counted).
        parameters_loaded_fraction: of the numbers in the module's parameters, 0 to 1.
        missing: names in the module that the file lacks; empty unless partial.
        unexpected: names in the file that the module lacks; empty unless partial.
        mismatched: names whose shape or kind differs; empty unless partial.
        ignored: what of the file is no backbone, for instance 'fc.*'.
        format: whose key names the file has.
        partial: something was missing, unexpected or mismatched, and that was allowed.
        counters_missing: BatchNorm counters (num_batches_tracked) that the file lacks; evaluation does not use them.
        casts: conversions of dtype, for instance '161 float16 to float32'.
        what: the file or weights, for messages.
        network: which of several copies of the backbone the file's format was asked for, and which others there are.
        note: what the format's table says that users of the weights should know.
    """

    loaded: int
    total: int
    parameters_loaded_fraction: float
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]
    ignored: tuple[str, ...]
    format: str
    partial: bool
    counters_missing: int = 0
    casts: tuple[str, ...] = ()
    what: str = ""
    network: str = ""
    note: str = ""

    def line(self) -> str:
        """One line for a person: 'loaded 318 of 318 backbone tensors (100.0 % of parameters), format moco; ...'."""
        text = f"loaded {self.loaded} of {self.total} backbone tensors "
        text += f"({_floor_percent(self.parameters_loaded_fraction)} % of parameters)"
        text += f", format {self.format}" if self.format else ""
        text += f" ({self.network})" if self.network else ""
        text += f"; ignored: {', '.join(self.ignored)}" if self.ignored else ""
        text += f"; converted: {', '.join(self.casts)}" if self.casts else ""
        if self.counters_missing:
            text += (
                f"; {self.counters_missing} {OPTIONAL_LEAF} counters are not in the file (evaluation does not use them)"
            )
        if self.partial:
            counts = [(len(self.missing), "missing"), (len(self.unexpected), "unexpected")]
            counts += [(len(self.mismatched), "of another shape")]
            text += "; PARTIAL: " + ", ".join(f"{count} {word}" for count, word in counts if count)
        text += f"; note: {self.note}" if self.note else ""
        return text


def fill(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    *,
    what: str,
    allow_partial: bool = False,
    format: str = "",
    network: str = "",
    ignored: Sequence[str] = (),
) -> LoadReport:
    """Copy tensors into a module's parameters and buffers; all names and shapes must fit. On refusal nothing changes.

    Args:
        module: the backbone.
        tensors: its names -> tensors; floating point is cast to the module's dtype, which is reported.
        what: what to call the weights in messages, for instance the file's path.
        allow_partial: fill what fits although something is missing, unexpected or of another shape.
        format: for the report.
        network: for the report.
        ignored: for the report: what of the file was left out on purpose.

    Raises:
        WeightsError: something does not fit (and need not), nothing fits at all, or a value is NaN or infinite.
    """
    targets = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    absent = [name for name in targets if name not in tensors]
    counters = [name for name in absent if name.rpartition(".")[2] == OPTIONAL_LEAF]
    missing = tuple(name for name in absent if name not in set(counters))
    unexpected = tuple(name for name in tensors if name not in targets)
    mismatched = tuple(n for n in targets if n in tensors and not _fits(tensors[n], targets[n]))
    matching = [name for name in targets if name in tensors and name not in set(mismatched)]
    wrong = bool(missing or unexpected or mismatched)
    if wrong and not (allow_partial and _any_parameter(module, matching)):
        raise _refusal(targets, tensors, (missing, unexpected, mismatched), what)
    _refuse_not_finite({name: tensors[name] for name in matching}, what)
    with torch.no_grad():
        for name in matching:
            targets[name].copy_(tensors[name].reshape(targets[name].shape))  # (1,) into ()
    return LoadReport(
        loaded=len(matching),
        total=len(targets) - len(counters),
        parameters_loaded_fraction=_fraction(module, set(matching)),
        missing=missing,
        unexpected=unexpected,
        mismatched=mismatched,
        ignored=tuple(ignored),
        format=format,
        partial=wrong,
        counters_missing=len(counters),
        casts=_casts(targets, tensors, matching),
        what=what,
        network=network,
    )


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Hash of names, dtypes, shapes and values, 64 hex digits: the same whatever the file format and the order of keys.

    BatchNorm counters are left out: some formats do not keep them, and they change nothing in evaluation.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        if name.rpartition(".")[2] == OPTIONAL_LEAF:
            continue
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fits(tensor: Tensor, target: Tensor) -> bool:
    """Same shape and the same kind of number: a whole one, a real one, true or false."""
    same_kind = tensor.layout == target.layout and _number_kind(tensor) == _number_kind(target)
    same_shape = tensor.shape == target.shape or (
        # One number is saved as () or (1,), depending on torch's age.
        tensor.numel() == target.numel() == 1 and tensor.ndim + target.ndim == 1
    )
    return same_kind and same_shape


def _number_kind(tensor: Tensor) -> str:
    if tensor.is_floating_point():
        return "real"
    if tensor.is_complex() or tensor.is_quantized or tensor.dtype == torch.bool:
        return str(tensor.dtype)
    return "whole"


def _any_parameter(module: nn.Module, names: list[str]) -> bool:
    parameters = dict(module.named_parameters())
    return any(name in parameters for name in names)


def _fraction(module: nn.Module, filled: set[str]) -> float:
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters(remove_duplicate=False)}
    total = sum(sizes.values())
    return sum(size for name, size in sizes.items() if name in filled) / total if total else 1.0


def _floor_percent(fraction: float) -> str:
    """'100.0' only when it is all of them."""
    return f"{int(fraction * 1000) / 10:.1f}"


def _casts(targets: Mapping[str, Tensor], tensors: Mapping[str, Tensor], names: list[str]) -> tuple[str, ...]:
    kinds = Counter((tensors[n].dtype, targets[n].dtype) for n in names if tensors[n].dtype != targets[n].dtype)
    return tuple(f"{count} {str(a)[6:]} to {str(b)[6:]}" for (a, b), count in kinds.items())


def _refuse_not_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    bad = [name for name, tensor in tensors.items() if tensor.is_floating_point() and not _is_finite(tensor)]
    if bad:
        kinds = " and ".join(
            kind
            for kind, test in (("NaN", torch.isnan), ("infinite", torch.isinf))
            if any(bool(test(tensors[name]).any()) for name in bad)
        )
        raise WeightsError(
            f"{what}: {len(bad)} tensors have {kinds} values: {_some(bad)}",
            "The training diverged or the file is damaged; use an earlier checkpoint.",
        )


def _is_finite(tensor: Tensor) -> bool:
    # NaN and infinities survive the sum, which is one pass without a temporary; a finite tensor whose sum overflows is
    # looked at value by value.
    return bool(torch.isfinite(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _refusal(
    targets: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    wrong: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    what: str,
) -> WeightsError:
    missing, unexpected, mismatched = wrong
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(targets)} tensors missing: {_some(missing)}")
    if unexpected:
        parts.append(f"{len(unexpected)} unexpected: {_some(unexpected)}")
    if mismatched:
        pairs = [f"'{n}' {_kind(tensors[n], targets[n])}" for n in mismatched[:3]]
        more = f" and {len(mismatched) - 3} more" if len(mismatched) > 3 else ""
        parts.append(f"{len(mismatched)} of another shape: {', '.join(pairs)}{more}")
    cause = likely_cause(
        {name: tuple(t.shape) for name, t in tensors.items()},
        {name: tuple(t.shape) for name, t in targets.items()},
        missing=missing,
        unexpected=unexpected,
    )
    return WeightsError(
        f"{what} does not fit the backbone: {'; '.join(parts)}" + (f". {cause}" if cause else ""),
        "Give the right --format or --backbone; --allow-partial uses what fits, and marks every result."
        if any(name in tensors and name not in mismatched for name in targets)
        else "Nothing fits: give the right --format or --backbone.",
    )


def _kind(tensor: Tensor, target: Tensor) -> str:
    if tensor.shape != target.shape:
        return f"{tuple(tensor.shape)} in the file, {tuple(target.shape)} in the backbone"
    return f"{str(tensor.dtype)[6:]} in the file, {str(target.dtype)[6:]} in the backbone"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more
