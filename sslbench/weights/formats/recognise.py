"""Recognition of a weights file's format: exactly one table must account for every key of a network."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from sslbench import names
from sslbench.errors import UsageError, WeightsError
from sslbench.weights.formats import places, schema
from sslbench.weights.formats.format_name import find_format
from sslbench.weights.formats.places import Place, common_prefix, tensors_at
from sslbench.weights.formats.schema import InputImages, Strides
from sslbench.weights.formats.tables import FormatTable, Split, load_networks, take_variant
from sslbench.weights.reading import distributed
from sslbench.weights.reading.files import WeightsFile
from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig
from sslbench.weights.save import CHECKPOINT_FORMAT


def _unrecognised(
    file: WeightsFile, roots: Sequence[Place], tables: Sequence[FormatTable], conflicts: Sequence[str], format: str
) -> WeightsError:
    """Return the error for a file of unknown format, with the closest format and a key that it lacks.

    Args:
        file: the weights file.
        roots: its dicts in which networks were looked for.
        tables: tables that were tried.
        conflicts: messages of tables with contradictory rules for this file.
        format: format named by the user; '' if none.
    """
    most = max(roots, key=lambda place: len(place.tensors))
    keys = list(most.tensors)
    if (rank := distributed.file_of_a_rank(file.path, file.content, file.stubbed)) is not None:
        return rank
    if file.content.get("format") == CHECKPOINT_FORMAT:
        what = "a detector" if "detector" in file.content or "model" in file.content else "linear heads"
        return WeightsError(
            f"{file.path} is a training checkpoint of {what}, not weights of a backbone",
            "The command that wrote it continues from it, and writes the weights at the end.",
        )
    if not keys:
        holds = ", ".join(f"'{key}'" for key in list(file.content)[:5]) or "nothing"
        stubs = f"; classes that were not loaded: {', '.join(file.stubbed[:3])}" if file.stubbed else ""
        return WeightsError(f"{file.path} holds no tensors; it holds {holds}{stubs}", "Save model.state_dict().")
    message = f"{file.path} is not of format {format}" if format else f"{file.path} has key names of no known format"
    message += f": its {len(keys)} tensors" + (f" at '{most.where}'" if most.where else "")
    message += " are " + ", ".join(f"'{key}'" for key in keys[:3]) + (" ..." if len(keys) > 3 else "")
    if empty := [key for key, tensor in most.tensors.items() if not tensor.numel()]:
        message += f"; {len(empty)} of them are empty, such as '{empty[0]}'"
    prefix = common_prefix(keys)
    hint = f"; all start with '{prefix}'" if prefix else _closest(most, tables)
    hint += f"; {conflicts[0]}" if conflicts else ""
    return WeightsError(
        message + hint,
        "Give --format NAME if you know it (sslbench list formats), or your own network: --backbone MODULE:FUNCTION.",
    )


def _closest(place: Place, tables: Sequence[FormatTable]) -> str:
    tries = [(table, split) for table in tables if (split := _tried(table, place)) is not None]
    known = [(table, s) for table, s in tries if s.canonical and s.unknown and not table.file.fallback]
    if not known:
        return ""
    table, split = max(known, key=lambda pair: (len(pair[1].canonical), -len(pair[1].unknown), not pair[0].is_general))
    if len(split.canonical) < len(split.unknown):
        return ""
    return f"; closest is {table.name}, which does not know {len(split.unknown)} of them, such as '{split.unknown[0]}'"


def _tried(table: FormatTable, place: Place) -> Split | None:
    """Return the tensors of a dict as a table sorts them; None if they are certainly not of this format."""
    if table.file.marker or not _declared(table, place) or not table.detected(place.tensors):
        return None
    try:
        return table.split(place.tensors)
    except WeightsError:
        return None


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
        definition: the format as `load_table` takes it.
        keys: tensors of the dict by the keys that the table was compared with.
        originals: such a key -> key behind the `wrapper`, where names of wrappers were left out; else empty.
        wrapper: the part of the prefix that the format does not know, as of a Lightning module; '' if there is none.
        network: selected copy of the backbone ('query', 'teacher'); '' if the format has one copy.
        other_networks: other copies in the file that the format declares.
        elsewhere: networks in other places of the file, as --format takes them: 'torchvision:target_backbone'.
        note: note of the table for users of the weights.
        variant: variant of the format, named by the user or detected ('colorization', 'msra'); '' if none.
        choices: variant -> title of the variants that the file cannot tell apart, so that the user must choose; else
            empty.
        input: images that the network was trained on; None if the table does not define them.
        strides: strides of a ResNet; None if the table does not define them.
        changes: descriptions of later changes to `canonical`, for instance a stem mapped to other channels.
        config: configuration beside the file.
    """

    format: str
    canonical: dict[str, Tensor]
    heads: dict[str, Tensor]
    dropped: tuple[str, ...]
    ignored: tuple[str, ...]
    backbone: str | None
    where: str
    prefix: str
    definition: str = ""
    keys: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    originals: Mapping[str, str] = dataclasses.field(default_factory=dict)
    wrapper: str = ""
    network: str = ""
    other_networks: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()
    note: str = ""
    variant: str = ""
    choices: Mapping[str, str] = dataclasses.field(default_factory=dict)
    input: InputImages | None = None
    strides: Strides | None = None
    changes: tuple[str, ...] = ()
    config: ModelConfig = NO_CONFIG

    @property
    def others(self) -> tuple[str, ...]:
        """Other networks of the file, as --format takes them."""
        return (*(f"{self.format}:{network}" for network in self.other_networks), *self.elsewhere)

    @property
    def network_text(self) -> str:
        """Description of the network for reports: 'query, not key (--format moco:key)'; '' if there is only one."""
        network = "" if self.network == "plain" and not self.other_networks else self.network
        here = network or (f"behind '{self.wrapper}'" if self.wrapper else "")
        if not self.others:
            return here
        here = here or Place(self.where, {}).text
        others = [other.partition(":")[2] for other in self.others]
        text = " or ".join("the one at the top of the file" if other == "." else other for other in others)
        return f"{here}, not {text} (--format {self.others[0]})"


