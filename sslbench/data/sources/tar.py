"""Tar shards (`photos.tar`, `train-{0000..0099}.tar`): webdataset's keys (1.jpg, 1.cls), or class folders inside."""

import dataclasses
import glob
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from sslbench.data import remote
from sslbench.data.braces import expanded
from sslbench.data.hashes import Stamp
from sslbench.data.labels import multi_labels, single_labels, split_cell
from sslbench.data.source import Labels, Source
from sslbench.data.sources import _tar_index
from sslbench.data.sources._class_names import class_names, list_beside
from sslbench.data.sources._index import Index, indexed
from sslbench.data.sources._members import by_folders, refuse_twice, without_arrays_beside
from sslbench.data.sources._names import by_split, refuse_columns
from sslbench.data.sources._slices import RAW, UNKNOWN, Slices, joined
from sslbench.data.sources._tar_index import LABEL_SUFFIXES, split_key
from sslbench.data.wording import counted, printable, some
from sslbench.errors import DataError, UsageError

SUFFIXES = remote.SHARDS
_LONGEST_CLASS = 100


@dataclasses.dataclass(frozen=True)
class _Shard:
    """A tar file that can be read at any place: the user's, or a copy of `origin` while it is there."""

    path: Path
    origin: remote.Origin | None

    @property
    def shown(self) -> str:
        return str(self.path) if self.origin is None else self.origin.url

    @property
    def stem(self) -> str:
        """The name without its suffix: the same for x.tar and x.tar.gz."""
        name = Path(self.shown.partition("?")[0] if self.origin else self.shown).name
        suffix = next((s for s in sorted(SUFFIXES, key=len, reverse=True) if name.lower().endswith(s)), "")
        return name.removesuffix(name[len(name) - len(suffix) :])


def recognises(spec: str) -> bool:
    """Whether the string ends like a tar file, compressed or not, and is no folder."""
    return spec.lower().endswith(SUFFIXES) and not Path(spec).is_dir()


def open(spec: str, *, image_column: str | None = None, label_column: str | None = None) -> dict[str, Source]:
    """The images in one tar file or in many.

    Members whose names are equal up to the first dot are one sample. Its label is in its part .cls, else .json (a key
    such as 'label'), else .txt. Without such parts the folders are the classes, as in an image folder.

    Args:
        spec: the file; or many: `{0000..0099}`, `{a,b}`, and `*` stand for several. One that is compressed (gzip,
            bzip2, xz, zstd) is unpacked into the cache folder: nothing in it can be read without all before it.
        image_column: for tables only.
        label_column: for tables only.

    Returns:
        Split name -> source, or {"all": source}. Ids are the names of the members; if shards share names, the name of
        the shard stands before them.

    Raises:
        DataError: a shard is missing, damaged or truncated, cannot be fetched, or does not fit into the cache; a label
            is missing; a name occurs twice.
        UsageError: a column was named, or the braces cannot be read.
    """
    refuse_columns(spec, image_column, label_column)
    shards = _shards(spec)
    if (origin := shards[0].origin) is not None and remote.is_url(origin.url):
        spec = f"{origin.url.rpartition('/')[0]}/{Path(spec).name}"
    indexes = [_indexed(shard) for shard in shards]
    images = _images(shards, indexes)
    found = [index for index, _ in indexes]
    notes = tuple(note for index in found for note in index.notes)
    rows, about = without_arrays_beside(spec, images.names)
    images, notes = images.select(np.array(rows, dtype=np.int64)), (*notes, *about)
    ids, about = _ids(spec, shards, images)
    notes = (*notes, *about)
    if any(text for index in found for text in index.texts):
        labelled = _by_key(spec, shards, found, images, ids, notes)
        if labelled is not None:
            return labelled
        notes = (*notes, f"{spec}: the .txt members look like captions, so they are not taken as labels")
    return by_folders(spec, ids, images, notes)


def _indexed(shard: _Shard) -> tuple[Index, Stamp]:
    """Of a copy the images are hashed as well while it is there: it need not be fetched again for that."""

    def build(path: Path) -> Index:
        index = _tar_index.build(path, shard.shown)
        if shard.origin is not None:
            _images([shard], [(index, shard.origin.stamp)]).digests()
        return index

    return indexed(shard.path, "tar 2", build, shard.origin)


def _images(shards: Sequence[_Shard], indexes: Sequence[tuple[Index, Stamp]]) -> Slices:
    parts = ((s.path, stamp, *_images_of(index)) for s, (index, stamp) in zip(shards, indexes, strict=True))
    return joined(parts, [shard.origin for shard in shards])


def _images_of(index: Index) -> tuple[tuple[str, ...], np.ndarray[tuple[int, ...], np.dtype[np.int64]]]:
    rows = [i for i, name in enumerate(index.names) if split_key(name)[1] not in LABEL_SUFFIXES]
    offset, size = index.numbers[rows].T
    places = [offset, size, size, np.full(len(rows), UNKNOWN), np.full(len(rows), RAW)]
    return tuple(index.names[i] for i in rows), np.stack(places, axis=1)


