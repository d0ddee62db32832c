"""Whose key names a weights file has: exactly one table must explain every key."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sslbench import names
from sslbench.errors import WeightsError
from sslbench.weights.formats import schema
from sslbench.weights.formats.schema import Input, Strides
from sslbench.weights.formats.tables import Split, Table, load_networks, take_variant
from sslbench.weights.reading.files import WeightsFile
from sslbench.weights.save import CHECKPOINT_FORMAT


def unrecognised(
    file: WeightsFile,
    tensors: Mapping[str, Tensor],
    *,
    where: str,
    tries: Sequence[tuple[Table, Split]],
    quarrels: Sequence[str],
    format: str | None,
) -> WeightsError:
    """Says what the keys look like, which format comes closest and what it does not know.

    Args:
        file: that was read.
        tensors: of the place in it that has the most.
        where: that place.
        tries: what each table makes of the file.
        quarrels: what tables say against it.
        format: that the user named.
    """
    keys = list(tensors)
    if not keys:
        holds = ", ".join(f"'{key}'" for key in list(file.content)[:5]) or "nothing"
        stubs = f"; classes that were not loaded: {', '.join(file.stubbed[:3])}" if file.stubbed else ""
        return WeightsError(f"{file.path} holds no tensors; it holds {holds}{stubs}", "Save model.state_dict().")
    if file.content.get("format") == CHECKPOINT_FORMAT:
        what = "a detector" if "detector" in file.content or "model" in file.content else "linear heads"
        return WeightsError(
            f"{file.path} is a checkpoint of the training of {what}, not weights of a backbone",
            "The command that wrote it continues from it, and writes its results when it ends.",
        )
    message = f"{file.path} is not of format {format}" if format else f"{file.path} has key names of no known format"
    message += f": its {len(keys)} tensors" + (f" at '{where}'" if where else "")
    message += " are " + ", ".join(f"'{key}'" for key in keys[:3]) + (" ..." if len(keys) > 3 else "")
    hint = _prefix_hint(tensors) or _closest(tries)
    hint += f"; {quarrels[0]}" if quarrels else ""
    return WeightsError(
        message + hint,
        "Give --format NAME if you know it (sslbench list formats), or your own network: --backbone MODULE:FUNCTION.",
    )


def _prefix_hint(tensors: Mapping[str, Tensor]) -> str:
    """Says which beginning of many keys hides names that are known."""
    keys = list(tensors)
    beginnings = {".".join(key.split(".")[:n]) + "." for key in keys for n in range(1, min(key.count("."), 4) + 1)}
    tables = [t for name in names.list_names("format") for t in load_networks(name) if not t.file.fallback]
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


def _closest(tries: Sequence[tuple[Table, Split]]) -> str:
    known = [(table, s) for table, s in tries if s.canonical and s.unknown and not table.file.fallback]
    if not known:
        return ""
    table, split = max(known, key=lambda pair: (len(pair[1].canonical), -len(pair[1].unknown), not pair[0].is_general))
    if len(split.canonical) < len(split.unknown):
        return ""
    return f"; closest is {table.name}, which does not know {len(split.unknown)} of them, such as '{split.unknown[0]}'"


def common_prefix(keys: Iterable[str]) -> str:
    """The whole dotted segments that all keys start with, with the dot at the end; '' if there are none."""
    shared: list[str] | None = None
    for key in keys:
        segments = key.split(".")[:-1]
        pairs = zip(segments, segments if shared is None else shared, strict=False)
        shared = [left for left, right in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "".join(f"{segment}." for segment in shared or [])


# Buffers that torch < 0.4.1 did not write, and that other tools drop: the only tensors that may be missing.
OPTIONAL_LEAF = "num_batches_tracked"

MAX_TENSORS = 10_000
"""More are refused: every format would be tried on each of them, for minutes. A ViT-G with its heads has 1,000."""

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
        network: which of several copies of the backbone was taken ('query', 'teacher'); '' where there is only one.
        other_networks: those that the file holds besides.
        note: what the table says that users of the weights should know.
        variant: of the format, that was named or shows in the file ('colorization', 'msra'); '' where there is none.
        choices: variants between which the file does not tell, and their titles: the user must choose; empty where
            there is no doubt.
        input: images that the network was trained on; None where the table does not say.
        strides: of a ResNet; None where the table does not say.
        changes: what was done to `canonical` since, in words: a stem mapped to other channels, for instance.
    """

    format: str
    canonical: dict[str, Tensor]
    heads: dict[str, Tensor]
    dropped: tuple[str, ...]
    ignored: tuple[str, ...]
    backbone: str | None
    where: str
    prefix: str
    network: str = ""
    other_networks: tuple[str, ...] = ()
    note: str = ""
    variant: str = ""
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    input: Input | None = None
    strides: Strides | None = None
    changes: tuple[str, ...] = ()

    @property
    def network_text(self) -> str:
        """The network as a report names it: 'query, not key (--format moco:key)'; '' when there was no choice."""
        if not self.other_networks:
            return "" if self.network == "plain" else self.network
        others = " or ".join(self.other_networks)
        return f"{self.network}, not {others} (--format {self.format}:{self.other_networks[0]})"