_FEWEST = 4  # tensors of a network that is searched for
_MOST_DICTS = 100  # that are searched, those with the most tensors


def recognise(file: WeightsFile, *, expected: Shapes | None = None, format: str | None = None) -> Recognised:
    """Return the backbone in a file under canonical names, and its format.

    Several tables may match if they give the same tensors. Heads that belong to the backbone itself stay in it.
    Networks are found in the places that a table declares, in dicts at any other key, and behind a prefix of keys, such
    as 'model.' of a Lightning module; names of wrappers in keys, such as '_orig_mod.', do not count. Of several
    networks, one in a declared place is taken, else the one whose place names the copy that authors evaluate.

    Args:
        file: result of `files.read`.
        expected: name -> shape of the backbone's own state dict, if known; decides between tables and networks.
        format: required format: a name from model_converters/ or the path of a .yaml file; None tries all of them.
            'moco:key' reads this network of the format, 'torchvision:teacher' the one at this place of the file.

    Raises:
        WeightsError: no table accounts for every key, several do with different results, or the file holds several
            networks of equal right.
        UsageError: there is no such format.
    """
    everywhere = places.dicts(file.content)
    for place in everywhere:
        if (n := len(place.tensors)) > MAX_TENSORS:
            raise WeightsError(f"{file.path}: {n:,} tensors in one dict, more than any network has ({MAX_TENSORS:,})")
    tables, where = _asked(file, format)
    marked = [table for table in tables if _has_marker(table, file)]
    tables = marked or [table for table in tables if not table.file.marker]
    if expected is None:
        tables = [table for table in tables if not table.file.needs_backbone]
    search = _Search(file, expected, tables, format)
    roots = everywhere[:1] if marked else places.selected(file.content, where) if where else everywhere
    if not roots:
        known = [match.place.name for match in search.networks(everywhere)]
        message = f"{file.path} is not of format {format}: nothing lies at '{where}'"
        raise WeightsError(message, names.did_you_mean(where, known) if known else None)
    if not (found := search.networks(roots)):
        raise _unrecognised(file, roots, tables, search.conflicts, format or "")
    exact = [match for match in found if match.place.name.strip(".") == where.strip(".")]
    return _chosen(file, exact if where and exact else found, search, roots)


