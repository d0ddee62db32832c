"""Conversion of a weights file to another format: rename, write, read back, compare, and only then publish it."""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from sslbench.errors import UsageError, WeightsError
from sslbench.paths import new_file
from sslbench.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from sslbench.weights import save
from sslbench.weights.fill import in_timms_layout, tensors_sha256
from sslbench.weights.format_name import check_conversion, check_format
from sslbench.weights.formats import rules, tables
from sslbench.weights.formats.places import tensors_at
from sslbench.weights.formats.recognise import OPTIONAL_LEAF, Recognised, recognise, refuse_undecided
from sslbench.weights.formats.schema import InputImages, Strides
from sslbench.weights.formats.search import Shapes
from sslbench.weights.formats.tables import FormatTable, load_table, take_variant
from sslbench.weights.reading import files

_HEADS_BESIDE = "heads."


@dataclasses.dataclass(frozen=True)
class ConversionReport:
    """Report of a conversion.

    Attributes:
        source: input file.
        target: output file.
        format: format of the source.
        to: format of the target.
        network: copy of the backbone taken from the source; '' if it holds only one.
        where: dotted path of the state dict in the source; '' is the file itself.
        prefix: prefix of the backbone's keys in the source.
        elsewhere: formats of the other networks in the source.
        tensors: number of tensors written, heads and restored counters included.
        renamed: number of these whose key differs from that in the source.
        dropped: patterns of the keys that a table leaves out: heads, queues, momentum copies.
        dropped_count: number of tensors left out.
        heads: names, without the prefix, of the heads that were kept.
        counters_dropped: number of BatchNorm counters (num_batches_tracked) without a name in the target.
        counters_restored: number of BatchNorm counters missing from the source and written as 0.
        operations: operation ('flip_channels', 'concat', 'split', ...) -> number of tensors that it changed.
        changes: descriptions of lossy changes to the backbone's tensors, which converting back does not undo.
        note: note of the source's table for users of the weights.
        source_sha256: SHA-256 of the source file's bytes.
        tensors_sha256: SHA-256 of the written backbone under canonical names (without BatchNorm counters).
    """

    source: Path
    target: Path
    format: str
    to: str
    network: str
    where: str
    prefix: str
    elsewhere: tuple[str, ...]
    tensors: int
    renamed: int
    dropped: tuple[str, ...]
    dropped_count: int
    heads: tuple[str, ...]
    counters_dropped: int
    counters_restored: int
    operations: Mapping[str, int]
    changes: tuple[str, ...]
    note: str
    source_sha256: str
    tensors_sha256: str


def check_output(src: Path, dst: Path, *, to: str, overwrite: bool) -> None:
    """Raise, before any file is read, if `dst` cannot be written in format `to`."""
    check_format(to)
    table = load_table(to)
    if table.variant and not table.file.variants[table.variant].shows:
        raise UsageError(
            f"--to {to}: a file of format {table.name} cannot record this variant",
            "Give --to sslbench, which keeps images and strides.",
        )
    check_conversion(src, dst, overwrite=overwrite)
    dst = dst.expanduser()
    tables.check_layout(dst, table)


