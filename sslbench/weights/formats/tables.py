"""Rename tables: one YAML per weight format in model_converters/, read both ways.

A rule is a pair of full keys with named holes. There is no order and no priority among rules: a key that fits two of
them is an error of the table, and so is a rule that cannot be undone.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from sslbench import names
from sslbench.config import read_yaml
from sslbench.errors import UsageError, WeightsError
from sslbench.weights.formats import operations, patterns, schema
from sslbench.weights.formats.patterns import Pattern
from sslbench.weights.formats.schema import Detect, Rule, TableFile


@dataclasses.dataclass(frozen=True)
class Split:
    """A file's tensors after a table has gone over them.

    Attributes:
        canonical: canonical name -> tensor.
        heads: name without prefix -> tensor.
        dropped: full keys that the table drops.
        heads_met: the patterns of heads that were met, as a report names them: 'fc.*'.
        drops_met: the same of dropped keys.
        unknown: full keys that fit nothing.
        prefix: which prefix the backbone's keys have.
    """

    canonical: dict[str, Tensor]
    heads: dict[str, Tensor]
    dropped: tuple[str, ...]
    heads_met: tuple[str, ...]
    drops_met: tuple[str, ...]
    unknown: tuple[str, ...]
    prefix: str


@dataclasses.dataclass(frozen=True)
class Table:
    """A rename table, checked: every rule can be undone.

    Attributes:
        name: of the format: the file's name without .yaml.
        file: what the YAML says.
        rules: parsed.
        network: which of several copies of the backbone it takes; '' for formats that have one.
        variant: of the table, that was named or shows; '' where there is none.
    """

    name: str
    file: TableFile
    rules: tuple[Rule, ...]
    network: str = ""
    variant: str = ""

    @property
    def is_general(self) -> bool:
        """Whether a rule takes keys as they come; of two tables that agree, the other one names the format."""
        return any(hole.endswith("*") for rule in self.rules for key in rule.foreign for hole in key.holes)

    def to_canonical(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """Canonical name -> tensor, and the keys that the table drops (heads among them).

        Raises:
            WeightsError: a key fits no rule, or two; two keys have one target.
        """
        found = self.split(tensors)
        if found.unknown:
            listed = ", ".join(f"'{key}'" for key in found.unknown[:3])
            raise WeightsError(f"format {self.name}: {len(found.unknown)} keys fit no rule: {listed}")
        return found.canonical, (*found.dropped, *(found.prefix + key for key in found.heads))

    def split(self, tensors: Mapping[str, Tensor]) -> Split:
        """Sort every key into backbone, heads, dropped and unknown; drops are looked at first, then heads, then rules.

        Raises:
            WeightsError: a key fits two rules; two keys have one target; a rule cannot be undone for a key.
        """
        drops, heads_patterns = _parse_all(self.file.drop), _parse_all(self.file.heads)
        prefix = self._prefix(tensors, drops)
        heads: dict[str, Tensor] = {}
        dropped: list[str] = []
        unknown: list[str] = []
        met: tuple[dict[str, None], dict[str, None]] = ({}, {})  # heads, drops; dicts keep the order
        jobs: dict[tuple[int, str], _Job] = {}
        for key, tensor in tensors.items():
            if fits := _first_fit(drops, key):
                dropped.append(key)
                met[1][fits.summary()] = None
                continue
            short = key.removeprefix(prefix) if key.startswith(prefix) else None
            if short and (fits := _first_fit(heads_patterns, short)):
                heads[short] = tensor
                met[0][fits.summary()] = None
            elif not short or not self._take(short, tensor, jobs, inverse=False):
                unknown.append(key)
        canonical, halves = self._finish(jobs, inverse=False)
        unknown += [prefix + key for key in halves]
        return Split(canonical, heads, tuple(dropped), tuple(met[0]), tuple(met[1]), tuple(unknown), prefix)

    def from_canonical(self, tensors: Mapping[str, Tensor], *, prefix: str | None = None) -> dict[str, Tensor]:
        """The format's own keys -> tensors; the exact inverse of `to_canonical`, heads included.

        Args:
            tensors: canonical names, and heads as `split` names them.
            prefix: one of the table's prefixes; the first when left out.

        Raises:
            WeightsError: the format has no name for a tensor, or two; two tensors have one name.
        """
        prefix = self.file.prefix[0] if prefix is None else prefix
        heads_patterns = _parse_all(self.file.heads)
        jobs: dict[tuple[int, str], _Job] = {}
        heads, unknown = {}, []
        for key, tensor in tensors.items():
            if _first_fit(heads_patterns, key):
                heads[key] = tensor
            elif not self._take(key, tensor, jobs, inverse=True):
                unknown.append(key)
        foreign, halves = self._finish(jobs, inverse=True)
        unknown += halves
        if unknown:
            listed = ", ".join(f"'{key}'" for key in unknown[:3])
            raise WeightsError(f"format {self.name} has no name for {len(unknown)} tensors: {listed}")
        if both := set(foreign) & set(heads):
            raise WeightsError(f"format {self.name}: two tensors would be called '{min(both)}'")
        return {prefix + key: tensor for key, tensor in {**foreign, **heads}.items()}

    def detected(self, keys: Mapping[str, Any]) -> bool:
        """Whether the keys show the format as `detect` says."""
        return not self.file.detect or any(_detect_holds(way, keys) for way in self.file.detect)

    def _prefix(self, tensors: Mapping[str, Tensor], drops: tuple[Pattern, ...]) -> str:
        """The prefix that most keys have; of several that do, the longest."""
        keys = [key for key in tensors if not _first_fit(drops, key)]
        counts = {prefix: sum(key.startswith(prefix) for key in keys) for prefix in self.file.prefix}
        most = max(counts.values())
        enough = [prefix for prefix in self.file.prefix if prefix and counts[prefix] * 2 > len(keys)]
        return max(enough or [p for p in counts if counts[p] == most], key=len)

    def _take(self, key: str, tensor: Tensor, jobs: "dict[tuple[int, str], _Job]", *, inverse: bool) -> bool:
        """Put the tensor where its one rule wants it; False when no rule fits."""
        fits = [
            (number, part, values)
            for number, rule in enumerate(self.rules)
            for part, pattern in enumerate(rule.canonical if inverse else rule.foreign)
            if (values := pattern.match(key)) is not None
        ]
        if len(fits) > 1:
            both = " and ".join(str(self.rules[number]) for number, _, _ in fits[:2])
            raise WeightsError(f"format {self.name}: '{key}' fits two rules: {both}", "The table must be mended.")
        if not fits:
            return False
        number, part, values = fits[0]
        job = jobs.setdefault((number, repr(sorted(values.items()))), _Job(self.rules[number], values, {}))
        job.parts[part] = (key, tensor)
        return True

    def _finish(self, jobs: "dict[tuple[int, str], _Job]", *, inverse: bool) -> tuple[dict[str, Tensor], list[str]]:
        """Renamed tensors, and the keys whose counterparts (of a concatenation) are not there."""
        renamed: dict[str, Tensor] = {}
        origin: dict[str, str] = {}
        halves: list[str] = []
        for job in jobs.values():
            sources = job.rule.canonical if inverse else job.rule.foreign
            if len(job.parts) < len(sources):
                halves += [key for key, _ in job.parts.values()]
                continue
            first = job.parts[0][0]
            for name, tensor in job.run(inverse=inverse):
                if name in renamed:
                    raise WeightsError(f"format {self.name}: '{origin[name]}' and '{first}' both become '{name}'")
                renamed[name], origin[name] = tensor, first
        return renamed, halves


@dataclasses.dataclass(frozen=True)
class _Job:
    """The tensors that one rule turns into others: `parts` is position among the rule's keys -> (key, tensor)."""

    rule: Rule
    values: dict[str, str]
    parts: dict[int, tuple[str, Tensor]]

    def run(self, *, inverse: bool) -> list[tuple[str, Tensor]]:
        targets = self.rule.foreign if inverse else self.rule.canonical
        key = self.parts[0][0]
        tensors = [self.parts[position][1] for position in sorted(self.parts)]
        for target in targets:
            if target.match(target.fill(self.values)) != self.values:
                raise WeightsError(f"the rule {self.rule} cannot be undone for '{key}': its holes are ambiguous")
        try:
            whole = operations.concat(tensors) if len(tensors) > 1 else tensors[0]
            if len(targets) == 1:
                whole = operations.apply(self.rule.operations, whole, key=key, inverse=inverse)
                return [(targets[0].fill(self.values), whole)]
            whole = operations.apply(self.rule.operations, whole, key=key, inverse=inverse)
            pieces = operations.split(whole, len(targets))
        except ValueError as error:
            raise WeightsError(f"the rule {self.rule} does not fit '{key}': it {error}") from error
        return [(target.fill(self.values), piece) for target, piece in zip(targets, pieces, strict=True)]


