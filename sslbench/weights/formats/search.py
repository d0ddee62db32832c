"""Search of the networks in a weights file: everywhere that a table accounts for every key."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sslbench.errors import WeightsError
from sslbench.weights.formats import places, schema
from sslbench.weights.formats.places import Place, tensors_at
from sslbench.weights.formats.tables import FormatTable, Split
from sslbench.weights.reading.files import WeightsFile

Shapes = Mapping[str, tuple[int, ...]]

_FEWEST = 4  # tensors of a network that is searched for
_MOST_DICTS = 100  # that are searched, those with the most tensors


@dataclasses.dataclass(frozen=True)
class Match:
    """Table that accounts for every key of one dict in the file.

    Attributes:
        root: dict in which the table's places were looked for.
        where: the place of these, as a dotted path in the root.
        keys: tensors by the keys that the table was compared with.
        originals: such a key -> key in the file, where names of wrappers were left out; else empty.
        network: name of the network, if its place or its keys show it; else ''.
    """

    table: FormatTable
    root: Place
    where: str
    keys: Mapping[str, Tensor]
    originals: Mapping[str, str]
    split: Split
    network: str

    @property
    def is_preferred(self) -> bool:
        """Preference of the format for this network."""
        network = self.table.file.networks.get(self.table.network)
        return network is not None and network.preferred

    @property
    def place(self) -> Place:
        """The place in the file."""
        return Place(places.joined(self.root.where, self.where), {}, self.root.prefix)

    @property
    def way(self) -> str:
        """The network as --format takes it."""
        return f"{self.table.name}:{self.place.name or '.'}"

    @property
    def prefix(self) -> str:
        """The prefix of the backbone's keys in the file."""
        for key, original in self.originals.items():
            name = key.removeprefix(self.split.prefix)
            if key.startswith(self.split.prefix) and original.endswith(name):
                return self.root.prefix + original.removesuffix(name)
        return self.root.prefix + self.split.prefix

    @functools.cached_property
    def others(self) -> dict[str, str]:
        """The format's other networks that have keys in the root: name -> place in the file."""
        found: dict[str, str] = {}
        for name, network in self.table.file.networks.items() if self.network else ():
            other = schema.take(self.table.file, name)
            starts = tuple(filter(None, network.prefix)) or other.prefix
            same = other.state_dict == self.table.file.state_dict and other.prefix == self.table.file.prefix
            for where in () if name == self.network or same else other.state_dict:
                keys = tensors_at(self.root.content, where)
                named = any(key.startswith(starts) for key in (*keys, *places.without_wrappers(keys)))
                if named and ("" not in starts or self.table.detected(keys)):
                    found.setdefault(name, places.joined(self.root.where, where))
        return found