def rewrite(
    file: files.WeightsFile,
    found: Recognised,
    dst: Path,
    *,
    to: str,
    keep_heads: bool = False,
    backbone: str | None = None,
    expected: Shapes | None = None,
    preprocessing: Preprocessing | None = None,
) -> ConversionReport:
    """Write a recognised backbone in another format, replacing `dst`.

    The new file is read back and compared bit for bit before it replaces `dst`.
    """
    dst, table, source_table = dst.expanduser(), load_table(to), load_table(found.definition)
    backbone = backbone or found.backbone or ""
    if table.name == save.FORMAT and not backbone:
        raise UsageError("sslbench's own files name their architecture", "Give --backbone resnet50, for example.")
    refuse_undecided(found, str(file.path))
    if found.variant and table.name != save.FORMAT:
        table = _of_variant(table, found, to)
    if not table.file.class_position:  # rewritten into equivalent tensors that the target's networks can hold
        canonical, changes = in_timms_layout(found.canonical)
        found = dataclasses.replace(found, canonical=canonical, changes=(*found.changes, *changes))
    plan = _output_file(table, found, keep_heads=keep_heads)
    digest = tensors_sha256(found.canonical)
    note = {"converted_from": found.format, "source": file.path.name, "source_sha256": file.sha256}
    note |= {"tensors_sha256": digest} | ({"changed": "; ".join(found.changes)} if found.changes else {})
    if table.name == save.FORMAT and preprocessing is not None:
        note |= {"preprocessing": json.dumps(preprocessing.record())}
    # An error inside leaves an old file at `dst` as it was.
    with new_file(dst) as temporary:
        tables.write(temporary, table, plan.keys, heads_beside=plan.beside, backbone=backbone, note=note)
        _check_back(temporary, to, dict(plan.canonical), expected)
    source = tensors_at(file.content, found.where)
    # As in `Recognised.ignored`.
    head_patterns = {f"{_HEADS_BESIDE}*", *(rules.parse_pattern(text).summary() for text in source_table.file.heads)}
    return ConversionReport(
        source=file.path,
        target=dst,
        format=found.format,
        to=table.name,
        network=found.network,
        where=found.where,
        prefix=found.prefix,
        elsewhere=found.elsewhere,
        tensors=len(plan.keys) + len(plan.beside),
        renamed=sum(key not in source for key in plan.keys),
        dropped=tuple(pattern for pattern in found.ignored if not (keep_heads and pattern in head_patterns)),
        dropped_count=len(found.dropped) + (0 if keep_heads else len(found.heads)),
        heads=tuple(found.heads) if keep_heads else (),
        counters_dropped=plan.counters_dropped,
        counters_restored=plan.counters_restored,
        operations=_operations(source_table, found, table, plan),
        changes=found.changes,
        note="; ".join(filter(None, (found.note, _images_note(table, found, preprocessing)))),
        source_sha256=file.sha256,
        tensors_sha256=digest,
    )


def _images_note(table: FormatTable, found: Recognised, recorded: Preprocessing | None) -> str:
    """Return a note with the network's transform if it is not the usual one and the target cannot store it."""
    source, target = found.input or InputImages("any"), table.file.input or InputImages("any")
    if table.name == save.FORMAT:
        return ""
    usual, flags = Preprocessing(), []
    if recorded is not None and recorded.squash is None:
        if (recorded.resize, recorded.crop) != (usual.resize, usual.crop):
            flags += [f"--resize {_size(recorded.resize)}", f"--crop {_size(recorded.crop)}"]
        if recorded.interpolation != usual.interpolation:
            flags.append(f"--interpolation {recorded.interpolation}")
    own = (source.mean, source.std) if recorded is None else (recorded.mean, recorded.std)
    if own[0] and own not in ((IMAGENET_MEAN, IMAGENET_STD), (target.mean, target.std)):
        mean, std = (",".join(f"{value:g}" for value in values) for values in own)
        flags.append(f"--mean {mean} --std {std}")
    return f"files of format {table.name} do not store this: evaluate it with {' '.join(flags)}" if flags else ""


def _size(size: int | tuple[int, int] | None) -> str:
    """Return a size as its flag takes it."""
    if isinstance(size, tuple):
        return "x".join(map(str, size))
    return "none" if size is None else str(size)


def _of_variant(table: FormatTable, found: Recognised, to: str) -> FormatTable:
    """Return the target's table for the source's variant."""
    plain = (found.strides or Strides()) == Strides() and (found.input is None or found.input.space != "lightness")
    if plain or table.variant:
        return table
    if found.variant in table.file.variants and table.file.variants[found.variant].shows:
        return take_variant(table, found.variant)
    raise WeightsError(
        f"the network is {found.format}:{found.variant}, and files of format {to} cannot tell its images and strides: "
        "the converted file would be taken for another network",
        "Give --to sslbench, which keeps them.",
    )


