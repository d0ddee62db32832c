"""Several sources (a .yaml that names them, several:coco=A.json,o365=photos/): joined, or mixed by weights."""

import dataclasses
import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sslbench import config
from sslbench.data import catalog, strings
from sslbench.data.containers.members import split_rank
from sslbench.data.format import (
    Column,
    NoOptions,
    SampleReader,
    SampleRequest,
    SourceFormat,
    plain_reader,
)
from sslbench.data.formats import yolo
from sslbench.data.joined import join
from sslbench.data.objects import ObjectSource
from sslbench.data.open import open_as, open_data
from sslbench.data.open import open_objects as open_boxes
from sslbench.data.source import ORIGIN, Source
from sslbench.data.wording import counted, part_name, some
from sslbench.errors import SslbenchError, UsageError
from sslbench.names import did_you_mean, refuse_location
from sslbench.targets.objects import Boxes
from sslbench.targets.texts import Texts

SUFFIXES = (".yaml", ".yml")
S = TypeVar("S", bound=Source)
Opened = dict[str, dict[str, S]]
"""Name of a source -> split -> source."""


@dataclasses.dataclass(frozen=True)
class ListedSource:
    """Member of a list of sources."""

    data: str = config.setting(dataclasses.MISSING, "data location, as for --data; relative to the file")
    weight: float | None = config.setting(
        None, "sampling frequency in pretraining, relative to the other sources; default 1"
    )
    split: str | None = config.setting(None, "only split to use; for data without splits, the split's name")
    image_column: str | None = config.setting(None, "column of image paths, for a table")
    label_column: str | None = config.setting(None, "column of labels, for a table")