def _asked(file: WeightsFile, format: str | None) -> tuple[list[FormatTable], str]:
    """Return the tables to try, and the place in the file that the user names; '' if none.

    Raises:
        UsageError: there is no such format, network, variant or place.
    """
    if format is None:
        return [table for name in names.list_names("format") for table in load_networks(name)], ""
    asked = find_format(format)
    tables = load_networks(str(asked.path))
    known = [*tables[0].file.networks, *tables[0].file.variants]
    if asked.network is None or asked.network in known:
        return load_networks(format), asked.place
    if asked.network and not asked.place and places.selected(file.content, asked.network):
        return tables, asked.network
    known += [place.where for place in places.dicts(file.content) if place.where and place.tensors]
    remedy = names.did_you_mean(asked.network, known) if known else "Its files hold only one."
    raise UsageError(f"format {asked.name} has no network or variant '{asked.network}'", remedy)


@dataclasses.dataclass(frozen=True)
class _Match:
    """Table that accounts for every key of one dict in the file.

    Attributes:
        table: the table.
        root: dict in which the table's places were looked for.
        where: the place of these, as a dotted path in the root.
        keys: tensors by the keys that the table was compared with.
        originals: such a key -> key in the file, where names of wrappers were left out; else empty.
        split: the tensors.
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


class _Search:
    """Search of the networks in a file.

    Attributes:
        conflicts: messages of tables with contradictory rules for this file.
        damaged: networks of a known format but for some keys, by their places: place, tensors and the first such key.
    """

    def __init__(
        self, file: WeightsFile, expected: Shapes | None, tables: Sequence[FormatTable], format: str | None
    ) -> None:
        """Set what is searched.

        Args:
            file: the file.
            expected: names and shapes of the backbone, if known.
            tables: tables to try.
            format: format named by the user, whose table need not satisfy its `detect` entry.
        """
        self.file, self.expected, self.tables, self.format = file, expected, tables, format
        self.conflicts: list[str] = []
        self.damaged: dict[str, tuple[Place, Split, str]] = {}
        # Any keys are those of a fallback, so that it is of no use behind a prefix.
        self.inner = [table for table in tables if table.file.needs_backbone or not table.file.fallback]

    def networks(self, roots: Sequence[Place]) -> list[_Match]:
        """Return the networks in these dicts.

        Raises:
            WeightsError: two tables match the first of them with different tensors.
        """
        found: list[_Match] = []
        taken: set[str] = set()
        for root in self._worth_a_try(roots):
            if root.where in taken and not root.prefix:
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

    def _worth_a_try(self, roots: Sequence[Place]) -> Iterator[Place]:
        """Yield the first root, and of the others those that may hold a network."""
        sizes = sorted((len(root.tensors) for root in roots), reverse=True)
        least = max(self._fewest, *sizes[_MOST_DICTS - 1 : _MOST_DICTS], 0)
        for root in roots:
            outer = len(roots) <= _MOST_DICTS and any(isinstance(value, Mapping) for value in root.content.values())
            if root is roots[0] or outer or len(root.tensors) >= least:
                yield root

    def _at(self, root: Place, tables: Sequence[FormatTable]) -> list[_Match]:
        """Return the network that is the whole dict, else those behind prefixes of its keys.

        A fallback that takes any keys is used only if there is nothing better in the file.
        """
        written = self._best(root, tables, bare=False)
        if written is not None and (not written.table.file.fallback or self._covers(written)):
            return [self._before(written, tables) or written]
        if (bare := self._best(root, self.inner, bare=True)) is not None:
            same = written is not None and _same(written.split.canonical, bare.split.canonical)
            return [written if written is not None and same else bare]
        return self._behind(root)

    def _before(self, written: _Match, tables: Sequence[FormatTable]) -> _Match | None:
        """Return a network of the same format that comes before one and was not found, as it alone has wrappers.

        Raises:
            WeightsError: there is one, and it has keys that nobody knows: no other is taken in its place.
        """
        same = [table for table in tables if table.name == written.table.name]
        for table in same[: same.index(written.table)]:
            if (where := written.others.get(table.network)) is None:
                continue
            if match := self._match(table, written.root, bare=True):
                return match
            split = _tried(table, Place(where, tensors_at(self.file.content, where)))
            if split is not None and len(split.unknown) < len(split.canonical):
                raise WeightsError(
                    f"{self.file.path}: the network '{table.network}' has keys that format {table.name} does not know, "
                    f"such as '{split.unknown[0]}'",
                    f"--format {table.name}:{written.network} reads another network of the file.",
                )
        return None

    def _behind(self, root: Place) -> list[_Match]:
        """Return the networks behind the shortest prefixes."""
        # A network of a known format with some keys that nobody knows is no reason to take another behind a prefix.
        if self._note_damaged(root) and not root.prefix:
            return []
        found: dict[str, _Match] = {}
        counts = places.prefixes(root.tensors)
        for prefix, count in counts.items():
            if count < self._fewest or any(prefix.startswith(shorter) for shorter in found):
                continue
            inner = root.behind(prefix)
            if match := self._best(inner, self.inner, bare=False) or self._best(inner, self.inner, bare=True):
                found[prefix] = match
            else:
                self._note_damaged(inner)
        around = [outer for outer in counts if any(prefix.startswith(outer) for prefix in found) and outer not in found]
        for outer in [*reversed(around), ""] if found else ():  # one that lies around or beside them
            rest = {key for key in root.tensors if key.startswith(outer) and not key.startswith(tuple(found))}
            if len(rest) < self._fewest:
                continue
            beside = Place(
                root.where,
                {key.removeprefix(outer): tensor for key, tensor in root.tensors.items() if key in rest},
                root.prefix + outer,
                (*root.outside, *(root.prefix + key for key in root.tensors if key not in rest)),
            )
            if match := self._best(beside, self.inner, bare=False) or self._best(beside, self.inner, bare=True):
                found[outer] = match
                self.damaged.pop(beside.name, None)
        return list(found.values())

    def _note_damaged(self, place: Place) -> bool:
        """Return whether this is a network of a known format but for some keys that nobody knows, and keep it."""
        for table in self.tables:
            split = None if table.is_general else _tried(table, place)
            if split is None or not split.canonical or 2 * len(split.unknown) >= len(place.tensors):
                continue
            inside = (key for key in split.unknown if self.format or key.startswith(split.prefix))
            if (key := next((key for key in inside if not places.has_wrapper(key)), None)) is not None:
                self.damaged[place.name] = (place, split, key)
                return True
        return False

    def _best(self, root: Place, tables: Sequence[FormatTable], *, bare: bool) -> _Match | None:
        """Return the match to use of all tables, None if there is none.

        Args:
            root: the dict.
            tables: tables to try.
            bare: leave out the names of wrappers in keys; None if there are none.

        Raises:
            WeightsError: two tables match with different tensors.
        """
        matches: list[_Match] = []
        for table in tables:
            match = self._match(table, root, bare=bare)
            if match is not None and all(match.table.name != other.table.name for other in matches):
                matches.append(match)
        if not matches:
            return None
        most = max(self._coverage(match) for match in matches)
        matches = [match for match in matches if self._coverage(match) == most]
        matches = [match for match in matches if not match.table.file.fallback] or matches
        matches = [match for match in matches if _is_preferred(match.table)] or matches
        matches.sort(key=lambda match: (match.table.is_general, match.table.name))
        for other in matches[1:]:
            if not _same(matches[0].split.canonical, other.split.canonical):
                raise _ambiguous(self.file, matches[0], other)
        return matches[0]

    def _match(self, table: FormatTable, root: Place, *, bare: bool) -> _Match | None:
        """Return the match at the first dict whose every key the table accounts for; None if there is none.

        A table whose rules contradict each other on this file does not match; the contradiction is added to
        `conflicts`. A table named by the user need not satisfy its `detect` entry, which only decides between tables.
        """
        for where in self._places(table, root):
            tensors = tensors_at(root.content, where) if where else root.tensors
            originals = places.without_wrappers(tensors) if bare else {}
            if bare:
                tensors = {key: tensors[original] for key, original in originals.items()}
            if not tensors or not (self.format or table.detected(tensors)):
                continue
            try:
                split = _with_heads(table, table.split(tensors), root)
            except WeightsError as error:
                self.conflicts.append(error.message)
                continue
            split = _keep_backbone_heads(split, self.expected)
            if self._is_complete(table, split):
                network = table.network if where or _shows_network(table, root, split) else ""
                return _Match(table, root, where, tensors, originals, split, network)
        return None

    def _places(self, table: FormatTable, root: Place) -> tuple[str, ...]:
        """Return the dotted paths in a dict at which a table's state dict may lie."""
        declared = table.file.state_dict
        if (owners := _owners(table, root)) and table.network not in owners:
            return ()
        if self.format or _declared(table, root):
            return declared if "" in declared else (*declared, "")
        return declared

    def _is_complete(self, table: FormatTable, split: Split) -> bool:
        expected = self.expected or {}
        if not split.canonical or split.unknown or any(not tensor.numel() for tensor in split.canonical.values()):
            return False
        if table.file.needs_backbone and 2 * sum(name in split.canonical for name in expected) <= len(expected):
            return False
        return not any(places.has_wrapper(name) and name not in expected for name in split.canonical)

    def _covers(self, match: _Match) -> bool:
        return match.table.file.needs_backbone or self._coverage(match) > 0

    def _coverage(self, match: _Match) -> int:
        return self.covered(match.split.canonical)

    def covered(self, canonical: Mapping[str, Tensor]) -> int:
        """Return the number of tensors of the backbone, if it is known, among these."""
        expected = (self.expected or {}).items()
        return sum(name in canonical and tuple(canonical[name].shape) == shape for name, shape in expected)

    def best_covering(self, matches: Sequence[_Match]) -> list[_Match]:
        """Return the matches with the most tensors of the backbone, if it is known."""
        most = max(self._coverage(match) for match in matches)
        return [match for match in matches if self._coverage(match) == most]