@dataclasses.dataclass(frozen=True)
class _Reading:
    """A table that explains every key of one place in the file."""

    table: Table
    where: str
    split: Split


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
    tables = [table for name in ([format] if format else names.list_names("format")) for table in load_networks(name)]
    for where in {where for table in tables for where in table.file.state_dict}:
        if (n := len(tensors_at(file.content, where))) > MAX_TENSORS:
            raise WeightsError(f"{file.path}: {n:,} tensors in one dict, more than any network has ({MAX_TENSORS:,})")
    marked = [table for table in tables if _has_marker(table, file)]
    quarrels: list[str] = []
    claims: list[_Reading] = []
    for table in marked or tables:
        reading = _read(table, file, expected, quarrels, named=format is not None)
        if reading is not None and all(reading.table.name != other.table.name for other in claims):
            claims.append(reading)
    if not claims:
        usable = [table for table in marked or tables if _is_usable(table, file, expected)]
        tries = [(table, split) for table in usable if (split := _best_try(table, file)) is not None]
        where, _ = likely_place(file.content, "", set())
        raise unrecognised(
            file, tensors_at(file.content, where), where=where, tries=tries, quarrels=quarrels, format=format
        )
    if expected is not None:
        most = max(_coverage(reading, expected) for reading in claims)
        claims = [reading for reading in claims if _coverage(reading, expected) == most]
    claims = [reading for reading in claims if not reading.table.file.fallback] or claims
    claims = [reading for reading in claims if _is_preferred(reading.table)] or claims
    claims.sort(key=lambda reading: (reading.table.is_general, reading.table.name))
    for other in claims[1:]:
        if not _same(claims[0].split.canonical, other.split.canonical):
            raise _ambiguous(file, claims[0], other)
    return _result(claims[0], file)


def _is_preferred(table: Table) -> bool:
    network = table.file.networks.get(table.network)
    return network is not None and network.preferred


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


def _read(
    table: Table, file: WeightsFile, expected: Shapes | None, quarrels: list[str], *, named: bool
) -> _Reading | None:
    """The first place in the file that the table explains wholly, or None.

    A table whose rules quarrel over this file does not explain it; what they quarrel about is added to `quarrels`. One
    that the user named need not show by its `detect` entry, which only chooses between tables.
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
            quarrels.append(error.message)
            continue
        claims = bool(split.canonical) and not split.unknown
        if table.file.needs_backbone and expected is not None:
            claims = claims and 2 * sum(name in split.canonical for name in expected) > len(expected)
        if claims:
            return _Reading(table, where, split)
    return None


def _is_usable(table: Table, file: WeightsFile, expected: Shapes | None) -> bool:
    if table.file.marker and not _has_marker(table, file):
        return False
    return not table.file.needs_backbone or expected is not None


def _best_try(table: Table, file: WeightsFile) -> Split | None:
    """What the table makes of the place that it explains best, for the message that nothing fits."""
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
    table, choices = _variant(reading.table, split.canonical, file)
    backbone = file.content.get("backbone") if table.file.marker else None
    return Recognised(
        format=table.name,
        canonical=split.canonical,
        heads=split.heads,
        dropped=split.dropped,
        ignored=(*split.heads_met, *split.drops_met),
        backbone=backbone if isinstance(backbone, str) else None,
        where=reading.where,
        prefix=split.prefix,
        network=table.network,
        other_networks=_other_networks(reading.table, file),
        note=table.file.note,
        variant=table.variant,
        choices=choices,
        input=table.file.input,
        strides=table.file.strides,
    )


def _variant(table: Table, canonical: Mapping[str, Tensor], file: WeightsFile) -> tuple[Table, dict[str, str]]:
    """Return the table for the variant that shows in the file, and the variants to choose from where none does."""
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
    """Refuse a file that may hold networks of several kinds, which its tensors do not tell apart.

    Args:
        found: in the file.
        what: the file, for the message.

    Raises:
        WeightsError: the user has to choose; the message says between what.
    """
    if not found.choices:
        return
    ways = "; ".join(f"{found.format}:{name} ({title})" for name, title in found.choices.items())
    raise WeightsError(
        f"{what} is of format {found.format}, whose files hold networks of several kinds, and its tensors do not tell "
        f"which: {ways}",
        f"Say which, as its training did: --format {found.format}:{next(iter(found.choices))}",
    )


def _other_networks(table: Table, file: WeightsFile) -> tuple[str, ...]:
    """Those that have keys in the file, each at its places and behind its prefixes."""
    found = []
    for name in table.file.networks:
        other = schema.take(table.file, name)
        keys = {key for where in other.state_dict for key in tensors_at(file.content, where)}
        same_place = other.state_dict == table.file.state_dict and other.prefix == table.file.prefix
        if name != table.network and not same_place and any(key.startswith(other.prefix) for key in keys):
            found.append(name)
    return tuple(found)


def _ambiguous(file: WeightsFile, first: _Reading, second: _Reading) -> WeightsError:
    ways = " or ".join(f"{r.table.name} (at {r.where or 'the top of the file'})" for r in (first, second))
    return WeightsError(
        f"{file.path} can be read in two ways that differ: {ways}",
        f"Say which: --format {first.table.name}, for instance.",
    )


def likely_place(content: Mapping[str, Any], where: str, seen: set[int]) -> tuple[str, list[str]]:
    """The dict in the file that has the most tensors: its dotted path and keys."""
    seen.add(id(content))
    best = (where, list(tensors_at(content, "")))
    for key, value in content.items():
        if isinstance(value, Mapping) and id(value) not in seen:
            inner = likely_place(value, f"{where}.{key}" if where else key, seen)
            best = max(best, inner, key=lambda found: len(found[1]))
    return best
