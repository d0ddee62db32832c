"""Files that a manifest, a table or a list names: found as they are written there, else as the folders here have them.

Lists come from other machines: with backslashes and drives, folders that are not here, addresses of a labelling tool
(`/data/local-files/?d=photos/1.png`), names without suffix. One reading holds for all names of a list, so that a file
that is missing is never replaced by another one of its name.
"""

import dataclasses
import difflib
import itertools
import os
import posixpath
import re
import stat
import unicodedata
import urllib.parse
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from sslbench.data import remote
from sslbench.data.containers.sniff import SUFFIXES, is_clutter
from sslbench.data.images import Files
from sslbench.data.wording import counted, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.text import printable

MOST_CHECKED = 20_000
"""Maximum number of listed files whose existence is checked."""
# Names of a list by which its reading is chosen.
_PROBES = 16
# A folder with more folders in it holds classes or persons, and these are not searched.
_MOST_FOLDERS = 40
# Entries of folders that are looked through for a name that would match.
_MOST_SEEN = 20_000
_DEEPEST = 3
# More folders than any path has: what is left is the last name.
_ALL = 1_000
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+://")
_DRIVE = re.compile(r"[A-Za-z]:(?=/)")


def image_id(name: str, folder: Path) -> str:
    """Return the id of an image listed in a manifest: its path relative to `folder` if it lies inside."""
    if os.path.isabs(name):  # noqa: PTH117
        relative = os.path.relpath(name, folder)
        name = name if relative.startswith("..") else relative
    return printable(posixpath.normpath(name.replace(os.sep, "/")))


def plain_path(name: str) -> str:
    r"""Return a path as it would be written here: slashes, no drive, of an address the part that names a file.

    >>> plain_path("C:\\photos\\1.png"), plain_path("/data/local-files/?d=photos/1%202.png")
    ('/photos/1.png', 'photos/1 2.png')
    """
    text = name.strip()
    if "?d=" in text:
        text = text.partition("?d=")[2].partition("&")[0]
    elif _ADDRESS.match(text):
        text = urllib.parse.urlsplit(text).path
    return _DRIVE.sub("", urllib.parse.unquote(text).replace("\\", "/"), count=1)


def tails(name: str) -> list[str]:
    """Return a path without its first folders, from all of it down to the last name.

    >>> tails("C:/me/photos/1.png")
    ['/me/photos/1.png', 'me/photos/1.png', 'photos/1.png', '1.png']
    """
    parts = plain_path(name).split("/")
    return ["/".join(parts[i:]) for i in range(len(parts))]


def folders_beside(file: Path) -> list[Path]:
    """Return the folders in which the images of a list are looked for, in order.

    For `coco/annotations/instances_val2017.json` these are its own folder, `coco/val2017`, `coco/images/val2017`,
    `coco/images`, `coco` (of LVIS, whose `coco_url` ends in `val2017/NAME.jpg`), folders of usual names and of its own
    name beside it (`train_labels.csv` beside `train/`), `JPEGImages` of Pascal VOC's lists, and `coco/coco` (of LVIS
    beside COCO).
    """
    folder, stem = file.parent, file.name.partition(".")[0]
    # Path.parent of '.' is '.' itself, and that of '..' is '.'.
    root = folder / ".." if folder.name in ("", "..") else folder.parent
    part = stem.rpartition("_")[2]
    long = {"train": "training", "val": "validation"}.get(part, part)
    outside = [root / part, root / "images" / part, root / "images" / long, root / "images", root]
    names = dict.fromkeys([stem, re.sub(r"_(labels|images)$", "", stem), re.sub(r"[-_]?\d+$", "", part)])
    inside = [folder / name for name in ("images", "data", "JPEGImages")]
    inside += [base / name for name in names if name for base in (folder, folder / "images")]
    above = [top.parent / "JPEGImages" for top in file.parents if top.name == "ImageSets"]
    return list(dict.fromkeys([folder, *outside, *inside, *above, root / "coco"]))