def load_table(name: str) -> Table:
    """Return the table of that name, or of a path that ends in .yaml.

    'moco:key' takes the network 'key' of format moco, 'detectron2:msra' the variant 'msra' of format detectron2.

    Raises:
        UsageError: there is none, it is not a valid table, or it has no such network or variant.
    """
    tables = load_networks(name)
    first = next(iter(tables[0].file.networks), "")
    return next((table for table in tables if table.network == first), tables[0])


def load_networks(name: str) -> list[Table]:
    """Return the table once for each of its networks, preferred ones first; only what is named after the colon, if any.

    Raises:
        UsageError: as `load_table`.
    """
    name, colon, network = name.partition(":") if "/" not in name.rpartition(":")[2] else (name, "", "")
    path = names.find_file("format", name)
    table = _load(Path(name).stem if name.endswith(".yaml") else name, path, path.stat().st_mtime_ns)
    if network in table.file.variants:
        table, colon = take_variant(table, network), ""
    if not colon:
        order = sorted(table.file.networks, key=lambda known: not table.file.networks[known].preferred)
        return [take(table, known) for known in order] or [table]
    if network not in table.file.networks:
        known = [*table.file.networks, *table.file.variants]
        remedy = names.did_you_mean(network, known) if known else "Its files hold only one."
        raise UsageError(f"format {name} has no network or variant '{network}'", remedy)
    return [take(table, network)]


