"""A weights file of any format as one of another: rename, write, read back, and only then put it in its place."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from sslbench.errors import UsageError, WeightsError
from sslbench.names import list_names
from sslbench.weights import files, layout, save
from sslbench.weights.fill import tensors_sha256
from sslbench.weights.recognise import OPTIONAL_LEAF, Recognised, Shapes, recognise, tensors_at
from sslbench.weights.tables import Table, load_table

CONTAINERS = ("safetensors", "pkl", "pth", "pickle", "torch")
_HEADS_BESIDE = "heads."


@dataclasses.dataclass(frozen=True)
class ConversionReport:
    """What a conversion did.

    Attributes:
        source: the file that was read.
        target: the file that was written.
        format: of the source.
        to: of the target.
        where: dotted path of the state dict in the source; '' is the file itself.
        prefix: how the keys of the backbone begin in the source.
        tensors: how many were written, heads and restored counters included.
        renamed: how many of them have another key than in the source.
        dropped: patterns of what was left out because a table declares it: heads, queues, momentum copies.
        dropped_count: how many tensors that were.
        heads: heads that were kept, by their names behind the prefix.
        counters_dropped: BatchNorm counters (num_batches_tracked) that the target has no name for.
        counters_restored: BatchNorm counters that the source lacks, written as 0.
        operations: operation -> tensors that it changed on the way: 'flip_channels', 'concat', 'split', ...
        source_sha256: of the source file's bytes.
        tensors_sha256: of the backbone's tensors under canonical names (without BatchNorm counters).
    """

    source: Path
    target: Path
    format: str
    to: str
    where: str
    prefix: str
    tensors: int
    renamed: int
    dropped: tuple[str, ...]
    dropped_count: int
    heads: tuple[str, ...]
    counters_dropped: int
    counters_restored: int
    operations: Mapping[str, int]
    source_sha256: str
    tensors_sha256: str


def convert(
    src: Path,
    dst: Path,
    *,
    to: str,
    format: str | None = None,
    keep_heads: bool = False,
    overwrite: bool = False,
    expected: Shapes | None = None,
    name_backbone: Callable[[Recognised], str] | None = None,
    trust_pickle: bool = False,
) -> ConversionReport:
    """Read `src`, write its backbone to `dst` in another format; `dst` appears whole and checked, or not at all.

    The container follows the suffix of `dst`: .safetensors, .pkl (numpy arrays), else a file of torch.save. What was
    written is read back and compared bit for bit before it takes its place.

    Args:
        src: a weights file.
        dst: where to.
        to: the format to write, a name from model_converters/ or a .yaml of the user's.
        format: of `src`; recognised when None.
        keep_heads: keep what the source's table calls heads; the target must have names for them.
        overwrite: whether `dst` may be replaced.
        expected: the backbone's own names and shapes, where it is known; see `recognise`.
        name_backbone: gives the architecture, which sslbench's own files name.
        trust_pickle: see `files.read`.

    Raises:
        UsageError: no such format, or `dst` cannot be written.
        WeightsError: `src` cannot be read or recognised, or the target cannot hold its tensors.
    """
    src, dst = Path(src).expanduser(), Path(dst).expanduser()
    if to in CONTAINERS and to not in list_names("format"):
        raise UsageError(
            f"'{to}' is a container, not a format: it follows from the suffix of {dst.name}",
            f"Name the key names that the file should have, for instance: OUT.{to} --to torchvision.",
        )
    table = load_table(to)
    save.check_target(dst, overwrite=overwrite, remedy="replace it with --force")
    if dst.exists() and dst.samefile(src):
        raise UsageError(f"{dst} is the file that is read", "Give another name for the converted file.")
    layout.check_layout(dst, table)
    file = files.read(src)
    found = recognise(file, expected=expected, format=format)
    plan = _plan(table, found, keep_heads=keep_heads)
    digest = tensors_sha256(found.canonical)
    note = {
        "converted_from": found.format,
        "source": src.name,
        "source_sha256": file.sha256,
        "tensors_sha256": digest,
    }
    backbone = name_backbone(found) if table.name == save.FORMAT and name_backbone else found.backbone or ""
    if table.name == save.FORMAT and not backbone:
        raise UsageError("sslbench's own files name their architecture", "Name it: --backbone resnet50.")
    with save.new_file(dst) as temporary:
        layout.write(temporary, table, plan.keys, heads_beside=plan.beside, backbone=backbone, note=note)
        _check_back(temporary, table, plan, expected)
    source = tensors_at(file.content, found.where)
    return ConversionReport(
        source=src,
        target=dst,
        format=found.format,
        to=table.name,
        where=found.where,
        prefix=found.prefix,
        tensors=len(plan.keys) + len(plan.beside),
        renamed=sum(key not in source for key in plan.keys),
        dropped=tuple(p for p in found.ignored if not (keep_heads and p in _head_patterns(found))),
        dropped_count=len(found.dropped) + (0 if keep_heads else len(found.heads)),
        heads=tuple(found.heads) if keep_heads else (),
        counters_dropped=plan.counters_dropped,
        counters_restored=plan.counters_restored,
        operations=_operations(load_table(format or found.format), found, table, plan),
        source_sha256=file.sha256,
        tensors_sha256=digest,
    )


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What will be written: canonical tensors with counters and heads as the target has them, and its own keys."""

    canonical: dict[str, Tensor]
    keys: dict[str, Tensor]
    beside: dict[str, Tensor]
    counters_dropped: int
    counters_restored: int