@dataclasses.dataclass(frozen=True)
class _File:
    sources: dict[str, Any] = config.setting(
        dataclasses.MISSING, "name -> data location, or a mapping with the keys of a source"
    )


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'several:', or is a YAML file (but YOLO's data.yaml)."""
    if strings.is_several(spec):
        return True
    return spec.lower().endswith(SUFFIXES) and Path(spec).is_file() and not yolo.is_description(spec)


def open(request: SampleRequest[NoOptions]) -> dict[str, Source]:
    """Return all samples of several sources, splits joined by their names; see `joined.join`.

    The location is a YAML file with the mapping `sources`: name -> location, or name -> the keys of `ListedSource`;
    paths are relative to the file (in one that is fetched by its URL they should be absolute, or URLs). Or the same in
    one string, `several:NAME=LOCATION,NAME@WEIGHT=LOCATION`. Columns are those of every source that names no others.
    """
    parts = _listed(request.spec)
    columns = tuple(column for column in request.attribute_columns if column != ORIGIN)

    def opened(part: ListedSource) -> dict[str, Source]:
        return open_data(
            part.data,
            image_column=part.image_column or request.image_column,
            label_column=part.label_column or request.label_column,
            attribute_columns=columns,
            value_columns=request.value_columns,
            together=request.together,
            decoder=request.decoder,
        )

    return _joined(request.spec, parts, _each(request.spec, parts, opened))


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Return the images of several sources with their objects, splits joined by their names; see `joined.join`."""
    parts = _without_columns(spec, "boxes")
    return _joined(spec, parts, _each(spec, parts, lambda part: open_boxes(part.data)))


def open_texts(spec: str) -> dict[str, Source]:
    """Return the images or regions of several sources with their texts, splits joined by their names."""
    parts = _without_columns(spec, "texts")
    return _joined(spec, parts, _each(spec, parts, lambda part: open_as(part.data, Texts)))


def _without_columns(spec: str, kind: str) -> dict[str, ListedSource]:
    """Return the sources, whose data of that kind have no columns to name."""
    parts = _listed(spec)
    for name, part in parts.items():
        if part.image_column or part.label_column:
            raise UsageError(f"{spec}: {name}: columns have no effect on data with {kind}")
    return parts


def _listed(spec: str) -> dict[str, ListedSource]:
    parts: dict[str, ListedSource] = {}
    if strings.is_several(spec):
        for name, weight, data in strings.parse(spec):
            if name in parts:
                raise UsageError(f"{spec}: two sources are called '{name}'", "Give each a name of its own.")
            values = {"data": data} if weight is None else {"data": data, "weight": weight}
            parts[name] = config.build(ListedSource, values, f"{spec}: {name}")
    else:
        parts = _read_file(Path(spec))
    _check(spec, parts)
    return parts


def _each(spec: str, parts: Mapping[str, ListedSource], opened: Callable[[ListedSource], dict[str, S]]) -> Opened[S]:
    """Return name -> split -> source, of the split that a source is limited to."""
    found = {}
    for name, part in parts.items():
        try:
            splits = opened(part)
            if part.split is not None:
                key = "all" if list(splits) == ["all"] else part.split
                if key not in splits:
                    raise UsageError(f"there is no split '{part.split}'", did_you_mean(part.split, splits))
                splits = {part.split: splits[key]}
            found[name] = splits
        except SslbenchError as error:
            raise type(error)(f"{spec}: {name}: {error.message}", error.remedy) from error
    return found


def _read_file(file: Path) -> dict[str, ListedSource]:
    content = config.read_yaml(file)
    if "sources" not in content:
        near = "".join(f", not '{key}'" for key in difflib.get_close_matches("sources", content, n=1))
        raise UsageError(
            f"{file} lists no sources: a YAML file given as --data needs the key 'sources'{near}",
            "Such as:\nsources:\n  coco: annotations/instances.json\n  photos: {data: photos/, weight: 2}",
        )
    listed = config.build(_File, content, str(file)).sources
    found = {}
    for name, value in listed.items():
        where = f"{file}: {name}"
        if not isinstance(value, str | dict):
            raise UsageError(f"{where} should be a data location, or a mapping with the key 'data'")
        part = ListedSource(value) if isinstance(value, str) else config.build(ListedSource, value, where)
        # The list may have come with the data.
        refuse_location(part.data, where)
        # A path beside the file has precedence over a name of the catalog.
        as_it_is = not part.data or (
            catalog.find(part.data.partition("?")[0]) is not None and not (file.parent / part.data).exists()
        )
        data = part.data if as_it_is else catalog.beside(part.data, file)
        found[name] = dataclasses.replace(part, data=data)
    return found


def _check(spec: str, parts: Mapping[str, ListedSource]) -> None:
    if not parts:
        raise UsageError(f"{spec} lists no sources")
    for name, part in parts.items():
        where = f"{spec}: {name}"
        if not strings.NAME.fullmatch(name):
            raise UsageError(f"{spec}: '{name}' cannot be the name of a source", strings.NAME_RULE)
        if not part.data:
            raise UsageError(f"{where}: the data location is empty")
        if part.weight is not None and not (part.weight > 0 and math.isfinite(part.weight)):
            raise UsageError(
                f"{where}: the weight {part.weight:g} should be a number above 0", "Leave out the source to exclude it."
            )
        named = catalog.find(part.data)
        location = (part.data if named is None else named.entry.data).partition("?")[0]
        is_yaml = location.lower().endswith(SUFFIXES) and not Path(location).is_dir()
        if strings.is_several(location) or (is_yaml and not yolo.is_description(location)):
            raise UsageError(
                f"{where}: {part.data} lists several sources itself",
                "List those here directly, each under its own name.",
            )


def _joined(spec: str, parts: Mapping[str, ListedSource], opened: Opened[S]) -> dict[str, S]:
    weights = {name: part.weight for name, part in parts.items() if part.weight is not None}
    undivided = [name for name, splits in opened.items() if list(splits) == ["all"]]
    divided = [name for name in opened if name not in undivided]
    if undivided and divided:
        there = ", ".join(dict.fromkeys(split for name in divided for split in opened[name]))
        raise UsageError(
            f"{spec}: {some(divided)} {_has(divided)} splits ({there}), and {some(undivided)} {_has(undivided)} none",
            f"Name its split in a YAML file: {undivided[0]}: {{data: ..., split: train}}.",
        )
    names = sorted({split for splits in opened.values() for split in splits}, key=split_rank)
    found = {}
    for split in names:
        sources = {name: splits[split] for name, splits in opened.items() if split in splits}
        shares = {name: weights.get(name, 1.0) for name in sources} if weights else None
        whole = join(sources, part_name(spec, split), shares)
        about = ", ".join(f"{counted(len(sources[name]), 'image')} of {name}" for name in sorted(sources))
        notes: list[str] = [f"{split}: {about}"]
        if shares:
            total = sum(shares.values())
            drawn = ", ".join(f"{name} {weight / total:.1%}" for name, weight in shares.items())
            notes.append(f"pretraining draws {drawn}, by their weights; everything else uses every image once")
        found[split] = dataclasses.replace(whole, notes=(*notes, *whole.notes))
    return found


def _has(names: Sequence[str]) -> str:
    return "has" if len(names) == 1 else "have"


_COLUMNS: frozenset[Column] = frozenset(("image", "label", "attribute", "value"))
FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, open, NoOptions, _COLUMNS),
    {Boxes: plain_reader(recognises, open_objects), Texts: plain_reader(recognises, open_texts)},
)
