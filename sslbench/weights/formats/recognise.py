"""Recognition of a weights file's format: exactly one table must account for every key."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sslbench import names
from sslbench.errors import WeightsError
from sslbench.weights.formats import schema
from sslbench.weights.formats.format_name import without_wrapper
from sslbench.weights.formats.schema import InputImages, Strides
from sslbench.weights.formats.tables import FormatTable, Split, load_networks, take_variant
from sslbench.weights.reading.files import WeightsFile
from sslbench.weights.save import CHECKPOINT_FORMAT


def unrecognised(
    file: WeightsFile,
    tensors: Mapping[str, Tensor],
    *,
    where: str,
    tries: Sequence[tuple[FormatTable, Split]],
    conflicts: Sequence[str],
    format: str | None,
) -> WeightsError:
    """Return the error for a file of unknown format, with the closest format and a key that it lacks.

    Args:
        file: the weights file.
        tensors: tensors of the dict that holds the most.
        where: dotted path of this dict.
        tries: the file's tensors as split by each table.
        conflicts: messages of tables with contradictory rules for this file.
        format: format named by the user.
    """
    keys = list(tensors)
    if not keys:
        holds = ", ".join(f"'{key}'" for key in list(file.content)[:5]) or "nothing"
        stubs = f"; classes that were not loaded: {', '.join(file.stubbed[:3])}" if file.stubbed else ""
        return WeightsError(f"{file.path} holds no tensors; it holds {holds}{stubs}", "Save model.state_dict().")
    if file.content.get("format") == CHECKPOINT_FORMAT:
        what = "a detector" if "detector" in file.content or "model" in file.content else "linear heads"
        return WeightsError(
            f"{file.path} is a training checkpoint of {what}, not weights of a backbone",
            "The command that wrote it continues from it, and writes the weights at the end.",
        )
    message = f"{file.path} is not of format {format}" if format else f"{file.path} has key names of no known format"
    message += f": its {len(keys)} tensors" + (f" at '{where}'" if where else "")
    message += " are " + ", ".join(f"'{key}'" for key in keys[:3]) + (" ..." if len(keys) > 3 else "")
    prefix = common_prefix(keys)
    hint = f"; all start with '{prefix}'" if prefix else _closest(tries)
    hint += f"; {conflicts[0]}" if conflicts else ""
    return WeightsError(
        message + hint,
        "Give --format NAME if you know it (sslbench list formats), or your own network: --backbone MODULE:FUNCTION.",
    )


def _closest(tries: Sequence[tuple[FormatTable, Split]]) -> str:
    known = [(table, s) for table, s in tries if s.canonical and s.unknown and not table.file.fallback]
    if not known:
        return ""
    table, split = max(known, key=lambda pair: (len(pair[1].canonical), -len(pair[1].unknown), not pair[0].is_general))
    if len(split.canonical) < len(split.unknown):
        return ""
    return f"; closest is {table.name}, which does not know {len(split.unknown)} of them, such as '{split.unknown[0]}'"


def common_prefix(keys: Iterable[str]) -> str:
    """Return the longest prefix of whole dotted segments that all keys share, with its final dot; '' if none.

    >>> common_prefix(["module.conv1.weight", "module.conv2.weight"])
    'module.'
    """
    shared: list[str] | None = None
    for key in keys:
        segments = key.split(".")[:-1]
        pairs = zip(segments, segments if shared is None else shared, strict=False)
        shared = [left for left, right in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "".join(f"{segment}." for segment in shared or [])


OPTIONAL_LEAF = "num_batches_tracked"
"""Last segment of BatchNorm counters, the only tensors that may be missing: torch < 0.4.1 and other tools omit them."""

MAX_TENSORS = 10_000
"""Largest number of tensors in a file: matching more against every format takes minutes. A ViT-G has about 1,000."""

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Recognised:
    """Backbone recognised in a weights file, under canonical names.

    Attributes:
        format: name of the format.
        canonical: canonical name -> tensor.
        heads: name without the format's prefix -> tensor of the heads.
        dropped: keys of tensors outside the backbone (momentum copies, queues).
        ignored: summaries of head and dropped keys for reports: ('fc.*', 'module.queue').
        backbone: name of the architecture if the file holds it (sslbench's own files).
        where: dotted path of the state dict in the file; '' is the file itself.
        prefix: prefix of the backbone's keys in the file.
        wrapper: the part of it that the format does not know, as of a Lightning module; '' if there is none.
        network: selected copy of the backbone ('query', 'teacher'); '' if the format has one copy.
        other_networks: other copies in the file.
        note: note of the table for users of the weights.
        variant: variant of the format, named by the user or detected ('colorization', 'msra'); '' if none.
        choices: variant -> title of the variants that the file cannot tell apart, so that the user must choose; else
            empty.
        input: images that the network was trained on; None if the table does not define them.
        strides: strides of a ResNet; None if the table does not define them.
        changes: descriptions of later changes to `canonical`, for instance a stem mapped to other channels.
    """

    format: str
    canonical: dict[str, Tensor]
    heads: dict[str, Tensor]
    dropped: tuple[str, ...]
    ignored: tuple[str, ...]
    backbone: str | None
    where: str
    prefix: str
    wrapper: str = ""
    network: str = ""
    other_networks: tuple[str, ...] = ()
    note: str = ""
    variant: str = ""
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    input: InputImages | None = None
    strides: Strides | None = None
    changes: tuple[str, ...] = ()

    @property
    def network_text(self) -> str:
        """Description of the network for reports: 'query, not key (--format moco:key)'; '' if there is only one."""
        if self.wrapper:
            return f"behind '{self.wrapper}'"
        if not self.other_networks:
            return "" if self.network == "plain" else self.network
        others = " or ".join(self.other_networks)
        return f"{self.network}, not {others} (--format {self.format}:{self.other_networks[0]})"


@dataclasses.dataclass(frozen=True)
class _Match:
    """Table that accounts for every key of one dict in the file."""

    table: FormatTable
    where: str
    split: Split


def recognise(file: WeightsFile, *, expected: Shapes | None = None, format: str | None = None) -> Recognised:
    """Return the backbone in a file under canonical names, and its format.

    Several tables may match if they give the same tensors. Heads that belong to the backbone itself stay in it. If no
    table matches, the network is looked for behind a prefix of the user's own, such as 'model.' of a Lightning module.

    Args:
        file: result of `files.read`.
        expected: name -> shape of the backbone's own state dict, if known; decides between tables.
        format: required format: a name from model_converters/ or the path of a .yaml file; None tries all of them.
            'torchvision:teacher.' reads the network behind this prefix.

    Raises:
        WeightsError: no table accounts for every key, or several do with different results.
        UsageError: there is no such format.
    """
    format, wrapper = without_wrapper(format)
    tables = [table for name in ([format] if format else names.list_names("format")) for table in load_networks(name)]
    where, _ = likely_place(file.content, "", set())
    for place in {where, *(place for table in tables for place in table.file.state_dict)}:
        if (n := len(tensors_at(file.content, place))) > MAX_TENSORS:
            raise WeightsError(f"{file.path}: {n:,} tensors in one dict, more than any network has ({MAX_TENSORS:,})")
    marked = [table for table in tables if _has_marker(table, file)]
    conflicts: list[str] = []
    if not wrapper and (match := _best(file, marked or tables, expected, conflicts, named=format is not None)):
        return _result(match, file)
    tensors = tensors_at(file.content, where)
    usable = [table for table in marked or tables if _is_usable(table, file, expected)]
    tries = [(table, split) for table in usable if (split := _best_try(table, file)) is not None]
    # A file of a known format with some keys that nobody knows is no file of another network behind a prefix.
    known = not wrapper and any(
        split.canonical and not table.is_general and 2 * len(split.unknown) < len(tensors) for table, split in tries
    )
    if not (marked or known) and (
        found := _wrapped(file, tables, tensors, expected, wrapper=wrapper, named=format is not None)
    ):
        return dataclasses.replace(found, where=where)
    raise unrecognised(file, tensors, where=where, tries=tries, conflicts=conflicts, format=format)


def _best(
    file: WeightsFile, tables: Sequence[FormatTable], expected: Shapes | None, conflicts: list[str], *, named: bool
) -> _Match | None:
    """Return the match to use of all tables, None if there is none; contradictions of tables go to `conflicts`.

    Raises:
        WeightsError: two tables match with different tensors.
    """
    matches: list[_Match] = []
    for table in tables:
        match = _match(table, file, expected, conflicts, named=named)
        if match is not None and all(match.table.name != other.table.name for other in matches):
            matches.append(match)
    if not matches:
        return None
    if expected is not None:
        most = max(_coverage(match, expected) for match in matches)
        matches = [match for match in matches if _coverage(match, expected) == most]
    matches = [match for match in matches if not match.table.file.fallback] or matches
    matches = [match for match in matches if _is_preferred(match.table)] or matches
    matches.sort(key=lambda match: (match.table.is_general, match.table.name))
    for other in matches[1:]:
        if not _same(matches[0].split.canonical, other.split.canonical):
            raise _ambiguous(file, matches[0], other)
    return matches[0]


def _wrapped(
    file: WeightsFile,
    tables: Sequence[FormatTable],
    tensors: Mapping[str, Tensor],
    expected: Shapes | None,
    *,
    wrapper: str,
    named: bool,
) -> Recognised | None:
    """Return the only network whose keys a table accounts for behind a prefix; None if there is none.

    Args:
        file: the weights file.
        tables: tables to try.
        tensors: the tensors of one dict of the file.
        expected: names and shapes of the backbone, if known.
        wrapper: prefix named by the user; '' tries all prefixes with a fifth of the tensors.
        named: the user named the format.

    Raises:
        WeightsError: several prefixes hold a network.
    """
    keys = list(tensors)
    beginnings = dict.fromkeys(
        ".".join(key.split(".")[:n]) + "." for key in keys for n in range(1, min(key.count("."), 4) + 1)
    )
    usable = [
        table for table in tables if not table.file.marker and (table.file.needs_backbone or not table.file.fallback)
    ]
    found: dict[str, Recognised] = {}
    for prefix in [wrapper] if wrapper else sorted(beginnings, key=len):
        behind = {key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)}
        nested = any(prefix.startswith(shorter) for shorter in found)
        if not behind or nested or (not wrapper and 5 * len(behind) < len(keys)):
            continue
        inner = dataclasses.replace(file, content=behind)
        if match := _best(inner, usable, expected, [], named=named):
            found[prefix] = _result(match, inner)
    if len(found) > 1:
        first = next(iter(found))
        raise WeightsError(
            f"{file.path} holds {len(found)} networks: behind " + " and ".join(f"'{prefix}'" for prefix in found),
            f"Select one, such as --format {found[first].format}:{first}",
        )
    for prefix, one in found.items():
        others = [key for key in keys if not key.startswith(prefix)]
        return dataclasses.replace(
            one,
            prefix=prefix + one.prefix,
            dropped=(*(prefix + key for key in one.dropped), *others),
            ignored=(*one.ignored, *dict.fromkeys(_branch(key, prefix) for key in others)),
            wrapper=prefix,
        )
    return None


def _branch(key: str, prefix: str) -> str:
    """Return the part of the file that a key outside the prefix belongs to.

    >>> _branch("net.probe.0.weight", "net.backbone.")
    'net.probe.*'
    """
    segments, others = key.split("."), prefix.split(".")
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(segments, others, strict=False))))
    return ".".join(segments[: shared + 1]) + ("" if shared + 1 >= len(segments) else ".*")


def _is_preferred(table: FormatTable) -> bool:
    network = table.file.networks.get(table.network)
    return network is not None and network.preferred


def _has_marker(table: FormatTable, file: WeightsFile) -> bool:
    marker = table.file.marker
    if not marker or any(file.content.get(key) != value for key, value in marker.items()):
        return False
    if file.content.get("version") not in (None, 1):
        raise WeightsError(
            f"{file.path} has version {file.content['version']} of format {table.name}; this sslbench reads version 1",
            "Update sslbench.",
        )
    return True


def _match(
    table: FormatTable, file: WeightsFile, expected: Shapes | None, conflicts: list[str], *, named: bool
) -> _Match | None:
    """Return the match at the first dict whose every key the table accounts for; None if there is none.

    A table whose rules contradict each other on this file does not match; the contradiction is added to `conflicts`. A
    table named by the user need not satisfy its `detect` entry, which only decides between tables.
    """
    if not _is_usable(table, file, expected):
        return None
    for where in table.file.state_dict:
        tensors = tensors_at(file.content, where)
        if not tensors or not (named or table.detected(tensors)):
            continue
        try:
            split = _keep_backbone_heads(_with_heads(table, table.split(tensors), file), expected)
        except WeightsError as error:
            conflicts.append(error.message)
            continue
        complete = bool(split.canonical) and not split.unknown
        if table.file.needs_backbone and expected is not None:
            complete = complete and 2 * sum(name in split.canonical for name in expected) > len(expected)
        if complete:
            return _Match(table, where, split)
    return None


def _is_usable(table: FormatTable, file: WeightsFile, expected: Shapes | None) -> bool:
    if table.file.marker and not _has_marker(table, file):
        return False
    return not table.file.needs_backbone or expected is not None


def _best_try(table: FormatTable, file: WeightsFile) -> Split | None:
    """Return the split of the dict in which the table accounts for most keys; None if its rules contradict."""
    best: Split | None = None
    for where in table.file.state_dict:
        try:
            split = table.split(tensors_at(file.content, where))
        except WeightsError:
            continue
        if best is None or len(split.canonical) > len(best.canonical):
            best = split
    return best


def tensors_at(content: Mapping[str, Any], where: str) -> dict[str, Tensor]:
    """Return the tensors directly in the dict at a dotted path ('' is the whole content); empty if there are none."""
    level: Any = content
    for step in where.split(".") if where else []:
        level = level.get(step) if isinstance(level, Mapping) else None
    if not isinstance(level, Mapping):
        return {}
    return {key: value for key, value in level.items() if isinstance(value, Tensor)}


def _with_heads(table: FormatTable, split: Split, file: WeightsFile) -> Split:
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


def _coverage(match: _Match, expected: Shapes) -> int:
    canonical = match.split.canonical
    return sum(name in canonical and tuple(canonical[name].shape) == shape for name, shape in expected.items())


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)


def _result(match: _Match, file: WeightsFile) -> Recognised:
    split = match.split
    table, choices = _variant(match.table, split.canonical, file)
    backbone = file.content.get("backbone") if table.file.marker else None
    return Recognised(
        format=table.name,
        canonical=split.canonical,
        heads=split.heads,
        dropped=split.dropped,
        ignored=(*split.heads_met, *split.drops_met),
        backbone=backbone if isinstance(backbone, str) else None,
        where=match.where,
        prefix=split.prefix,
        network=table.network,
        other_networks=_other_networks(match.table, file),
        note=table.file.note,
        variant=table.variant,
        choices=choices,
        input=table.file.input,
        strides=table.file.strides,
    )


def _variant(
    table: FormatTable, canonical: Mapping[str, Tensor], file: WeightsFile
) -> tuple[FormatTable, dict[str, str]]:
    """Return the table of the variant detected in the file, and the variants to choose from if none is."""
    if table.variant or not table.file.variants:
        return table, {}
    channels = next((int(t.shape[1]) for name, t in canonical.items() if name in _STEMS and t.ndim == 4), 0)
    for name, variant in table.file.variants.items():
        if variant.channels and variant.channels == channels:
            return take_variant(table, name), {}
        if variant.marker and all(file.content.get(key) == value for key, value in variant.marker.items()):
            return take_variant(table, name), {}
    if all(variant.shows for variant in table.file.variants.values()):
        return table, {}
    return table, {name: variant.title for name, variant in table.file.variants.items() if not variant.channels}


_STEMS = ("conv1.weight", "features.0.weight", "patch_embed.proj.weight")


def refuse_undecided(found: Recognised, what: str) -> None:
    """Refuse a file whose variant is ambiguous.

    Args:
        found: backbone recognised in the file.
        what: name of the file in the message.

    Raises:
        WeightsError: the user has to choose a variant; the message lists them.
    """
    if not found.choices:
        return
    ways = "; ".join(f"{found.format}:{name} ({title})" for name, title in found.choices.items())
    raise WeightsError(
        f"{what} is of format {found.format}, whose files hold networks of several kinds, and its tensors do "
        f"not show which: {ways}",
        f"Give the network of its training, such as --format {found.format}:{next(iter(found.choices))}",
    )


def _other_networks(table: FormatTable, file: WeightsFile) -> tuple[str, ...]:
    """Return the format's networks, besides the selected one, that have keys in the file."""
    found = []
    for name in table.file.networks:
        other = schema.take(table.file, name)
        keys = {key for where in other.state_dict for key in tensors_at(file.content, where)}
        same_place = other.state_dict == table.file.state_dict and other.prefix == table.file.prefix
        if name != table.network and not same_place and any(key.startswith(other.prefix) for key in keys):
            found.append(name)
    return tuple(found)


def _ambiguous(file: WeightsFile, first: _Match, second: _Match) -> WeightsError:
    ways = " or ".join(f"{m.table.name} (at {m.where or 'the top of the file'})" for m in (first, second))
    return WeightsError(
        f"{file.path} matches two formats that disagree: {ways}",
        f"Select one, such as --format {first.table.name}.",
    )


def likely_place(content: Mapping[str, Any], where: str, seen: set[int]) -> tuple[str, list[str]]:
    """Return the dotted path and the keys of the dict in the file that holds the most tensors."""
    seen.add(id(content))
    best = (where, list(tensors_at(content, "")))
    for key, value in content.items():
        if isinstance(value, Mapping) and id(value) not in seen:
            inner = likely_place(value, f"{where}.{key}" if where else key, seen)
            best = max(best, inner, key=lambda found: len(found[1]))
    return best
