"""Whose key names a weights file has: exactly one table must explain every key."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sslbench import names
from sslbench.errors import WeightsError
from sslbench.weights.files import WeightsFile
from sslbench.weights.tables import Split, Table, load_table

# Buffers that torch < 0.4.1 did not write, and that other tools drop: the only tensors that may be missing.
OPTIONAL_LEAF = "num_batches_tracked"

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Recognised:
    """The backbone in a weights file, under canonical names.

    Attributes:
        format: name of the table that explains the file.
        canonical: canonical name -> tensor.
        heads: tensors of heads, by the names they have behind the format's prefix.
        dropped: keys of the file that belong to no backbone (momentum copies, queues).
        ignored: what heads and dropped keys are, as a report names it: ('fc.*', 'module.queue').
        backbone: the architecture, where the file names it (sslbench's own do).
        where: dotted path of the state dict in the file; '' is the file itself.
        prefix: how the keys of the backbone begin in the file.
    """

    format: str
    canonical: dict[str, Tensor]
    heads: dict[str, Tensor]
    dropped: tuple[str, ...]
    ignored: tuple[str, ...]
    backbone: str | None
    where: str
    prefix: str


@dataclasses.dataclass(frozen=True)
class _Reading:
    """One table's view of one place in the file."""

    table: Table
    where: str
    split: Split
    claims: bool


def recognise(file: WeightsFile, *, expected: Shapes | None = None, format: str | None = None) -> Recognised:
    """The format of a file and its backbone's tensors under canonical names.

    Tables that come to the same tensors are not in conflict. Heads that the backbone itself has stay with it.

    Args:
        file: what `files.read` returned.
        expected: the backbone's own state dict, name -> shape, where it is known; decides between tables.
        format: a name from model_converters/ (or a .yaml of the user's) that must fit; None: look at all of them.

    Raises:
        WeightsError: no table explains every key, or several do differently.
        UsageError: there is no such format.
    """
    tables = [load_table(format)] if format else [load_table(name) for name in names.list_names("format")]
    marked = [table for table in tables if _has_marker(table, file)]
    quarrels: list[str] = []
    readings = [
        reading for table in marked or tables if (reading := _read(table, file, expected, quarrels)) is not None
    ]
    claims = [reading for reading in readings if reading.claims]
    if not claims:
        raise _unrecognised(file, readings, quarrels, format)
    if expected is not None:
        most = max(_coverage(reading, expected) for reading in claims)
        claims = [reading for reading in claims if _coverage(reading, expected) == most]
    claims = [reading for reading in claims if not reading.table.file.fallback] or claims
    claims.sort(key=lambda reading: (reading.table.is_general, reading.table.name))
    for other in claims[1:]:
        if not _same(claims[0].split.canonical, other.split.canonical):
            raise _ambiguous(file, claims[0], other)
    return _result(claims[0], file)


def _has_marker(table: Table, file: WeightsFile) -> bool:
    marker = table.file.marker
    if not marker or any(file.content.get(key) != value for key, value in marker.items()):
        return False
    if file.content.get("version") not in (None, 1):
        raise WeightsError(
            f"{file.path} has version {file.content['version']} of format {table.name}; this sslbench reads version 1",
            "Update sslbench.",
        )
    return True


def _read(table: Table, file: WeightsFile, expected: Shapes | None, quarrels: list[str]) -> _Reading | None:
    """The first place in the file that the table explains wholly, else the one it explains best, else None.

    A table whose rules quarrel over this file does not explain it; what they quarrel about is added to `quarrels`.
    """
    if (table.file.marker and not _has_marker(table, file)) or (table.file.needs_backbone and expected is None):
        return None
    best: _Reading | None = None
    for where in table.file.state_dict:
        tensors = tensors_at(file.content, where)
        if not tensors:
            continue
        try:
            split = _keep_backbone_heads(_with_heads(table, table.split(tensors), file), expected)
        except WeightsError as error:
            quarrels.append(error.message)
            continue
        claims = bool(split.canonical) and not split.unknown and table.detected(tensors)
        if table.file.needs_backbone and expected is not None:
            claims = claims and 2 * sum(name in split.canonical for name in expected) > len(expected)
        if claims:
            return _Reading(table, where, split, True)
        if best is None or len(split.canonical) > len(best.split.canonical):
            best = _Reading(table, where, split, False)
    return best


def tensors_at(content: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """The tensors that lie directly in the dict at a dotted path ('' is the whole); empty when there are none."""
    level: Any = content
    for step in where.split(".") if where else []:
        level = level.get(step) if isinstance(level, Mapping) else None
    if not isinstance(level, Mapping):
        return {}
    return {key: value for key, value in level.items() if isinstance(value, Tensor)}


def _with_heads(table: Table, split: Split, file: WeightsFile) -> Split:
    found = {f"heads.{key}": t for where in table.file.heads_at for key, t in tensors_at(file.content, where).items()}
    if not found:
        return split
    return dataclasses.replace(split, heads={**split.heads, **found}, heads_met=(*split.heads_met, "heads.*"))


def _keep_backbone_heads(split: Split, expected: Shapes | None) -> Split:
    kept = {name: tensor for name, tensor in split.heads.items() if expected and name in expected}
    if not kept:
        return split
    left = {name: tensor for name, tensor in split.heads.items() if name not in kept}
    met = split.heads_met if left else ()
    return dataclasses.replace(split, canonical={**split.canonical, **kept}, heads=left, heads_met=met)


def _coverage(reading: _Reading, expected: Shapes) -> int:
    canonical = reading.split.canonical
    return sum(name in canonical and tuple(canonical[name].shape) == shape for name, shape in expected.items())


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)


def _result(reading: _Reading, file: WeightsFile) -> Recognised:
    split = reading.split
    backbone = file.content.get("backbone") if reading.table.file.marker else None
    return Recognised(
        format=reading.table.name,
        canonical=split.canonical,
        heads=split.heads,
        dropped=split.dropped,
        ignored=(*split.heads_met, *split.drops_met),
        backbone=backbone if isinstance(backbone, str) else None,
        where=reading.where,
        prefix=split.prefix,
    )


def _ambiguous(file: WeightsFile, first: _Reading, second: _Reading) -> WeightsError:
    ways = " or ".join(f"{r.table.name} (at {r.where or 'the top of the file'})" for r in (first, second))
    return WeightsError(
        f"{file.path} can be read in two ways that differ: {ways}",
        f"Say which: --format {first.table.name}, for instance.",
    )


def _unrecognised(file: WeightsFile, readings: list[_Reading], quarrels: list[str], format: str | None) -> WeightsError:
    """Says what the keys look like, which format comes closest and what it does not know."""
    where, keys = _likely_place(file.content, "", set())
    if not keys:
        holds = ", ".join(f"'{key}'" for key in list(file.content)[:5]) or "nothing"
        stubs = f"; classes that were not loaded: {', '.join(file.stubbed[:3])}" if file.stubbed else ""
        return WeightsError(f"{file.path} holds no tensors; it holds {holds}{stubs}", "Save model.state_dict().")
    message = f"{file.path} is not of format {format}" if format else f"{file.path} has key names of no known format"
    message += f": its {len(keys)} tensors" + (f" at '{where}'" if where else "")
    message += " are " + ", ".join(f"'{key}'" for key in keys[:3]) + (" ..." if len(keys) > 3 else "")
    hint = _prefix_hint(tensors_at(file.content, where)) or _closest(readings)
    hint += f"; {quarrels[0]}" if quarrels else ""
    return WeightsError(
        message + hint,
        "Give --format NAME if you know it (sslbench list formats), or your own network: --backbone MODULE:FUNCTION.",
    )


def _prefix_hint(tensors: Mapping[str, Tensor]) -> str:
    """Says which beginning of many keys hides names that are known."""
    keys = list(tensors)
    beginnings = {".".join(key.split(".")[:n]) + "." for key in keys for n in range(1, min(key.count("."), 4) + 1)}
    tables = [table for name in names.list_names("format") if not (table := load_table(name)).file.fallback]
    for prefix in sorted(beginnings, key=len):
        behind = {key.removeprefix(prefix): tensors[key] for key in keys if key.startswith(prefix)}
        if 3 * len(behind) < len(keys):
            continue
        for table in sorted(tables, key=lambda table: table.is_general):
            if not table.file.marker and table.file.detect != () and _claims(table, behind):
                some = "all" if len(behind) == len(keys) else str(len(behind))
                return f"; {some} start with '{prefix}', and have {table.name} names behind it"
    prefix = common_prefix(keys)
    return f"; all start with '{prefix}'" if prefix else ""


def _claims(table: Table, tensors: Mapping[str, Tensor]) -> bool:
    try:
        split = table.split(tensors)
    except WeightsError:
        return False
    return bool(split.canonical) and not split.unknown and table.detected(tensors)


def _closest(readings: list[_Reading]) -> str:
    known = [r for r in readings if r.split.canonical and r.split.unknown and not r.table.file.fallback]
    best = max(known, key=lambda r: (len(r.split.canonical), not r.table.is_general), default=None)
    if best is None or len(best.split.canonical) < len(best.split.unknown):
        return ""
    unknown = best.split.unknown
    return f"; closest is {best.table.name}, which does not know {len(unknown)} of them, such as '{unknown[0]}'"


def _likely_place(content: Mapping[str, Any], where: str, seen: set[int]) -> tuple[str, list[str]]:
    """The dict in the file that has the most tensors: its dotted path and keys."""
    seen.add(id(content))
    best = (where, list(tensors_at(content, "")))
    for key, value in content.items():
        if isinstance(value, Mapping) and id(value) not in seen:
            inner = _likely_place(value, f"{where}.{key}" if where else key, seen)
            best = max(best, inner, key=lambda found: len(found[1]))
    return best


def common_prefix(keys: Iterable[str]) -> str:
    """The whole dotted segments that all keys start with, with the dot at the end; '' if there are none."""
    shared: list[str] | None = None
    for key in keys:
        segments = key.split(".")[:-1]
        pairs = zip(segments, segments if shared is None else shared, strict=False)
        shared = [left for left, right in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "".join(f"{segment}." for segment in shared or [])