def images_folder(spec: str, images: str) -> Path | None:
    """Return the folder that `?images=` names behind a list of images; None for ''."""
    if not images:
        return None
    path = Path(spec)
    folder = (path if path.is_dir() else path.parent) / images
    if not folder.is_dir():
        here = f" You may mean images={Path(images).resolve()}." if Path(images).is_dir() else ""
        raise UsageError(
            f"{spec}?images={images}: there is no folder {folder}",
            f"The path is relative to the folder of {path.name}, or absolute.{here}",
        )
    return folder


@dataclasses.dataclass(frozen=True)
class ListedFiles:
    """Files of a list.

    Attributes:
        paths: one per name, relative to `folder`, or absolute.
        ids: one per file: its path relative to the folder.
        folder: base of relative paths.
        notes: remarks on paths that are read otherwise than they are written.
    """

    paths: tuple[str, ...]
    ids: list[str]
    folder: Path
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> Files:
        """The images."""
        return Files(self.paths, str(self.folder))


def find_listed(spec: str, names: Sequence[str], folders: Sequence[Path], option: str = "") -> ListedFiles:
    """Return the files that a list names.

    The first reading holds under which all names that are tried exist: as they are written; with slashes and without
    drive or address; without the first folder, the first two, and so on; the last name alone. Then the same again with
    the suffix of an image added, or in other case, if exactly one file fits.
    Addresses (http, s3) of which nothing lies here are copied into the cache of remote files.

    `folders`: bases of relative paths, in order; then the folders inside of the first. `option`: way to name another
    folder, for messages: '?images=FOLDER'.
    """
    known = _Folders(list(dict.fromkeys(folders)))
    reading = _choose(spec, names, known, option)
    if reading is None and all(remote.is_url(name) for name in names):
        copies = remote.local_copies(list(dict.fromkeys(names)))
        place = dict(zip(dict.fromkeys(names), map(str, copies), strict=True))
        ids = [printable(plain_path(name).lstrip("/")) for name in names]
        _refuse_twice(spec, names, ids, option)
        such = f"such as {printable(names[0])}, and kept in the cache"
        note = f"{spec}: the images are read from the addresses in it, {such}"
        return ListedFiles(tuple(place[name] for name in names), ids, Path(place[names[0]]).parent, (note,))
    if reading is None:
        raise _missing(spec, names, list(names), known, option)
    paths = [reading.path(name, known) for name in names]
    lost = [name for name, path in zip(names, paths, strict=True) if not path]
    if lost:
        raise _missing(spec, names, lost, known, option)
    found = tuple(path for path in paths if path)
    ids = [image_id(path, reading.folder) for path in found]
    _refuse_twice(spec, names, ids, option)
    absent = _absent(found, reading.folder)
    if absent:
        raise _missing(spec, names, [names[i] for i in absent], known, option)
    note = f"{spec}: '{printable(names[0])}' and the other paths are read as {printable(found[0])} in {reading.folder}"
    return ListedFiles(found, ids, reading.folder, () if found == tuple(names) else (note,))


def finds_all(names: Sequence[str], folders: Sequence[Path]) -> bool:
    """Return whether names are those of files, as far as the first and some others tell."""
    known = _Folders(list(dict.fromkeys(folders)))
    probes = [names[i] for i in _spaced(len(names), _PROBES)]
    try:
        reading = _choose("", probes, known, "")
    except DataError:  # several files fit, which opening the list says
        return True
    return reading is not None and all(reading.reads(name, known) for name in probes)


def check_some(spec: str, files: Sequence[str | Path], folder: Path, remedy: str) -> None:
    """Check that files exist; of more than `MOST_CHECKED`, as many as that, evenly spaced.

    Checking each of a million files takes minutes on a network drive; decoding reports any other missing file.
    """
    absent = _absent(files, folder)
    if absent:
        raise DataError(_message(spec, len(files), [str(files[i]) for i in absent]), remedy)


def _absent(files: Sequence[str | Path], folder: Path) -> list[int]:
    """Return the positions of files that do not exist, of as many as are checked."""
    root = str(folder)
    return [i for i in _spaced(len(files), MOST_CHECKED) if not _exists(root, str(files[i]))]


def _exists(folder: str, path: str) -> bool:
    """Return whether something other than a folder is there; decoding says what is wrong with a pipe."""
    try:
        return not stat.S_ISDIR(os.stat(os.path.join(folder, path)).st_mode)  # noqa: PTH116, PTH118 - slow for a million
    except (OSError, ValueError):  # a NUL in it
        return False


