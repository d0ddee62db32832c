"""Recognition of a weights file's format: exactly one table must account for every key of a network."""

import dataclasses
from collections.abc import Mapping, Sequence

from torch import Tensor

from sslbench import names
from sslbench.errors import UsageError, WeightsError
from sslbench.weights.format_name import FormatName, find_format
from sslbench.weights.formats import places
from sslbench.weights.formats.places import Place, common_prefix
from sslbench.weights.formats.schema import InputImages, Strides
from sslbench.weights.formats.search import Match, Search, Shapes, same_tensors, tried
from sslbench.weights.formats.tables import FormatTable, networks_of, take_variant
from sslbench.weights.reading import distributed
from sslbench.weights.reading.files import WeightsFile
from sslbench.weights.reading.model_config import NO_CONFIG, ModelConfig
from sslbench.weights.save import CHECKPOINT_FORMAT, PROBE_FORMAT


def _unrecognised(search: Search, roots: Sequence[Place]) -> WeightsError:
    """Return the error for dicts of a file without a known network, with the closest format and a key that it lacks."""
    file, most = search.file, max(roots, key=lambda place: len(place.tensors))
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
    message = f"{file.path} " + (
        f"is not of format {search.format}" if search.format else "has key names of no known format"
    )
    message += f": its {len(keys)} tensors" + (f" at '{most.where}'" if most.where else "")
    message += " are " + ", ".join(f"'{key}'" for key in keys[:3]) + (" ..." if len(keys) > 3 else "")
    if empty := [key for key, tensor in most.tensors.items() if not tensor.numel()]:
        message += f"; {len(empty)} of them are empty, such as '{empty[0]}'"
    prefix = common_prefix(keys)
    hint = f"; all start with '{prefix}'" if prefix else _closest(most, search.tables)
    hint += f"; {search.conflicts[0]}" if search.conflicts else ""
    if file.unreadable:
        kinds = f"{len(file.unreadable)} tensors of unsupported kinds were left out, such as {file.unreadable[0]}"
        return WeightsError(
            f"{message}; {kinds}", "Save them dense and in float32: x.to_dense(), x.dequantize(), x.float()."
        )
    return WeightsError(
        message + hint,
        "Give --format NAME if you know it (sslbench list formats), or the network: --backbone timm:NAME, "
        "--backbone MODULE:FUNCTION (your own).",
    )


def _closest(place: Place, tables: Sequence[FormatTable]) -> str:
    tries = [(table, tried(table, place)) for table in tables if not table.file.fallback]
    known = [(table, split) for table, split in tries if split and split.canonical and split.unknown]
    if not known:
        return ""
    table, split = max(known, key=lambda pair: (len(pair[1].canonical), -len(pair[1].unknown), not pair[0].is_general))
    if len(split.canonical) < len(split.unknown):
        return ""
    return f"; closest is {table.name}, which does not know {len(split.unknown)} of them, such as '{split.unknown[0]}'"


# Last segment of BatchNorm counters, the only tensors that may be missing: torch < 0.4.1 and other tools omit them.
OPTIONAL_LEAF = "num_batches_tracked"

# Largest number of tensors in a file: matching more against every format takes minutes. A ViT-G has about 1,000.
MAX_TENSORS = 10_000