def _shards(spec: str) -> list[_Shard]:
    """The files that the string stands for, in order."""
    names = expanded(spec)
    if len(names) == 1 and not Path(names[0]).exists() and any(sign in names[0] for sign in "*?["):
        names = sorted(glob.glob(names[0]))  # noqa: PTH207 - the string may be relative or absolute
        if not names:
            raise UsageError(f"no file is called like '{spec}'")
    if len(set(names)) < len(names):
        raise UsageError(f"{spec} names a shard twice")
    copies = {name: origin for name in names if remote.is_copy(Path(name)) and (origin := remote.origin_of(Path(name)))}
    missing = [name for name in names if name not in copies and not Path(name).is_file()]
    if missing:
        raise DataError(f"{spec}: {len(missing):,} of {counted(len(names), 'shard')} missing: {some(missing)}")
    shards = []
    for name in names:
        origin = copies.get(name) or remote.origin_of(Path(name))
        shards.append(_Shard(Path(name) if origin is None else Path(origin.place), origin))
    return shards


def _ids(spec: str, shards: Sequence[_Shard], images: Slices) -> tuple[list[str], tuple[str, ...]]:
    names = list(images.names)
    if len(shards) == 1 or len(set(names)) == len(names):
        return names, ()
    stems = [shard.stem for shard in shards]
    if len(set(stems)) < len(stems):
        raise DataError(f"{spec}: shards of the same name hold images of the same name", "Rename the shards.")
    ids = [f"{stems[shard]}/{name}" for shard, name in zip(images.places[:, 0], names, strict=True)]
    return ids, (f"{spec}: shards have members of the same name, so ids begin with the name of the shard",)


def _by_key(
    spec: str, shards: Sequence[_Shard], found: Sequence[Index], images: Slices, ids: list[str], notes: tuple[str, ...]
) -> dict[str, Source] | None:
    """The samples labelled by members of the same key; None if these are captions."""
    labels = {
        (shard, *split_key(name)): text
        for shard, index in enumerate(found)
        for name, text in zip(index.names, index.texts, strict=True)
        if text
    }
    kind = next(kind for kind in LABEL_SUFFIXES if any(key[2] == kind for key in labels))
    chosen, others = _one_image_per_key(spec, images)
    if others:
        notes = (
            *notes,
            f"{spec}: {counted(len(others), 'image')} beside the main one of a sample left out: {some(others)}",
        )
    texts = []
    for i in chosen:
        shard = int(images.places[i, 0])
        text = labels.get((shard, split_key(images.names[i])[0], kind))
        if text is None:
            name = printable(images.names[i])
            raise DataError(f"{shards[shard].shown}: '{name}' has no label: others have a .{kind}")
        texts.append(json.loads(text))
    if kind == "txt" and _captions(texts):
        return None
    final = [printable(ids[i]) for i in chosen]
    refuse_twice(spec, final)
    named, about = _labels(spec, _folder(shards[0]), texts)
    return by_split(spec, final, named, images.select(np.array(chosen, dtype=np.int64)), None, (*notes, *about))


def _folder(shard: _Shard) -> Path:
    """Where a list of class names may lie beside the shards; of a URL where their copies lie."""
    packed = shard.origin is not None and not remote.is_url(shard.origin.url)
    return Path(shard.shown).parent if packed else shard.path.parent


def _one_image_per_key(spec: str, images: Slices) -> tuple[list[int], list[str]]:
    """Position of the image of each sample: with several, the one whose part has no dot (1.jpg beside 1.mask.png)."""
    samples: dict[tuple[int, str], list[int]] = {}
    for i, name in enumerate(images.names):
        samples.setdefault((int(images.places[i, 0]), split_key(name)[0]), []).append(i)
    chosen, others = [], []
    for members in samples.values():
        plain = [i for i in members if "." not in split_key(images.names[i])[1]] if len(members) > 1 else members
        if len(plain) != 1:
            raise DataError(f"{spec}: several images for one label: {some([images.names[i] for i in members])}")
        chosen.append(plain[0])
        others += [images.names[i] for i in members if i != plain[0]]
    return chosen, others


def _captions(texts: Sequence[object]) -> bool:
    """Whether texts are sentences rather than classes: long, or hardly one occurs twice."""
    lines = [text for text in texts if isinstance(text, str)]
    long = any("\n" in line or len(line) > _LONGEST_CLASS for line in lines)
    return long or (len(lines) > 1 and len(set(lines)) > 0.9 * len(lines))


def _labels(spec: str, folder: Path, values: Sequence[object]) -> tuple[Labels, tuple[str, ...]]:
    names, notes = _class_names(folder, values)
    if not any(isinstance(value, list) or ";" in str(value) for value in values):
        empty = sum(1 for value in values if not value)
        if empty:
            raise DataError(f"{spec}: {counted(empty, 'label')} empty")
        return single_labels([names.get(str(value), str(value)) for value in values]), notes
    cells = [(value, []) if isinstance(value, list) else split_cell(str(value)) for value in values]
    present = [[names.get(name, name) for name in row] for row, _ in cells]
    return multi_labels(present, [[names.get(name, name) for name in row] for _, row in cells]), notes


def _class_names(folder: Path, values: Sequence[object]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Class number -> name by a list beside the shards, if the labels are numbers and there is one."""
    file = list_beside(folder)
    flat = {str(one) for value in values for one in (value if isinstance(value, list) else [value])}
    if file is None or not all(one.isdecimal() for one in flat):
        return {}, ()
    listed = class_names(file, max(map(int, flat), default=-1))
    return {str(i): name for i, name in enumerate(listed)}, (f"classes are named by {file}",)
