"""Strict loading of tensors into a module, all or nothing, with a report; tensors in timm's layout."""

import dataclasses
import hashlib
import itertools
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sslbench.errors import WeightsError
from sslbench.weights.formats.places import prefixes
from sslbench.weights.formats.recognise import OPTIONAL_LEAF

Shapes = Mapping[str, tuple[int, ...]]

_RESNETS: Mapping[tuple[tuple[int, ...], bool], str] = {
    ((2, 2, 2, 2), False): "resnet18",
    ((3, 4, 6, 3), False): "resnet34",
    ((3, 4, 6, 3), True): "resnet50",
    ((3, 4, 23, 3), True): "resnet101",
    ((3, 8, 36, 3), True): "resnet152",
}
_LAYER_SCALE = re.compile(r"(?:^|\.)(?:ls\d\.gamma|gamma(?:_?\d)?|lambda\d|layer_scale\w*(?:\.lambda1)?)$")


CLASS_POSITION = "position of the class token added to it, as timm has it"
MASKED_BIASES = "biases of queries, keys and values multiplied by their masks"
PERIODS_LEFT_OUT = "rotary periods in bfloat16 left out: timm computes them in float32"
PERIODS = "rope.periods"


def likely_cause(file: Shapes, backbone: Shapes, *, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Return one sentence on the likely cause of a mismatch; '' if none is known.

    file: canonical name -> shape of the tensors in the file.
    backbone: name -> shape of the tensors in the module.
    """
    statistics = {name for name in backbone if name.endswith((".running_mean", ".running_var"))}
    if statistics and set(missing) == statistics:
        return (
            "Its batch norm is folded into a scale and a bias, as in Detectron's Caffe2 files: use Detectron2's model "
            "zoo, whose R-50.pkl and R-101.pkl are the same networks with running statistics (--format "
            "detectron2_caffe2:msra). Or its norms are LayerNorm or GroupNorm, which tensors do not tell apart: then "
            "name the network, such as --backbone resnet50,norm=layer or resnet50,norm=group32"
        )
    if cause := _prefix(file, backbone, missing, unexpected):
        return cause
    for names, here, there in ((unexpected, "file", "backbone"), (missing, "backbone", "file")):
        if names and all(_LAYER_SCALE.search(name) for name in names):
            return f"The {here} has LayerScale, the {there} has none: the weights are of another variant of it"
    if unexpected and all(re.search(r"attn\.[qkv]_bias$", name) for name in unexpected):
        return (
            "The file has biases of queries, keys and values, the backbone has none: the same name with _qkvb has them"
        )
    weights, built = describe(file), describe(backbone)
    if weights and built and weights != built:
        return f"The weights are of {weights}, the backbone is {built}"
    return _closest_rename(file, backbone, missing, unexpected)


def describe(shapes: Shapes) -> str:
    """Describe an architecture from names and shapes: 'a resnet50', 'a ViT of 12 blocks, width 384, patch 16'.

    >>> describe({"blocks.0.attn.qkv.weight": (576, 192), "patch_embed.proj.weight": (192, 3, 16, 16)})
    'a ViT of 1 blocks, width 192, patch 16'
    """
    stages: dict[int, set[int]] = {}
    blocks = set()
    for name in shapes:
        if found := re.match(r"layer(\d+)\.(\d+)\.conv1\.weight$", name):
            stages.setdefault(int(found[1]), set()).add(int(found[2]))
        if found := re.match(r"blocks\.(\d+)\.attn\.", name):
            blocks.add(int(found[1]))
    if stages:
        depths = tuple(len(stages[stage]) for stage in sorted(stages))
        bottleneck = any(re.match(r"layer\d+\.\d+\.conv3\.weight$", name) for name in shapes)
        known = _RESNETS.get((depths, bottleneck))
        first = shapes.get("layer1.0.conv1.weight", ())
        width = f" (first block of width {first[0]})" if first and first[0] != 64 else ""
        kind = "bottleneck" if bottleneck else "basic"
        stem = shapes.get("conv1.weight", ())
        kernel = "x".join(map(str, stem[2:]))
        tail = width + (f" with a {kernel} stem" if len(stem) == 4 and kernel != "7x7" else "")
        tail += _for_channels(stem[1]) if len(stem) == 4 else ""
        return f"a {known}{tail}" if known else f"a ResNet of {'-'.join(map(str, depths))} {kind} blocks{tail}"
    if blocks:
        patch = shapes.get("patch_embed.proj.weight", ())
        tail = f", width {patch[0]}, patch {patch[-1]}{_for_channels(patch[1])}" if len(patch) == 4 else ""
        return f"a ViT of {len(blocks)} blocks{tail}"
    return ""


def _for_channels(count: int) -> str:
    return "" if count == 3 else f" for images of {count} channel{'s' if count > 1 else ''}"


def _prefix(file: Shapes, backbone: Shapes, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Describe a prefix that must be removed from, or added to, the file's names to match; '' if there is none."""
    if not missing or not unexpected:
        return ""
    lacking, extra = backbone.keys() - file.keys(), set(unexpected)
    for names, prefixed, plain, how in ((unexpected, extra, lacking, "without"), (missing, lacking, extra, "with")):
        for prefix in dict.fromkeys(itertools.chain.from_iterable(prefixes([name]) for name in names[:3])):
            fits = sum(other.removeprefix(prefix) in plain for other in prefixed if other.startswith(prefix))
            if 2 * fits > len(lacking):
                return f"{fits} names in the file fit {how} the prefix '{prefix}'"
    return ""


def _closest_rename(file: Shapes, backbone: Shapes, missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Describe the missing and the unexpected name of equal shape that share most trailing segments."""
    best: tuple[int, str, str] = (0, "", "")
    # Bounded, as all pairs are compared and a file may have 10,000 tensors.
    for wanted in missing[:20]:
        for name in unexpected[:2000]:
            if file[name] == backbone[wanted]:
                # Trailing dotted segments that the names share.
                ends = zip(reversed(wanted.split(".")), reversed(name.split(".")), strict=False)
                shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], ends))
                best = max(best, (shared, wanted, name), key=lambda pair: pair[0])
    return f"Closest by shape and name: '{best[2]}' in the file for '{best[1]}'" if best[0] else ""


@dataclasses.dataclass(frozen=True)
class LoadReport:
    """Report of loading tensors into a module.

    Attributes:
        loaded: number of the module's tensors that were loaded.
        total: number of the module's tensors (BatchNorm counters missing from the file are not counted).
        parameters_loaded_fraction: loaded share of the module's parameter values, 0 to 1.
        missing: names in the module only; empty unless partial.
        unexpected: names in the file only; empty unless partial.
        mismatched: names whose shape or kind of number differs; empty unless partial.
        ignored: summaries of the file's keys outside the backbone, for instance 'fc.*'.
        format: format of the file.
        partial: True if names were missing, unexpected or mismatched and the user allowed it.
        counters_missing: number of BatchNorm counters (num_batches_tracked) missing from the file; evaluation does not
            use them.
        casts: conversions of dtype, for instance '161 float16 to float32'.
        what: name of the file or weights in messages.
        network: selected copy of the backbone in the file, and the others.
        note: note of the format's table for users of the weights.
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
        """Return the report as text: 'loaded 318 of 318 backbone tensors (100.0 % of parameters), format moco; ...'."""
        text = f"loaded {self.loaded} of {self.total} backbone tensors "
        # Rounded down, so that 100.0 means all.
        text += f"({int(self.parameters_loaded_fraction * 1000) / 10:.1f} % of parameters)"
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
    """Copy tensors into a module's parameters and buffers; all names and shapes must match.

    An error leaves the module unchanged.

    >>> layer = nn.Linear(2, 1)
    >>> fill(layer, {"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, what="example").line()
    'loaded 2 of 2 backbone tensors (100.0 % of parameters)'

    tensors: name in the module -> tensor; floating-point tensors are cast to the module's dtype.
    """
    targets = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    absent = [name for name in targets if name not in tensors]
    counters = [name for name in absent if name.rpartition(".")[2] == OPTIONAL_LEAF]
    missing = tuple(name for name in absent if name not in set(counters))
    unexpected = tuple(name for name in tensors if name not in targets)
    mismatched = tuple(n for n in targets if n in tensors and not _fits(tensors[n], targets[n]))
    matching = [name for name in targets if name in tensors and name not in set(mismatched)]
    partial = bool(missing or unexpected or mismatched)
    parameters = {name for name, _ in module.named_parameters()}
    # Where buffers alone fit, nothing that was trained would be loaded.
    if partial and not (allow_partial and parameters & set(matching)):
        raise _refusal(targets, tensors, (missing, unexpected, mismatched), what)
    # The last check before the first copy: an error leaves the module as it was.
    _refuse_not_finite({name: tensors[name] for name in matching}, what)
    with torch.no_grad():
        for name in matching:
            targets[name].copy_(tensors[name].reshape(targets[name].shape))  # (1,) into ()
    # A parameter that two modules share has two names in the state dict.
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters(remove_duplicate=False)}
    filled, total = sum(sizes.get(name, 0) for name in matching), sum(sizes.values())
    pairs = [(tensors[name].dtype, targets[name].dtype) for name in matching]
    casts = Counter((given, wanted) for given, wanted in pairs if given != wanted)
    return LoadReport(
        loaded=len(matching),
        total=len(targets) - len(counters),
        parameters_loaded_fraction=filled / total if total else 1.0,
        missing=missing,
        unexpected=unexpected,
        mismatched=mismatched,
        ignored=tuple(ignored),
        format=format,
        partial=partial,
        counters_missing=len(counters),
        casts=tuple(f"{count} {str(a)[6:]} to {str(b)[6:]}" for (a, b), count in casts.items()),
        what=what,
        network=network,
    )


def tensors_sha256(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and values, independent of file format and order of keys.

    BatchNorm counters are left out: some formats omit them, and evaluation does not use them.

    >>> tensors_sha256({"a": torch.zeros(2), "b": torch.ones(1)})[:8]
    '9670d296'
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        if name.rpartition(".")[2] == OPTIONAL_LEAF:
            continue
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{str(tensor.dtype).removeprefix('torch.')}\0{tuple(tensor.shape)}\0".encode())
        # As bytes, since numpy has no bfloat16.
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _fits(tensor: Tensor, target: Tensor) -> bool:
    """Return True if shape and kind of number (integer, floating point, bool) agree."""
    same_kind = tensor.layout == target.layout and _number_kind(tensor) == _number_kind(target)
    same_shape = tensor.shape == target.shape or (
        # A scalar is saved as () or (1,), depending on the version of torch.
        tensor.numel() == target.numel() == 1 and tensor.ndim + target.ndim == 1
    )
    return same_kind and same_shape


def _number_kind(tensor: Tensor) -> str:
    if tensor.is_floating_point():
        return "real"
    if tensor.is_complex() or tensor.is_quantized or tensor.dtype == torch.bool:
        return str(tensor.dtype)
    return "whole"


def _refuse_not_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    bad = [
        name
        for name, tensor in tensors.items()
        # The sum needs no temporary and is not finite if a value is not; a finite tensor whose sum overflows is checked
        # value by value.
        if tensor.is_floating_point() and not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all()
    ]
    if bad:
        kinds = " and ".join(
            kind
            for kind, test in (("NaN", torch.isnan), ("infinite", torch.isinf))
            if any(bool(test(tensors[name]).any()) for name in bad)
        )
        raise WeightsError(
            f"{what}: {len(bad)} tensors have {kinds} values: {_abridged(bad)}",
            "The training diverged or the file is damaged; use an earlier checkpoint.",
        )


def _refusal(
    targets: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
    differences: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    what: str,
) -> WeightsError:
    missing, unexpected, mismatched = differences
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(targets)} tensors missing: {_abridged(missing)}")
    if unexpected:
        parts.append(f"{len(unexpected)} unexpected: {_abridged(unexpected)}")
    if mismatched:
        pairs = []
        for name in mismatched[:3]:
            given, wanted = tensors[name], targets[name]
            differ = [f"{tuple(t.shape)}" if given.shape != wanted.shape else str(t.dtype)[6:] for t in (given, wanted)]
            pairs.append(f"'{name}' {differ[0]} in the file, {differ[1]} in the backbone")
        more = f" and {len(mismatched) - 3} more" if len(mismatched) > 3 else ""
        parts.append(f"{len(mismatched)} of another shape: {', '.join(pairs)}{more}")
    cause = likely_cause(
        {name: tuple(t.shape) for name, t in tensors.items()},
        {name: tuple(t.shape) for name, t in targets.items()},
        missing=missing,
        unexpected=unexpected,
    )
    remedy = "Give the right --format or --backbone"
    if not any(name in tensors and name not in mismatched for name in targets):
        remedy = "Nothing fits: give the right --format or --backbone."
    elif unexpected:
        remedy += f": --allow-partial would compute another network, without {len(unexpected)} tensors of the file."
    else:
        remedy += "; --allow-partial loads what fits and marks every result as partial."
    return WeightsError(
        f"{what} does not fit the backbone: {'; '.join(parts)}" + (f". {cause}" if cause else ""), remedy
    )


def _abridged(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(f"'{name}'" for name in names[:3]) + more


def without_class_position(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return canonical tensors in timm's layout: with registers, only patches have position embeddings.

    DINOv2's own files keep a position embedding for the class token. It is added to the class token here; the network
    only uses the sum, so its output is unchanged. Other tensors are returned unchanged.
    """
    positions, token = tensors.get("pos_embed"), tensors.get("cls_token")
    if positions is None or token is None or "reg_token" not in tensors or positions.ndim != 3:
        return dict(tensors)
    rows = positions.shape[1] - 1
    # One more than a square number of patches: the first position is that of the class token.
    if rows < 1 or math.isqrt(rows) ** 2 != rows or token.shape[-1] != positions.shape[-1]:
        return dict(tensors)
    return {**tensors, "cls_token": token + positions[:, :1], "pos_embed": positions[:, 1:]}


def with_masked_biases(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return canonical tensors with the biases of queries, keys and values multiplied by their masks.

    DINOv3 multiplies the bias of the keys by zero in every forward pass; where the mask is zero, the value has no
    meaning and may be NaN.
    """
    masked = dict(tensors)
    for name in [name for name in tensors if name.endswith(".bias_mask")]:
        start, mask = name.removesuffix("bias_mask"), masked.pop(name)
        names = [f"{start}{part}_bias" for part in "qkv"]
        if not all(key in tensors and 3 * tensors[key].numel() == mask.numel() for key in names):
            masked[name] = mask
            continue
        thirds = zip(names, mask.flatten().chunk(3), strict=True)
        # Not the product alone: 0 * NaN is NaN, and a masked bias may hold anything.
        masked |= {key: torch.where(third == 0, 0, tensors[key] * third) for key, third in thirds}
    return masked


def in_timms_layout(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return canonical tensors as timm's own files have them, and a description of each change.

    Biases of keys are left out if they are zero, which timm takes for granted.
    """
    changed = with_masked_biases(tensors)
    notes = [MASKED_BIASES] if len(changed) < len(tensors) else []
    keys = [name for name in changed if name.endswith("attn.k_bias")]
    if not any(bool(changed[name].any()) for name in keys):
        changed = {name: tensor for name, tensor in changed.items() if name not in keys}
    if changed.pop(PERIODS, None) is not None:
        notes.append(PERIODS_LEFT_OUT)
    folded = without_class_position(changed)
    if folded.get("pos_embed") is not changed.get("pos_embed"):
        notes.append(CLASS_POSITION)
    return folded, tuple(notes)