def _declared(table: FormatTable, place: Place) -> bool:
    """Return whether a table has its tensors in such a dict."""
    return any(not where or place.ends_with(where) for where in table.file.state_dict)


def _owners(table: FormatTable, place: Place) -> list[str]:
    """Return the networks of a table whose place this is."""
    networks = table.file.networks.items()
    return [name for name, network in networks if any(w and place.ends_with(w) for w in network.state_dict)]


def _shows_network(table: FormatTable, root: Place, split: Split) -> bool:
    """Return whether a dict or its keys show which of the table's networks they are."""
    network = table.file.networks.get(table.network)
    return not root.name or bool(_owners(table, root)) or bool(network and network.prefix and split.prefix)


def _chosen(file: WeightsFile, found: Sequence[_Match], search: _Search, roots: Sequence[Place]) -> Recognised:
    """Return the network to use, and the others in the file.

    Raises:
        WeightsError: several have equal right.
    """
    found = search.best_covering(found)
    if len(found) > 1:  # a predictor or decoder of tokens takes no image
        found = [m for m in found if any(tensor.ndim > 3 for tensor in m.split.canonical.values())] or found
    names_found = [f"{match.place.name.strip('.')}.{match.network}" for match in found]
    shared = common_prefix([*names_found, *(f"{name.strip('.')}." for name in search.damaged)])

    usual = {where for table in search.tables if not table.file.fallback for where in table.file.state_dict}

    def order(place: Place) -> int:
        return places.order(f"{place.name.strip('.')}.".removeprefix(shared))

    def rank(match: _Match) -> tuple[bool, int, int]:
        declared = 0 if match.root is roots[0] else 1 if match.where or match.root.where in usual else 2
        return order(match.place) > 1, declared, order(match.place)

    different: list[_Match] = []
    for match in sorted(found, key=rank):
        if not any(_same(match.split.canonical, other.split.canonical) for other in different):
            different.append(match)
    first, *others = different
    if others and rank(first) == rank(others[0]):
        shown = [f"{match.place.text} ({match.table.name})" for match in different]
        ways = [f"--format {match.way}" for match in different]
        raise WeightsError(
            f"{file.path} holds {len(different)} networks: {', '.join(shown[:-1])} and {shown[-1]}",
            f"Select one: {', '.join(ways[:-1])} or {ways[-1]}",  # no full stop: a prefix ends with a dot itself
        )
    for place, split, key in search.damaged.values():
        if order(place) <= order(first.place) and search.covered(split.canonical) >= search.covered(
            first.split.canonical
        ):
            raise WeightsError(
                f"{file.path} holds several networks, and the one {place.text} has keys that no format knows, such as "
                f"'{key}'",
                f"Give its network, --backbone MODULE:FUNCTION, or read another: --format {first.way}",
            )
    return _result(first, file, search.format, [match.way for match in others])


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