def take(table: Table, network: str) -> Table:
    """The table for one of its networks."""
    return dataclasses.replace(table, file=schema.take(table.file, network), network=network)


def take_variant(table: Table, name: str) -> Table:
    """Return the table for one of its variants: another input, other strides, perhaps other rules."""
    file, rules = schema.take_variant(table.file, table.rules, name, where=f"format {table.name}")
    return dataclasses.replace(table, file=file, rules=rules, variant=name)


@functools.lru_cache(maxsize=256)
def _load(name: str, path: Path, _changed: int) -> Table:
    """Parsed once: recognising a file looks at all tables."""
    return parse_table(name, read_yaml(path), where=str(path))


def parse_table(name: str, values: Mapping[str, Any], *, where: str) -> Table:
    """A table from the mapping in its YAML.

    Raises:
        UsageError: it is not a valid table.
    """
    file, rules = schema.parse(values, where=where)
    return Table(name, file, rules)


def _parse_all(texts: tuple[str, ...]) -> tuple[Pattern, ...]:
    return tuple(patterns.parse(text) for text in texts)


def _first_fit(candidates: tuple[Pattern, ...], key: str) -> Pattern | None:
    return next((pattern for pattern in candidates if pattern.match(key) is not None), None)


def _detect_holds(way: Detect, keys: Mapping[str, Any]) -> bool:
    def some(text: str) -> bool:
        pattern = patterns.parse(text)
        return any(pattern.match(key) is not None for key in keys)

    return all(some(text) for text in way.present) and not any(some(text) for text in way.absent)
