"""Rename tables: one YAML per weight format in model_converters/, applied in both directions.

A rule is a pair of full keys with named holes. Rules have no order and no priority: a key that matches two of them is
an error of the table, and so is a rule that is not invertible.
"""

import dataclasses
import functools
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from sslbench import names
from sslbench.config import read_yaml
from sslbench.errors import UsageError, WeightsError
from sslbench.weights import save
from sslbench.weights.format_name import FormatName, find_format
from sslbench.weights.formats import rules, schema
from sslbench.weights.formats.rules import Pattern
from sslbench.weights.formats.schema import Rule, TableFile

NOTE = "sslbench"  # key of the provenance, in layouts with entries beside the state dict


@dataclasses.dataclass(frozen=True)
class Split:
    """A file's tensors, sorted by a table.

    Attributes:
        canonical: canonical name -> tensor of the backbone.
        heads: name without prefix -> tensor of the heads.
        heads_met: summaries of the head patterns that matched: 'fc.*'.
        unknown: full keys that match nothing.
        prefix: prefix of the backbone's keys.
    """

    canonical: dict[str, Tensor]
    heads: dict[str, Tensor]
    dropped: tuple[str, ...]
    heads_met: tuple[str, ...]
    drops_met: tuple[str, ...]
    unknown: tuple[str, ...]
    prefix: str