def _with_heads(table: FormatTable, split: Split, root: Place) -> Split:
    found = {f"heads.{key}": t for where in table.file.heads_at for key, t in tensors_at(root.content, where).items()}
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


def _same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name] is b[name] or torch.equal(a[name], b[name]) for name in a)


def _result(match: _Match, file: WeightsFile, format: str | None, elsewhere: Sequence[str]) -> Recognised:
    split, root = match.split, match.root
    table, choices = _variant(match.table, split.canonical, file)
    backbone = file.content.get("backbone") if table.file.marker else None
    definition = table.name
    if format is not None:
        asked = find_format(format)
        known = asked.network in (*table.file.networks, *table.file.variants)
        definition = str(asked.path) + (f":{asked.network}" if known else "")
    return Recognised(
        format=table.name,
        canonical=split.canonical,
        heads=split.heads,
        dropped=(*(root.prefix + match.originals.get(key, key) for key in split.dropped), *root.outside),
        ignored=(
            *split.heads_met,
            *split.drops_met,
            *dict.fromkeys(places.branch(key, root.prefix) for key in root.outside),
        ),
        backbone=backbone if isinstance(backbone, str) else None,
        where=match.place.where,
        prefix=match.prefix,
        definition=definition,
        keys=match.keys,
        originals=match.originals,
        wrapper=root.prefix,
        network=match.network,
        other_networks=tuple(match.others),
        elsewhere=tuple(elsewhere),
        note=table.file.note,
        variant=table.variant,
        choices=choices,
        input=table.file.input,
        strides=table.file.strides,
        config=file.config,
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


def _ambiguous(file: WeightsFile, first: _Match, second: _Match) -> WeightsError:
    ways = " or ".join(f"{m.table.name} (at {m.where or 'the top of the file'})" for m in (first, second))
    return WeightsError(
        f"{file.path} matches two formats that disagree: {ways}",
        f"Select one, such as --format {first.table.name}.",
    )