def _spaced(n: int, most: int) -> list[int]:
    """Return all positions up to n; of more than `most`, as many as that, evenly spaced."""
    return list(range(n)) if n <= most else np.linspace(0, n - 1, most).astype(np.int64).tolist()


def _message(spec: str, n: int, missing: Sequence[str]) -> str:
    asked = counted(n, "image file") if n <= MOST_CHECKED else f"the {MOST_CHECKED:,} image files looked for"
    return f"{spec}: {len(missing):,} of {asked} missing: {some([printable(name) or repr(name) for name in missing])}"


class _Folders:
    """Folders of images: those that are known, in order, and further ones inside of the first; read once each."""

    def __init__(self, known: list[Path]) -> None:
        self.known = known
        self._entries: dict[Path, dict[str, list[str]]] = {}

    def all(self) -> Iterable[Path]:
        """Iterate over all of them."""
        yield from self.known
        top = self.known[0]
        try:
            with os.scandir(top) as entries:
                inside = sorted(e.name for e in entries if e.is_dir() and not is_clutter(e.name))
        except OSError:
            return
        if len(inside) <= _MOST_FOLDERS:
            yield from (folder for name in inside if (folder := top / name) not in self.known)

    def fitting(self, folder: Path, path: str) -> str | None:
        """Return the only file of a name in any case, whose suffix may be missing; None if there is none or several."""
        above, _, name = path.rpartition("/")
        inside = folder / above
        if inside not in self._entries:
            self._entries[inside] = _by_stem(inside)
        found = self._entries[inside].get(_folded(name), [])
        return posixpath.join(above, found[0]) if len(found) == 1 else None


def _by_stem(folder: Path) -> dict[str, list[str]]:
    """Return the images in a folder by their names, and by their stems, folded."""
    found: dict[str, list[str]] = {}
    try:
        names = [entry.name for entry in os.scandir(folder) if not is_clutter(entry.name)]
    except OSError:
        return found
    for name in names:
        stem, suffix = os.path.splitext(name)  # noqa: PTH122
        if suffix.lower() in SUFFIXES:
            found.setdefault(_folded(name), []).append(name)
            found.setdefault(_folded(stem), []).append(name)
    return found


def _folded(name: str) -> str:
    """Return a name without the differences of systems: case, and accents as characters of their own."""
    return unicodedata.normalize("NFC", name).casefold()


@dataclasses.dataclass(frozen=True)
class _Reading:
    """Reading of the names of a list.

    Attributes:
        folder: base of the paths.
        dropped: number of folders left out at the beginning of each; None: names as they are written.
        loose: the suffix may be missing, and the case be another.
    """

    folder: Path
    dropped: int | None
    loose: bool

    def path(self, name: str, known: _Folders) -> str | None:
        """Return the path of a name; None if it fits no file, or several. Those that are not loose are not checked."""
        text = name
        if self.dropped is not None:
            ends = tails(name)
            text = ends[min(self.dropped, len(ends) - 1)]
        return known.fitting(self.folder, text) if self.loose else text

    def reads(self, name: str, known: _Folders) -> bool:
        """Return whether a name is that of a file."""
        path = self.path(name, known)
        return bool(path) and _exists(str(self.folder), str(path))


def _choose(spec: str, names: Sequence[str], known: _Folders, option: str) -> _Reading | None:
    """Return the reading of a list: the first that finds all probes, else the one that finds most; None without any."""
    probes = [names[i] for i in _spaced(len(names), _PROBES)]
    best, most = None, 0
    # The strictest reading first: a looser one may find another file of that name.
    folders_of = [plain_path(name).split("/")[:-1] for name in probes]
    # The number of folders that all names share at their beginning.
    shared = sum(1 for _ in itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders_of, strict=False)))
    # Objects365 names images/v1/patch0/1.jpg what is unpacked as patch0/1.jpg: folders that differ may be dropped, too.
    least = min(map(len, folders_of), default=0)
    for loose, dropped in itertools.product((False, True), (None, *range(max(shared + 1, least)), _ALL)):
        whole = []
        for folder in known.all():
            reading = _Reading(folder, dropped, loose)
            hits = sum(reading.reads(name, known) for name in probes)
            if hits == len(probes):
                whole.append(reading)
                if not dropped and folder in known.known:
                    break
            if hits > most:
                best, most = reading, hits
        if whole:
            # By a link, two folders may hold the same file.
            paths = {os.path.realpath(reading.folder / str(reading.path(probes[0], known))) for reading in whole}
            if len(paths) > 1:
                raise DataError(
                    f"{spec}: '{printable(probes[0])}' may be {' or '.join(sorted(paths)[:3])}",
                    f"Name the folder of the images: {spec}{option}" if option else None,
                )
            return whole[0]
    return best