@dataclasses.dataclass(frozen=True)
class Recognised:
    """Backbone recognised in a weights file, under canonical names.

    Attributes:
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


def recognise(file: WeightsFile, *, expected: Shapes | None = None, format: str | None = None) -> Recognised:
    """Return the backbone in a file under canonical names, and its format.

    Several tables may match if they give the same tensors. Heads that belong to the backbone itself stay in it.
    Networks are found in the places that a table declares, in dicts at any other key, and behind a prefix of keys, such
    as 'model.' of a Lightning module; names of wrappers in keys, such as '_orig_mod.', do not count. Of several
    networks, one in a declared place is taken, else the one whose place names the copy that authors evaluate.

    expected: name -> shape of the backbone's own state dict, if known; decides between tables and networks.
    format: required format: a name from model_converters/ or the path of a .yaml file; None tries all of them.
        'moco:key' reads this network of the format, 'torchvision:teacher' the one at this place of the file.
    """
    if file.content.get("format") == PROBE_FORMAT:
        raise WeightsError(
            f"{file.path} is a probe, without the backbone that it was trained on",
            f"sslbench predict and export take both: --weights BACKBONE --probe {file.path}.",
        )
    everywhere = places.dicts(file.content)
    for place in everywhere:
        if (n := len(place.tensors)) > MAX_TENSORS:
            raise WeightsError(f"{file.path}: {n:,} tensors in one dict, more than any network has ({MAX_TENSORS:,})")
    tables, where = _asked(file, format)
    marked = [table for table in tables if _has_marker(table, file)]
    tables = marked or [table for table in tables if not table.file.marker]
    if expected is None:
        tables = [table for table in tables if not table.file.needs_backbone]
    search = Search(file, expected, tables, format)
    roots = everywhere[:1] if marked else places.selected(file.content, where) if where else everywhere
    if not roots:
        known = [match.place.name for match in search.networks(everywhere)]
        message = f"{file.path} is not of format {format}: nothing lies at '{where}'"
        raise WeightsError(message, names.did_you_mean(where, known) if known else None)
    if not (found := search.networks(roots)):
        raise _unrecognised(search, roots)
    exact = [match for match in found if match.place.name.strip(".") == where.strip(".")]
    return _chosen(search, exact if where and exact else found, roots)


def _asked(file: WeightsFile, format: str | None) -> tuple[list[FormatTable], str]:
    """Return the tables to try, and the place in the file that the user names; '' if none."""
    if format is None:
        files = sorted(names.yaml_files("format").items())
        return [table for name, path in files for table in networks_of(FormatName(name, path, None))], ""
    asked = find_format(format)
    tables = networks_of(FormatName(asked.name, asked.path, None))
    known = [*tables[0].file.networks, *tables[0].file.variants]
    if asked.network is None or asked.network in known:
        return networks_of(asked), asked.place
    if asked.network and not asked.place and places.selected(file.content, asked.network):
        return tables, asked.network
    known += [place.where for place in places.dicts(file.content) if place.where and place.tensors]
    remedy = names.did_you_mean(asked.network, known) if known else "Its files hold only one."
    raise UsageError(f"format {asked.name} has no network or variant '{asked.network}'", remedy)


def _chosen(search: Search, found: Sequence[Match], roots: Sequence[Place]) -> Recognised:
    """Return the network to use, and the others in the file."""
    found = search.best_covering(found)
    if len(found) > 1:  # a predictor or decoder of tokens takes no image
        found = [m for m in found if any(tensor.ndim > 3 for tensor in m.split.canonical.values())] or found
    names_found = [f"{match.place.name.strip('.')}.{match.network}" for match in found]
    shared = common_prefix([*names_found, *(f"{name.strip('.')}." for name in search.damaged)])

    usual = {where for table in search.tables if not table.file.fallback for where in table.file.state_dict}

    def order(place: Place) -> int:
        return places.order(f"{place.name.strip('.')}.".removeprefix(shared))

    def rank(match: Match) -> tuple[bool, int, int]:
        declared = 0 if match.root is roots[0] else 1 if match.where or match.root.where in usual else 2
        return order(match.place) > 1, declared, order(match.place)

    # One network stored twice, or known to two tables, is no choice for the user.
    different: list[Match] = []
    for match in sorted(found, key=rank):
        if not any(same_tensors(match.split.canonical, other.split.canonical) for other in different):
            different.append(match)
    first, *others = different
    if others and rank(first) == rank(others[0]):
        shown = [f"{match.place.text} ({match.table.name})" for match in different]
        ways = [f"--format {match.way}" for match in different]
        raise WeightsError(
            f"{search.file.path} holds {len(different)} networks: {', '.join(shown[:-1])} and {shown[-1]}",
            f"Select one: {', '.join(ways[:-1])} or {ways[-1]}",  # no full stop: a prefix ends with a dot itself
        )
    # A network in a better place must not be passed over for another only because a key of it is unknown.
    for place, split, key in search.damaged.values():
        if order(place) <= order(first.place) and search.covered(split) >= search.covered(first.split):
            if first.table.file.fallback and place.where == first.place.where:  # which takes any keys, these too
                closest = _closest(place, search.tables) or f", such as '{key}'"
                raise WeightsError(
                    f"{search.file.path}: no known backbone has the keys {place.text}{closest}",
                    "Give its network: --backbone MODULE:FUNCTION (your own), or --backbone timm:NAME.",
                )
            raise WeightsError(
                f"{search.file.path} holds several networks, and the one {place.text} has keys that no format knows, "
                f"such as '{key}'",
                f"Give its network, --backbone MODULE:FUNCTION, or read another: --format {first.way}",
            )
    return _result(search, first, [match.way for match in others])


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


def _result(search: Search, match: Match, elsewhere: Sequence[str]) -> Recognised:
    file, split, root = search.file, match.split, match.root
    table, choices = _variant(match.table, split.canonical, file)
    backbone = file.content.get("backbone") if table.file.marker else None
    definition = table.name
    if search.format is not None:
        asked = find_format(search.format)
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
    """Refuse a file whose variant is ambiguous."""
    if not found.choices:
        return
    ways = "; ".join(f"{found.format}:{name} ({title})" for name, title in found.choices.items())
    raise WeightsError(
        f"{what} is of format {found.format}, whose files hold networks of several kinds, and its tensors do "
        f"not show which: {ways}",
        f"Give the network of its training, such as --format {found.format}:{next(iter(found.choices))}",
    )
