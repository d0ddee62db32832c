"""Tar shards (`photos.tar`, `train-{0000..0099}.tar`): webdataset's keys (1.jpg, 1.cls), or class folders inside."""

import dataclasses
import glob
import json
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from sslbench.data import remote
from sslbench.data.containers.index import Index, indexed
from sslbench.data.containers.members import (
    by_folders,
    by_split,
    images_among,
    in_clutter,
    is_image,
    list_beside,
    names_by_number,
    refuse_twice,
    safe_name,
    without_label_arrays,
)
from sslbench.data.containers.slices import Slices, joined, whole_places
from sslbench.data.containers.sniff import HEAD
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.formats.table import LABEL_COLUMNS
from sslbench.data.hashes import Stamp
from sslbench.data.labels import multi_labels, single_labels, split_cell
from sslbench.data.source import Source
from sslbench.data.strings import expanded
from sslbench.data.wording import counted, one_line, some
from sslbench.errors import DataError, UsageError
from sslbench.targets.target import Target
from sslbench.text import printable

LABEL_SUFFIXES = ("cls", "json", "txt")
"""Extensions of members that may hold the label of the sample of the same key, in order of precedence."""

_MAX_LABEL_BYTES = 1 << 20
_BLOCK = tarfile.BLOCKSIZE


def build(path: Path, shown: str) -> Index:
    """Index a tar file: its images and arrays, and the text of members that may hold labels.

    Numbers of the index are offset and size; the text of an image is empty, that of a label is a JSON value.
    """
    kept: dict[str, tuple[int, int]] = {}
    left_out: dict[str, list[str]] = {}
    texts: dict[str, str] = {}
    with path.open("rb") as file:
        for member in tar_members(shown, file):
            name = safe_name(member.name)
            reason = _unusable(member, name)
            if reason is not None:
                left_out.setdefault(reason, []).append(printable(member.name))
            # tar allows two members of one name, of which the later would win silently.
            elif name is not None and name in kept:
                raise DataError(f"{shown} holds '{printable(name)}' twice")
            elif name is not None and not member.isdir():
                kept[name] = (member.offset_data, member.size)
        labels = _label_members(shown, [name for name in kept if not in_clutter(name)])

        def head(name: str) -> bytes:
            file.seek(kept[name][0])
            return file.read(min(HEAD, kept[name][1]))

        images, notes = images_among(shown, kept, set(labels).__contains__, head)
        for name in labels:
            texts[name] = _label(shown, file, name, *kept[name])
    names = [name for name in kept if name in images or name in texts]
    notes += [
        f"{shown}: {counted(len(some_), 'member')} {why} left out: {some(some_)}" for why, some_ in left_out.items()
    ]
    numbers = np.array([kept[name] for name in names], dtype=np.int64).reshape(-1, 2)
    return Index(tuple(names), numbers, tuple(texts.get(name, "") for name in names), tuple(notes))


def split_key(name: str, *, dotted: bool = False) -> tuple[str, str]:
    """Return the key of a sample and the extension.

    Dotted keys end at the last dot; others at the first one after the last slash (webdataset's rule).
    """
    folder, slash, file = name.rpartition("/")
    stem, _, extension = file.rpartition(".") if dotted else file.partition(".")
    return folder + slash + stem, extension.lower()


def _is_label(name: str, *, dotted: bool = False) -> bool:
    return split_key(name, dotted=dotted)[1] in LABEL_SUFFIXES


def _label_members(shown: str, names: Sequence[str]) -> list[str]:
    """Return the members that hold labels: by webdataset's rule, or, where that finds none, of keys with dots.

    A key is that of another member, the image; README.txt has none.
    """
    keys = {split_key(name)[0] for name in names if not _is_label(name)}
    usual = [name for name in names if _is_label(name) and split_key(name)[0] in keys]
    of_images = {split_key(name, dotted=True)[0] for name in names if is_image(name)}
    dotted = [name for name in names if _is_label(name, dotted=True) and not _is_label(name)]
    dotted = [name for name in dotted if split_key(name, dotted=True)[0] in of_images]
    # webdataset would drop these labels without a word.
    if lost := [name for name in dotted if usual and name.lower().endswith(".cls")]:
        raise DataError(
            f"{shown}: {printable(lost[0])} belongs to a key with a dot, and a key ends at the first dot",
            "Write such keys without dots: 22_05.png, 22_05.cls.",
        )
    return usual or dotted


def _unusable(member: tarfile.TarInfo, name: str | None) -> str | None:
    if name is None:
        return None if member.isdir() else "with a name outside the archive"
    if member.issym() or member.islnk():
        return "that are links"
    if member.isdir():
        return None
    return None if member.isreg() and member.sparse is None else "that are not regular files"