def _refuse_twice(spec: str, names: Sequence[str], ids: Sequence[str], option: str) -> None:
    """Refuse an image that is listed twice, and names in different folders that are read as one file."""
    if len(set(ids)) == len(ids):
        return
    first: dict[str, str] = {}
    again = []
    for name, found in zip(names, ids, strict=True):
        if found not in first:
            first[found] = name
            continue
        other = first[found]
        if posixpath.normpath(plain_path(other)) != posixpath.normpath(plain_path(name)):
            raise DataError(
                f"{spec}: '{printable(other)}' and '{printable(name)}' would both be {found}",
                f"Name the folder where the paths begin: {spec}{option}" if option else None,
            )
        again.append(found)
    twice = sorted(set(again))
    raise DataError(
        f"{spec} lists {counted(len(twice), 'image')} more than once: {some(twice)}",
        "Keep one entry per image, with all its labels: in a table one cell (cat;dog), in a manifest annotations.",
    )


def _missing(spec: str, names: Sequence[str], missing: Sequence[str], known: _Folders, option: str) -> DataError:
    """Return the error about files that do not exist: the places that were searched, and names that would match."""
    name = missing[0]
    ends = [end for end in dict.fromkeys((name, *tails(name))) if not end.startswith("/") or end == name]
    folders = [str(folder) for folder in known.all() if folder == known.known[0] or folder.is_dir()]
    lines = [f"Looked for {some(list(map(printable, ends)), 4)} in {some(folders, 8)}."]
    lines += [text for text in (_would_match(spec, name, known.known, option),) if text]
    if option:
        how = "name the folder, relative to the list" if "FOLDER" in option else "rewrite the paths"
        lines.append(f"If they lie elsewhere, {how}: {spec}{option}")
    return DataError(_message(spec, len(names), missing), " ".join(lines))


def _would_match(spec: str, name: str, folders: Sequence[Path], option: str) -> str:
    """Return a sentence about files whose names are equal but for the folder, the suffix or the case, or are alike."""
    wanted = PurePosixPath(tails(name)[-1])
    # What follows a dot belongs to the name, unless it is a suffix of images.
    stem = _folded(wanted.stem if wanted.suffix.lower() in SUFFIXES else wanted.name)
    near: list[str] = []
    for folder in folders:
        seen = 0
        for top, inside, files in os.walk(folder):
            inside[:] = sorted(each for each in inside if not is_clutter(each))
            seen += len(files) + len(inside)
            names = [each for each in files if PurePosixPath(each).suffix.lower() in SUFFIXES]
            same = sorted(each for each in names if _folded(os.path.splitext(each)[0]) == stem)  # noqa: PTH122
            if same:
                below = os.path.relpath(top, folders[0])
                other = "" if same[0] == wanted.name else f", not {printable(wanted.name)}"
                elsewhere = "FOLDER" in option and below != "." and not other
                how = f": {spec}{option.replace('FOLDER', below)}" if elsewhere else ""
                return f"There is {printable(os.path.join(top, same[0]))}{other}{how}."  # noqa: PTH118
            near += difflib.get_close_matches(wanted.name, names, n=1)
            if seen > _MOST_SEEN:
                break
            if len(Path(os.path.relpath(top, folder)).parts) >= (_DEEPEST if folder == folders[0] else 1):
                # os.walk descends into what is left in this list.
                inside.clear()
    return did_you_mean(wanted.name, set(near)) if near else ""