@dataclasses.dataclass(frozen=True)
class _OutputFile:
    """Content of the file to write.

    Attributes:
        canonical: canonical name -> tensor of the backbone, with the BatchNorm counters of the target.
        keys: key in the target's format -> tensor, heads included.
        beside: key -> tensor of heads stored in a dict of their own.
        counters_restored: number of BatchNorm counters added as 0.
    """

    canonical: dict[str, Tensor]
    keys: dict[str, Tensor]
    beside: dict[str, Tensor]
    counters_dropped: int
    counters_restored: int


def _output_file(table: FormatTable, found: Recognised, *, keep_heads: bool) -> _OutputFile:
    """Return the content to write; only BatchNorm counters may be dropped or added."""
    heads = found.heads if keep_heads else {}
    beside = {k.removeprefix(_HEADS_BESIDE): t for k, t in heads.items() if k.startswith(_HEADS_BESIDE)}
    inside = {k: t for k, t in heads.items() if not k.startswith(_HEADS_BESIDE)}
    patterns = [rules.parse_pattern(text) for text in table.file.heads]
    unnamed = [key for key in inside if all(pattern.match(key) is None for pattern in patterns)]
    unnamed += [_HEADS_BESIDE + key for key in beside if not table.file.heads_at]
    canonical, dropped = {}, 0
    for name, tensor in found.canonical.items():
        if _holds(table, name):
            canonical[name] = tensor
        elif name.rpartition(".")[2] == OPTIONAL_LEAF:
            dropped += 1
        else:
            unnamed.append(name)
    if unnamed:
        listed = ", ".join(f"'{key}'" for key in unnamed[:3]) + (" ..." if len(unnamed) > 3 else "")
        heads_only = all(key in heads for key in unnamed)
        raise WeightsError(
            f"format {table.name} has no name for {len(unnamed)} of the file's "
            f"{len(found.canonical) + len(heads)} tensors: {listed}",
            "Leave --keep-heads out." if heads_only else f"'sslbench show {table.name}' lists its names.",
        )
    norms = [name.removesuffix("running_mean") for name in canonical if name.endswith(".running_mean")]
    lacking = [norm + OPTIONAL_LEAF for norm in norms if norm + OPTIONAL_LEAF not in canonical]
    restored = {name: torch.tensor(0) for name in lacking if _holds(table, name)}
    canonical |= restored
    return _OutputFile(canonical, table.from_canonical({**canonical, **inside}), beside, dropped, len(restored))


def _check_back(path: Path, to: str, wanted: Mapping[str, Tensor], expected: Shapes | None) -> None:
    """Read the written file back and compare it bit for bit, before anybody sees it."""
    # The tensors that are read map the file, which Windows cannot rename while they live: they end with this function.
    shapes = expected or {name: tuple(tensor.shape) for name, tensor in wanted.items()}
    back = recognise(files.read(path), expected=shapes, format=to)
    different = [k for k in wanted.keys() | back.canonical.keys() if not _same(wanted.get(k), back.canonical.get(k))]
    if different:
        listed = ", ".join(f"'{name}'" for name in sorted(different)[:3])
        raise WeightsError(
            f"format {to} changes {len(different)} of the {len(wanted)} tensors in a round trip: "
            f"{listed}; nothing was written",
            "Correct the rules of its table.",
        )


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.dtype != b.dtype or a.shape != b.shape:
        return False
    # As bytes, so that NaN equals itself and -0.0 differs from 0.0; a scalar has no view of another type.
    left, right = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(left, right)


def _holds(table: FormatTable, name: str) -> bool:
    return any(pattern.match(name) is not None for rule in table.rules for pattern in rule.canonical)


def _operations(source: FormatTable, found: Recognised, target: FormatTable, plan: _OutputFile) -> dict[str, int]:
    """Count the canonical tensors changed by each operation of the two tables."""
    counted = Counter[str]()
    for table, names in ((source, found.canonical), (target, plan.canonical)):
        for rule in table.rules:
            steps = list(rule.operations) + ["concat"] * (len(rule.foreign) > 1) + ["split"] * (len(rule.canonical) > 1)
            for name in names if steps else ():
                if any(pattern.match(name) is not None for pattern in rule.canonical):
                    counted.update(steps)
    return dict(counted)