def tar_members(shown: str, file: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield every member; tarfile stops silently at a damaged header, so the end of the archive is checked."""
    end = file.seek(0, 2)
    file.seek(0)
    try:
        # Mode "r:" is uncompressed only: offsets into a compressed file could not be read at random.
        with tarfile.open(fileobj=file, mode="r:", errorlevel=2) as archive:
            reached = -1
            while (member := archive.next()) is not None:
                # tarfile trusts sizes and offsets, also negative ones and those that lead backwards.
                if member.size < 0 or member.offset_data + member.size > end or member.offset_data <= reached:
                    raise _truncated(shown, member.offset)
                reached = member.offset_data
                archive.members = []  # type: ignore[attr-defined]  # else tarfile keeps a list of all members
                yield member
            at = archive.offset
    except (tarfile.TarError, ValueError, OverflowError, EOFError, MemoryError) as error:
        raise DataError(
            f"{shown} is not a tar file, or is damaged or truncated: {error}", "Download or create it again."
        ) from error
    file.seek(at)
    if file.read(_BLOCK) != bytes(_BLOCK):
        raise _truncated(shown, at)
    while rest := file.read(1 << 20):
        if rest.strip(b"\0"):
            raise DataError(
                f"{shown} continues after its end mark (byte {at:,}): several archives were concatenated",
                "Give them as separate files, or create one archive.",
            )


def _truncated(shown: str, at: int) -> DataError:
    return DataError(f"{shown} is damaged or truncated at byte {at:,}", "Download or create it again.")


def _label(container: str, file: IO[bytes], name: str, offset: int, size: int) -> str:
    """Return the label in a member as JSON; '' if a .json has no key for it."""
    shown = f"{container}/{printable(name)}"
    if size > _MAX_LABEL_BYTES:
        raise DataError(f"{shown} has {size:,} bytes, too many for a label")
    file.seek(offset)
    try:
        text = file.read(size).decode("utf-8-sig").strip()
        # A .cls or .txt may hold a list in JSON; any other text is kept: '007'.
        is_json = name.lower().endswith(".json") or (text.startswith("[") and text.endswith("]"))
        value = json.loads(text) if is_json else text
    except (ValueError, RecursionError) as error:
        raise DataError(f"{shown} cannot be read as a label: {one_line(error)}") from error
    if isinstance(value, dict):
        # Reversed, so that of keys that differ in case only the first stays.
        keys = {str(key).lower(): key for key in reversed(value)}
        value = next((value[keys[column]] for column in LABEL_COLUMNS if column in keys), None)
    return "" if value is None else json.dumps(_as_label(shown, value))


def _as_label(shown: str, value: object) -> object:
    if isinstance(value, list):
        return [_as_label(shown, one) for one in value]
    if isinstance(value, bool | int | str) or (isinstance(value, float) and value.is_integer()):
        return str(int(value)) if isinstance(value, float) else str(value)
    raise DataError(f"{shown}: the label is {value!r:.50}, should be a name, a number or a list of names")


SUFFIXES = remote.SHARDS
_LONGEST_CLASS = 100


@dataclasses.dataclass(frozen=True)
class _Shard:
    """Uncompressed tar file: the user's, or a cached copy of `origin`."""

    path: Path
    origin: remote.Origin | None

    @property
    def shown(self) -> str:
        return str(self.path) if self.origin is None else self.origin.url

    @property
    def stem(self) -> str:
        """File name without suffix, the same for x.tar and x.tar.gz."""
        name = Path(self.shown.partition("?")[0] if self.origin else self.shown).name
        suffix = next((s for s in sorted(SUFFIXES, key=len, reverse=True) if name.lower().endswith(s)), "")
        return name.removesuffix(name[len(name) - len(suffix) :])


def recognises(spec: str) -> bool:
    """Return whether the string ends like a tar file, compressed or not, and is no folder."""
    return spec.lower().endswith(SUFFIXES) and not Path(spec).is_dir()


def open(spec: str) -> dict[str, Source]:
    """Return the images in one tar file or in many.

    Members whose names are equal up to the first dot are one sample (up to the last one, if only so there are labels).
    Its label is in its part .cls, else .json (a key such as 'label'), else .txt. Without such parts the folders are the
    classes, as in an image folder.

    `{0000..0099}`, `{a,b}` and `*` stand for several files. One that is compressed (gzip, bzip2, xz, zstd) is unpacked
    into the cache folder: nothing in it can be read without all before it. Ids are the names of the members; if shards
    share names, the name of the shard stands before them.
    """
    shards = _shards(spec)
    spec = remote.shown(spec, shards[0].origin)
    indexes = [_indexed(shard) for shard in shards]
    images = _images(shards, indexes)
    found = [index for index, _ in indexes]
    notes = tuple(note for index in found for note in index.notes)
    rows, about = without_label_arrays(spec, images.names)
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
    """Return the index of a shard; of a downloaded copy the images are hashed too, since it may be removed later."""

    def build_and_hash(path: Path) -> Index:
        index = build(path, shard.shown)
        if shard.origin is not None:
            _images([shard], [(index, shard.origin.stamp)]).digests()
        return index

    return indexed(shard.path, "tar 5", build_and_hash, shard.origin)


def _images(shards: Sequence[_Shard], indexes: Sequence[tuple[Index, Stamp]]) -> Slices:
    parts = []
    for shard, (index, stamp) in zip(shards, indexes, strict=True):
        rows = [i for i, name in enumerate(index.names) if not _is_label(name, dotted=True)]
        parts.append((shard.path, stamp, tuple(index.names[i] for i in rows), whole_places(index.numbers[rows])))
    return joined(parts, [shard.origin for shard in shards])


def _shards(spec: str) -> list[_Shard]:
    """Return the files that the string stands for, in order."""
    names = expanded(spec)
    if len(names) == 1 and not Path(names[0]).exists() and any(sign in names[0] for sign in "*?["):
        # glob gives names in the order of the folder, which differs between machines.
        names = sorted(glob.glob(names[0]))  # noqa: PTH207 - the string may be relative or absolute
        if not names:
            raise UsageError(f"no file matches '{spec}'")
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
    """Return the samples labelled by members of the same key; None if these are captions."""
    dotted = not any(_is_label(name) for index in found for name in index.names)
    if dotted:
        notes = (*notes, f"{spec}: keys of samples have dots, so they end at the last one")
    labels = {
        (shard, *split_key(name, dotted=dotted)): text
        for shard, index in enumerate(found)
        for name, text in zip(index.names, index.texts, strict=True)
        if text
    }
    kind = next(kind for kind in LABEL_SUFFIXES if any(key[2] == kind for key in labels))
    chosen, others = _one_image_per_key(spec, images, dotted=dotted)
    if others:
        notes = (
            *notes,
            f"{spec}: {counted(len(others), 'image')} beside the main one of a sample left out: {some(others)}",
        )
    texts = []
    for i in chosen:
        shard = int(images.places[i, 0])
        text = labels.get((shard, split_key(images.names[i], dotted=dotted)[0], kind))
        if text is None:
            name = printable(images.names[i])
            raise DataError(f"{shards[shard].shown}: '{name}' has no label: others have a .{kind}")
        texts.append(json.loads(text))
    if kind == "txt" and _captions(texts):
        return None
    final = [printable(ids[i]) for i in chosen]
    refuse_twice(spec, final)
    # A list of class names is looked for beside the shards; of a URL, beside the copies.
    origin = shards[0].origin
    packed = origin is not None and not remote.is_url(origin.url)
    folder = Path(shards[0].shown).parent if packed else shards[0].path.parent
    named, about = _labels(spec, folder, texts)
    return by_split(spec, final, named, images.select(np.array(chosen, dtype=np.int64)), None, (*notes, *about))


def _one_image_per_key(spec: str, images: Slices, *, dotted: bool) -> tuple[list[int], list[str]]:
    """Return the position of each sample's image; of several, the one without a dot in its part (1.jpg, 1.mask.png)."""
    samples: dict[tuple[int, str], list[int]] = {}
    for i, name in enumerate(images.names):
        samples.setdefault((int(images.places[i, 0]), split_key(name, dotted=dotted)[0]), []).append(i)
    chosen, others = [], []
    for members in samples.values():
        plain = [i for i in members if "." not in split_key(images.names[i])[1]] if len(members) > 1 else members
        if len(plain) != 1:
            raise DataError(f"{spec}: several images for one label: {some([images.names[i] for i in members])}")
        chosen.append(plain[0])
        others += [images.names[i] for i in members if i != plain[0]]
    return chosen, others


def _captions(texts: Sequence[object]) -> bool:
    """Return whether texts are sentences rather than classes: long, or hardly one occurs twice."""
    lines = [text for text in texts if isinstance(text, str)]
    long = any("\n" in line or len(line) > _LONGEST_CLASS for line in lines)
    return long or (len(lines) > 1 and len(set(lines)) > 0.9 * len(lines))


def _labels(spec: str, folder: Path, values: Sequence[object]) -> tuple[Target, tuple[str, ...]]:
    file, flat = list_beside(folder), {str(one) for v in values for one in (v if isinstance(v, list) else [v])}
    names = names_by_number(file, flat)
    notes = (f"classes are named by {file}",) if names else ()
    if not any(isinstance(value, list) or ";" in str(value) for value in values):
        empty = sum(1 for value in values if not value)
        if empty:
            raise DataError(f"{spec}: {counted(empty, 'label')} empty")
        return single_labels([names.get(str(value), str(value)) for value in values]), notes
    cells = [(value, []) if isinstance(value, list) else split_cell(str(value)) for value in values]
    present = [[names.get(name, name) for name in row] for row, _ in cells]
    return multi_labels(present, [[names.get(name, name) for name in row] for _, row in cells]), notes


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