def _plan(table: Table, found: Recognised, *, keep_heads: bool) -> _Plan:
    """Refuses what the target cannot hold, naming it; only BatchNorm counters may come and go."""
    heads = found.heads if keep_heads else {}
    beside = {k.removeprefix(_HEADS_BESIDE): t for k, t in heads.items() if k.startswith(_HEADS_BESIDE)}
    inside = {k: t for k, t in heads.items() if not k.startswith(_HEADS_BESIDE)}
    homeless = [key for key in inside if not table.holds_head(key)]
    homeless += [_HEADS_BESIDE + key for key in beside if not table.file.heads_at]
    canonical, dropped = {}, 0
    for name, tensor in found.canonical.items():
        if table.holds(name):
            canonical[name] = tensor
        elif name.rpartition(".")[2] == OPTIONAL_LEAF:
            dropped += 1
        else:
            homeless.append(name)
    if homeless:
        listed = ", ".join(f"'{key}'" for key in homeless[:3]) + (" ..." if len(homeless) > 3 else "")
        heads_only = all(key in heads for key in homeless)
        raise WeightsError(
            f"format {table.name} has no name for {len(homeless)} of the file's "
            f"{len(found.canonical) + len(heads)} tensors: {listed}",
            "Leave --keep-heads out." if heads_only else f"'sslbench show {table.name}' lists the names that it has.",
        )
    restored = _lacking_counters(canonical, table)
    canonical |= restored
    return _Plan(canonical, table.from_canonical({**canonical, **inside}), beside, dropped, len(restored))


def _lacking_counters(canonical: Mapping[str, Tensor], table: Table) -> dict[str, Tensor]:
    """Counters that a BatchNorm without one gets, where the target has a name for them: 0, as in a new module."""
    norms = [name.removesuffix("running_mean") for name in canonical if name.endswith(".running_mean")]
    names = [norm + OPTIONAL_LEAF for norm in norms]
    return {name: torch.tensor(0) for name in names if name not in canonical and table.holds(name)}


def _check_back(path: Path, table: Table, plan: _Plan, expected: Shapes | None) -> None:
    """Read the written file as any other, and compare bit for bit.

    Raises:
        WeightsError: something came back differently.
    """
    wanted = dict(plan.canonical)
    back = recognise(files.read(path), expected=expected or _shapes(wanted), format=table.name)
    different = [k for k in wanted.keys() | back.canonical.keys() if not _same(wanted.get(k), back.canonical.get(k))]
    if different:
        listed = ", ".join(f"'{name}'" for name in sorted(different)[:3])
        raise WeightsError(
            f"format {table.name} does not give back {len(different)} of the {len(wanted)} tensors as they were: "
            f"{listed}; nothing was written",
            "The table must be mended.",
        )


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        return False
    left, right = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(left, right)


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _head_patterns(found: Recognised) -> tuple[str, ...]:
    """Those of `ignored` that stand for heads: they come first."""
    return found.ignored[: found.head_patterns]


def _operations(source: Table, found: Recognised, target: Table, plan: _Plan) -> dict[str, int]:
    counted = Counter[str]()
    for table, names in ((source, found.canonical), (target, plan.canonical)):
        for name in names:
            counted.update(table.operations_on(name))
    return dict(counted)