@dataclasses.dataclass
class Search:
    """Search of the networks in a file.

    Attributes:
        expected: names and shapes of the backbone, if known.
        format: format named by the user, whose table need not satisfy its `detect` entry.
        conflicts: messages of tables with contradictory rules for this file.
        damaged: networks of a known format but for some keys, by their places: place, tensors and the first such key.
    """

    file: WeightsFile
    expected: Shapes | None
    tables: Sequence[FormatTable]
    format: str | None
    conflicts: list[str] = dataclasses.field(default_factory=list)
    damaged: dict[str, tuple[Place, Split, str]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def inner(self) -> list[FormatTable]:
        """Tables to try behind a prefix: not a fallback, which takes any keys."""
        return [table for table in self.tables if table.file.needs_backbone or not table.file.fallback]

    def networks(self, roots: Sequence[Place]) -> list[Match]:
        """Return the networks in these dicts."""
        found: list[Match] = []
        taken: set[str] = set()
        sizes = sorted((len(root.tensors) for root in roots), reverse=True)
        # A slice, not an index: it is empty where there are fewer dicts.
        least = max(self._fewest, *sizes[_MOST_DICTS - 1 : _MOST_DICTS], 0)
        for root in roots:
            outer = len(roots) <= _MOST_DICTS and any(isinstance(value, Mapping) for value in root.content.values())
            small = root is not roots[0] and not outer and len(root.tensors) < least
            if small or (root.where in taken and not root.prefix):
                continue
            try:
                here = self._at(root, self.tables if root is roots[0] else self.inner)
            except WeightsError as error:
                if root is roots[0]:
                    raise
                self.conflicts.append(error.message)
                continue
            found += here
            taken.update(place for match in here for place in (match.place.where, *match.others.values()))
        weak = None if found else self._best(roots[0], self.tables, bare=False)
        return found if weak is None else [weak]

    @property
    def _fewest(self) -> int:
        return min(_FEWEST, len(self.expected)) if self.expected else _FEWEST

    def _at(self, root: Place, tables: Sequence[FormatTable]) -> list[Match]:
        """Return the network that is the whole dict, else those behind prefixes of its keys.

        A fallback that takes any keys is used only if there is nothing better in the file.
        """
        written = self._best(root, tables, bare=False)
        if written is not None and (
            not written.table.file.fallback or written.table.file.needs_backbone or self.covered(written.split)
        ):
            return [self._before(written, tables) or written]
        if (bare := self._best(root, self.inner, bare=True)) is not None:
            same = written is not None and same_tensors(written.split.canonical, bare.split.canonical)
            return [written if written is not None and same else bare]
        return self._behind(root)

    def _before(self, written: Match, tables: Sequence[FormatTable]) -> Match | None:
        """Return a network of the same format that comes before one and was not found, as it alone has wrappers."""
        same = [table for table in tables if table.name == written.table.name]
        for table in same[: same.index(written.table)]:
            if (where := written.others.get(table.network)) is None:
                continue
            if match := self._match(table, written.root, bare=True):
                return match
            split = tried(table, Place(where, tensors_at(self.file.content, where)))
            if split is not None and len(split.unknown) < len(split.canonical):
                raise WeightsError(
                    f"{self.file.path}: the network '{table.network}' has keys that format {table.name} does not know, "
                    f"such as '{split.unknown[0]}'",
                    f"--format {table.name}:{written.network} reads another network of the file.",
                )
        return None

    def _behind(self, root: Place) -> list[Match]:
        """Return the networks behind the shortest prefixes."""
        # A network of a known format with some keys that nobody knows is no reason to take another behind a prefix.
        if self._note_damaged(root) and not root.prefix:
            return []
        found: dict[str, Match] = {}
        counts = places.prefixes(root.tensors)
        for prefix, count in counts.items():
            if count < self._fewest or any(prefix.startswith(shorter) for shorter in found):
                continue
            inner = root.behind(prefix)
            if match := self._inside(inner):
                found[prefix] = match
            else:
                self._note_damaged(inner)
        around = [outer for outer in counts if any(prefix.startswith(outer) for prefix in found) and outer not in found]
        for outer in [*reversed(around), ""] if found else ():  # one that lies around or beside them
            beside = root.behind(outer, without=tuple(found))
            if len(beside.tensors) >= self._fewest and (match := self._inside(beside)):
                found[outer] = match
                self.damaged.pop(beside.name, None)
        return list(found.values())

    def _inside(self, place: Place) -> Match | None:
        """Return the network behind a prefix, with the keys as they are or without the names of wrappers."""
        return self._best(place, self.inner, bare=False) or self._best(place, self.inner, bare=True)

    def _note_damaged(self, place: Place) -> bool:
        """Return whether this is a network of a known format but for some keys that nobody knows, and keep it."""
        for table in self.tables:
            split = None if table.is_general else tried(table, place)
            if split is None or not split.canonical or 2 * len(split.unknown) >= len(place.tensors):
                continue
            inside = (key for key in split.unknown if self.format or key.startswith(split.prefix))
            if (key := next((key for key in inside if not places.has_wrapper(key)), None)) is not None:
                self.damaged[place.name] = (place, split, key)
                return True
        return False

    def _best(self, root: Place, tables: Sequence[FormatTable], *, bare: bool) -> Match | None:
        """Return the match to use of all tables, None if there is none.

        bare: leave out the names of wrappers in keys; None if there are none.
        """
        matches: list[Match] = []
        for table in tables:
            match = self._match(table, root, bare=bare)
            if match is not None and all(match.table.name != other.table.name for other in matches):
                matches.append(match)
        if not matches:
            return None
        matches = self.best_covering(matches)
        matches = [match for match in matches if not match.table.file.fallback] or matches
        matches = [match for match in matches if match.is_preferred] or matches
        matches.sort(key=lambda match: (match.table.is_general, match.table.name))
        for other in matches[1:]:
            if not same_tensors(matches[0].split.canonical, other.split.canonical):
                ways = " or ".join(
                    f"{m.table.name} (at {m.where or 'the top of the file'})" for m in (matches[0], other)
                )
                raise WeightsError(
                    f"{self.file.path} matches two formats that disagree: {ways}",
                    f"Select one, such as --format {matches[0].table.name}.",
                )
        return matches[0]

    def _match(self, table: FormatTable, root: Place, *, bare: bool) -> Match | None:
        """Return the match at the first dict whose every key the table accounts for; None if there is none.

        A table whose rules contradict each other on this file does not match; the contradiction is added to
        `conflicts`. A table named by the user need not satisfy its `detect` entry, which only decides between tables.
        """
        declared = table.file.state_dict
        # Networks of the table whose place this is.
        owners = [
            name
            for name, network in table.file.networks.items()
            if any(where and root.ends_with(where) for where in network.state_dict)
        ]
        if owners and table.network not in owners:
            return None
        wheres = (*declared, "") if "" not in declared and (self.format or _declared(table, root)) else declared
        for where in wheres:
            tensors = tensors_at(root.content, where) if where else root.tensors
            originals = places.without_wrappers(tensors) if bare else {}
            if bare:
                tensors = {key: tensors[original] for key, original in originals.items()}
            if not tensors or not (self.format or table.detected(tensors)):
                continue
            try:
                split = _with_heads(table, table.split(tensors), root, self.expected)
            except WeightsError as error:
                self.conflicts.append(error.message)
                continue
            if self._is_complete(table, split):
                network = table.file.networks.get(table.network)
                # Shown by a place, or by the keys.
                shown = where or not root.name or owners or (network and network.prefix and split.prefix)
                return Match(table, root, where, tensors, originals, split, table.network if shown else "")
        return None

    def _is_complete(self, table: FormatTable, split: Split) -> bool:
        expected = self.expected or {}
        if not split.canonical or split.unknown or any(not tensor.numel() for tensor in split.canonical.values()):
            return False
        if table.file.needs_backbone and 2 * sum(name in split.canonical for name in expected) <= len(expected):
            return False
        return not any(places.has_wrapper(name) and name not in expected for name in split.canonical)

    def covered(self, split: Split) -> int:
        """Return the number of tensors of the backbone, if it is known, among these."""
        shapes = {name: tuple(tensor.shape) for name, tensor in split.canonical.items()}
        return sum(shapes.get(name) == shape for name, shape in (self.expected or {}).items())

    def best_covering(self, matches: Sequence[Match]) -> list[Match]:
        """Return the matches with the most tensors of the backbone, if it is known."""
        covered = [self.covered(match.split) for match in matches]
        return [match for match, number in zip(matches, covered, strict=True) if number == max(covered)]


def _declared(table: FormatTable, place: Place) -> bool:
    return any(not where or place.ends_with(where) for where in table.file.state_dict)


def tried(table: FormatTable, place: Place) -> Split | None:
    """Return the tensors of a dict as a table sorts them; None if they are certainly not of this format."""
    if table.file.marker or not _declared(table, place) or not table.detected(place.tensors):
        return None
    try:
        return table.split(place.tensors)
    except WeightsError:
        return None


def _with_heads(table: FormatTable, split: Split, root: Place, expected: Shapes | None) -> Split:
    """Return the tensors with those of heads in dicts of their own; heads that belong to the backbone stay in it."""
    found = {f"heads.{key}": t for where in table.file.heads_at for key, t in tensors_at(root.content, where).items()}
    heads = split.heads | found
    kept = {name: heads.pop(name) for name in [*heads] if name in (expected or ())}
    met = (*split.heads_met, *(("heads.*",) if found else ())) if heads else ()
    return dataclasses.replace(split, canonical=split.canonical | kept, heads=heads, heads_met=met)


def same_tensors(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """Return whether two networks have the same names and values."""
    # `is` first: a tensor with NaN does not equal itself.
    return a.keys() == b.keys() and all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)