@dataclasses.dataclass(frozen=True)
class FormatTable:
    """Rename table of one format, checked: every rule is invertible.

    Attributes:
        name: name of the format: the file name without .yaml.
        network: selected copy of the backbone; '' if the format has one copy.
        variant: variant named by the user or detected; '' if none.
    """

    name: str
    file: TableFile
    rules: tuple[Rule, ...]
    network: str = ""
    variant: str = ""

    @property
    def is_general(self) -> bool:
        """Presence of a rule with a `*` hole; if two tables agree, the more specific one names the format."""
        return any(hole.endswith("*") for rule in self.rules for key in rule.foreign for hole in key.holes)

    def to_canonical(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Return canonical name -> tensor, and the keys that the table drops, heads included."""
        found = self.split(tensors)
        if found.unknown:
            listed = ", ".join(f"'{key}'" for key in found.unknown[:3])
            raise WeightsError(f"format {self.name}: {len(found.unknown)} keys fit no rule: {listed}")
        return found.canonical, (*found.dropped, *(found.prefix + key for key in found.heads))

    def split(self, tensors: Mapping[str, Tensor]) -> Split:
        """Sort every key into backbone, heads, dropped and unknown; drops are matched first, then heads, then rules."""
        drops, heads_patterns = _parse_all(self.file.drop), _parse_all(self.file.heads)
        # The prefix of the majority of keys; the longest if several qualify.
        kept = [key for key in tensors if not _first_match(drops, key)]
        counts = {prefix: sum(key.startswith(prefix) for key in kept) for prefix in self.file.prefix}
        enough = [prefix for prefix in self.file.prefix if prefix and counts[prefix] * 2 > len(kept)]
        prefix = max(enough or [p for p in counts if counts[p] == max(counts.values())], key=len)
        heads: dict[str, Tensor] = {}
        dropped: list[str] = []
        unknown: list[str] = []
        heads_met: dict[str, None] = {}  # dicts keep the order
        drops_met: dict[str, None] = {}
        renames: dict[tuple[int, str], _Rename] = {}
        for key, tensor in tensors.items():
            if pattern := _first_match(drops, key):
                dropped.append(key)
                drops_met[pattern.summary()] = None
                continue
            short = key.removeprefix(prefix) if key.startswith(prefix) else None
            if short and (pattern := _first_match(heads_patterns, short)):
                heads[short] = tensor
                heads_met[pattern.summary()] = None
            elif not short or not self._add(short, tensor, renames, inverse=False):
                unknown.append(key)
        canonical, incomplete = self._apply(renames, inverse=False)
        unknown += [prefix + key for key in incomplete]
        return Split(canonical, heads, tuple(dropped), tuple(heads_met), tuple(drops_met), tuple(unknown), prefix)

    def from_canonical(self, tensors: Mapping[str, Tensor], *, prefix: str | None = None) -> dict[str, Tensor]:
        """Return the format's own key -> tensor; the exact inverse of `to_canonical`, heads included.

        tensors: canonical name -> tensor, and heads under the names in `Split.heads`.
        """
        prefix = self.file.prefix[0] if prefix is None else prefix
        heads_patterns = _parse_all(self.file.heads)
        renames: dict[tuple[int, str], _Rename] = {}
        heads, unknown = {}, []
        for key, tensor in tensors.items():
            if _first_match(heads_patterns, key):
                heads[key] = tensor
            elif not self._add(key, tensor, renames, inverse=True):
                unknown.append(key)
        foreign, incomplete = self._apply(renames, inverse=True)
        unknown += incomplete
        if unknown:
            listed = ", ".join(f"'{key}'" for key in unknown[:3])
            raise WeightsError(f"format {self.name} has no name for {len(unknown)} tensors: {listed}")
        if both := set(foreign) & set(heads):
            raise WeightsError(f"format {self.name}: two tensors would be called '{min(both)}'")
        return {prefix + key: tensor for key, tensor in {**foreign, **heads}.items()}

    def detected(self, keys: Mapping[str, Any]) -> bool:
        """Return True if the keys satisfy the table's `detect` entry."""
        lines = "\n".join(("", *keys))

        def some(text: str) -> bool:
            pattern = rules.parse_pattern(text)
            # Most patterns begin as no key does: one search of all keys says so sooner than a look at each.
            return f"\n{pattern.start}" in lines and any(pattern.match(key) is not None for key in keys)

        ways = self.file.detect
        return not ways or any(all(map(some, way.present)) and not any(map(some, way.absent)) for way in ways)

    def _add(self, key: str, tensor: Tensor, renames: "dict[tuple[int, str], _Rename]", *, inverse: bool) -> bool:
        """Add the tensor to the rename of the one rule that matches its key; return False if no rule does."""
        matches = [
            (number, part, values)
            for number, rule in enumerate(self.rules)
            for part, pattern in enumerate(rule.canonical if inverse else rule.foreign)
            if (values := pattern.match(key)) is not None
        ]
        if len(matches) > 1:
            both = " and ".join(str(self.rules[number]) for number, _, _ in matches[:2])
            raise WeightsError(f"format {self.name}: '{key}' fits two rules: {both}", "Correct the table.")
        if not matches:
            return False
        number, part, values = matches[0]
        # Keys of one rule with the same text in their holes are joined: the queries, keys and values of one block.
        rename = renames.setdefault((number, repr(sorted(values.items()))), _Rename(self.rules[number], values, {}))
        rename.parts[part] = (key, tensor)
        return True

    def _apply(
        self, renames: "dict[tuple[int, str], _Rename]", *, inverse: bool
    ) -> tuple[dict[str, Tensor], list[str]]:
        """Return the renamed tensors, and the keys of incomplete concatenations."""
        renamed: dict[str, Tensor] = {}
        origin: dict[str, str] = {}
        incomplete: list[str] = []
        for rename in renames.values():
            sources = rename.rule.canonical if inverse else rename.rule.foreign
            if len(rename.parts) < len(sources):
                incomplete += [key for key, _ in rename.parts.values()]
                continue
            first = rename.parts[0][0]
            for name, tensor in rename.apply(inverse=inverse):
                if name in renamed:
                    raise WeightsError(f"format {self.name}: '{origin[name]}' and '{first}' both become '{name}'")
                renamed[name], origin[name] = tensor, first
        return renamed, incomplete


@dataclasses.dataclass(frozen=True)
class _Rename:
    """One rule applied to one set of keys.

    Attributes:
        parts: position among the rule's keys -> (key, tensor).
    """

    rule: Rule
    values: dict[str, str]
    parts: dict[int, tuple[str, Tensor]]

    def apply(self, *, inverse: bool) -> list[tuple[str, Tensor]]:
        targets = self.rule.foreign if inverse else self.rule.canonical
        key = self.parts[0][0]
        tensors = [self.parts[position][1] for position in sorted(self.parts)]
        for target in targets:
            if target.match(target.fill(self.values)) != self.values:
                raise WeightsError(f"the rule {self.rule} is not invertible for '{key}': its holes are ambiguous")
        try:
            whole = rules.concat(tensors, self.rule.shares) if len(tensors) > 1 else tensors[0]
            whole = rules.apply(self.rule.operations, whole, key=key, inverse=inverse)
            pieces = rules.split(whole, self.rule.shares) if len(targets) > 1 else [whole]
        except ValueError as error:
            raise WeightsError(f"the rule {self.rule} does not fit '{key}': it {error}") from error
        return [(target.fill(self.values), piece) for target, piece in zip(targets, pieces, strict=True)]


def load_table(name: str) -> FormatTable:
    """Return the table of a format name or of a path that ends in .yaml.

    'moco:key' selects the network 'key' of format moco, 'detectron2:msra' the variant 'msra' of format detectron2;
    the prefix in 'torchvision:teacher.' is no part of the table.

    >>> import torch
    >>> table = load_table("moco")
    >>> table.network, table.from_canonical({"conv1.weight": torch.zeros(64, 3, 7, 7)}).keys()
    ('query', dict_keys(['module.encoder_q.conv1.weight']))
    """
    tables = load_networks(name)
    first = next(iter(tables[0].file.networks), "")
    return next((table for table in tables if table.network == first), tables[0])


def load_networks(name: str) -> list[FormatTable]:
    """Return the table once for each of its networks, preferred ones first, or only for the one after the colon."""
    return networks_of(find_format(name))


def networks_of(found: FormatName) -> list[FormatTable]:
    """Return the networks of a format that was found, as `load_networks` does."""
    # The time of the last change is part of the cache's key, so that an edited table is read again.
    table = _load(found.name, found.path, found.path.stat().st_mtime_ns)
    network = found.network
    if network in table.file.variants:
        table, network = take_variant(table, str(network)), None
    if network is None:
        order = sorted(table.file.networks, key=lambda known: not table.file.networks[known].preferred)
        return [take(table, known) for known in order] or [table]
    if network not in table.file.networks:
        known = [*table.file.networks, *table.file.variants]
        remedy = names.did_you_mean(network, known) if known else "Its files hold only one."
        raise UsageError(f"format {found.name} has no network or variant '{network}'", remedy)
    return [take(table, network)]


def take(table: FormatTable, network: str) -> FormatTable:
    """Return the table restricted to one of its networks."""
    return dataclasses.replace(table, file=schema.take(table.file, network), network=network)


def take_variant(table: FormatTable, name: str) -> FormatTable:
    """Return the table of one of its variants, with the variant's input, strides and rules."""
    file, rules = schema.take_variant(table.file, table.rules, name, where=f"format {table.name}")
    return dataclasses.replace(table, file=file, rules=rules, variant=name)


@functools.lru_cache(maxsize=256)
def _load(name: str, path: Path, _changed: int) -> FormatTable:
    """Load a table; cached, because recognising a file needs all tables."""
    return parse_table(name, read_yaml(path), where=str(path))


def parse_table(name: str, values: Mapping[str, Any], *, where: str) -> FormatTable:
    """Parse and check the content of a table's YAML."""
    file, rules = schema.parse(values, where=where)
    return FormatTable(name, file, rules)


def _parse_all(texts: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(rules.parse_pattern(text) for text in texts)


def _first_match(candidates: tuple[Pattern, ...], key: str) -> Pattern | None:
    return next((pattern for pattern in candidates if pattern.match(key) is not None), None)


def check_layout(path: Path, table: FormatTable) -> None:
    """Raise if files of the format do not exist in the container that the suffix of `path` selects."""
    suffix = path.suffix.lower()
    if suffix == ".safetensors" and (table.file.marker or "" not in table.file.state_dict):
        raise UsageError(
            f"format {table.name} cannot be a .safetensors file: it has entries beside its tensors",
            "Give OUT another suffix, such as .pth.",
        )
    if suffix == ".pkl" and table.file.write.pickle is None:
        raise UsageError(
            f"format {table.name} has no .pkl files (pickles of numpy arrays)", "Give OUT another suffix, such as .pth."
        )
    if suffix in (".npz", ".npy"):
        raise UsageError(f"{suffix} files can be read but not written", "Give OUT another suffix, such as .pth.")


def write(
    path: Path,
    table: FormatTable,
    tensors: Mapping[str, Tensor],
    *,
    heads_beside: Mapping[str, Tensor],
    backbone: str,
    note: Mapping[str, Any],
) -> None:
    """Write tensors that already have the format's keys.

    tensors: key -> tensor.
    heads_beside: key -> tensor of heads stored in a dict of their own (`heads_at`).
    """
    suffix = path.suffix.lower()
    if table.name == save.FORMAT:
        content = save.own_content(tensors, backbone=backbone, metadata=note, heads=heads_beside)
        save.write_torch(path, content)
    elif suffix == ".safetensors":
        flat = {key: tensor.contiguous() for key, tensor in _with_own_storage(tensors).items()}
        # transformers refuses files of safetensors without this entry.
        metadata = {"format": "pt", **{key: str(value) for key, value in note.items()}}
        path.write_bytes(safetensors_bytes(flat, metadata))
    elif suffix == ".pkl":
        arrays = {key: _array(key, tensor) for key, tensor in tensors.items()}
        content = _nested(table, arrays, {}, {**(table.file.write.pickle or {}), NOTE: dict(note)})
        path.write_bytes(pickle.dumps(content, protocol=4))
    else:
        beside = {**(table.file.marker or {}), **table.file.write.torch, NOTE: dict(note)}
        content = _nested(table, _with_own_storage(tensors), _with_own_storage(heads_beside), beside)
        save.write_torch(path, content)


def _nested(
    table: FormatTable, tensors: Mapping[str, Any], heads: Mapping[str, Any], beside: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of a file, with `tensors` at the first `state_dict` place of the table.

    A file that is itself the state dict holds neither heads nor other entries beside it.
    """
    place = table.file.state_dict[0]
    if place == "":
        return dict(tensors)
    content = dict(beside)
    _put(content, place, dict(tensors))
    for where in table.file.heads_at:
        _put(content, where, dict(heads))  # empty without heads: VISSL's reader asks for it
    return content


def _put(content: dict[str, Any], where: str, value: dict[str, Any]) -> None:
    *steps, last = where.split(".")
    for step in steps:
        content = content.setdefault(step, {})
    content[last] = value


def _with_own_storage(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy views of larger tensors, because torch.save writes the whole storage behind a view."""
    return {
        key: tensor if tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size() else tensor.clone()
        for key, tensor in tensors.items()
    }


def _array(key: str, tensor: Tensor) -> np.ndarray[Any, Any]:
    try:
        # `ascontiguousarray` gives a scalar the shape (1,).
        return np.ascontiguousarray(tensor.numpy()).reshape(tuple(tensor.shape))
    except TypeError as error:
        raise WeightsError(f"a .pkl of numpy arrays cannot hold '{key}': {error}", "Write a .pth file.") from error
