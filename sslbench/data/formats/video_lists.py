"""Videos by published lists: Kinetics, Something-Something v2, UCF101 and HMDB51, a folder with lists and files.

Kinetics (Kay et al. 2017): csv of label, youtube_id, time_start, time_end, split; ID_000010_000020.mp4.
Something-Something v2 (Goyal et al. 2017): json of id and template; ID.webm. UCF101 (Soomro et al. 2012):
trainlist01.txt, testlist01.txt. HMDB51 (Kuehne et al. 2011): ACTION_test_split1.txt, 1 for train, 2 for test.
Lists lie in the folder itself or in annotations/, labels/, lists/, splits/, ucfTrainTestlist/ or
testTrainMulti_7030_splits/; videos anywhere below it, found by their name without suffix, first in a folder called as
their class. Listed videos that are not there are left out, and counted: those of Kinetics vanish. A list or split of
which nothing is there is refused, and so is a video of two splits or classes.
"""

import csv
import dataclasses
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sslbench.config import setting
from sslbench.data.containers.sniff import VIDEOS, head_text, is_clutter, read_text
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.images import Files
from sslbench.data.labels import single_labels
from sslbench.data.regular import reading
from sslbench.data.source import Source
from sslbench.data.wording import counted, part_name, some, warn_once
from sslbench.errors import DataError, UsageError
from sslbench.text import printable

_PLACES = ("", "annotations", "labels", "lists", "splits", "ucfTrainTestlist", "testTrainMulti_7030_splits")
_KINETICS = {"label", "youtube_id", "time_start", "time_end", "split"}
_SPLITS = {"train": "train", "training": "train", "validate": "val", "validation": "val", "val": "val", "test": "test"}
_FOLDS = {"1": "train", "2": "test", "0": ""}
# "constrained" is no training.
_OF_SOMETHING = re.compile("validation|train(?!ed)")


@dataclasses.dataclass(frozen=True)
class VideoListOptions:
    """Options behind a '?' of videos by published lists."""

    fold: int = setting(0, "split of UCF101 and HMDB51, 1 to 3; 0: the first", within="[0, 3]")


@dataclasses.dataclass(frozen=True)
class _Listed:
    """Video of a list: its name without suffix, its class, its split, its list, and the group of its scene."""

    name: str
    label: str
    split: str
    file: Path = dataclasses.field(compare=False)
    group: str = ""


def _lists(root: Path, pattern: str) -> list[Path]:
    """Return the files of such a name in the folders where lists lie, in order."""
    found = (file for place in _PLACES for file in sorted((root / place).glob(pattern)))
    return [file for file in found if file.is_file() and not is_clutter(file.name)]


def _columns(cells: list[str]) -> list[str]:
    return [cell.strip().lower() for cell in cells]


def _has_columns(file: Path) -> bool:
    # UTF-16 without its mark has NULs: the reader says so.
    first = head_text(str(file)).replace("\0", "").splitlines()[:1]
    try:
        return {*_columns(next(csv.reader(first, skipinitialspace=True), []))} >= _KINETICS
    except csv.Error:
        return False


def _something(root: Path) -> list[Path]:
    heads = {file: head_text(str(file)) for file in _lists(root, "*.json") if _OF_SOMETHING.search(file.name)}
    if not any('"template"' in head for head in heads.values()):
        return []
    # Empty ones beside the others are refused later.
    return [file for file, head in heads.items() if '"template"' in head or not head.strip("[] \r\n\t")]


def _of_kinetics(files: list[Path], fold: int) -> Iterator[_Listed]:
    for file in files:
        rows, empty = csv.reader(io.StringIO(_text(file), newline=""), skipinitialspace=True, strict=True), True
        try:
            columns = _columns(next(rows, []))
            if not {*columns} >= _KINETICS:
                raise ValueError("header")
            for cells in filter(None, rows):
                row = dict(zip(columns, map(str.strip, cells), strict=False))
                start, end = (int(float(row[key])) for key in ("time_start", "time_end"))
                if not row["label"] or not row["youtube_id"]:
                    raise ValueError("empty")
                # Names of the files that the authors' downloader writes.
                name, empty = f"{row['youtube_id']}_{start:06d}_{end:06d}", False
                yield _Listed(name, row["label"], _SPLITS[row["split"].lower()], file)
        except (KeyError, ValueError, OverflowError, csv.Error) as error:
            number = max(rows.line_num, 1)
            what = "no header in UTF-8" if number == 1 else "no video of Kinetics"
            wanted = "label, youtube_id, time_start and time_end in seconds, and split: train, validate or test"
            raise _wrong(file, f"line {number} is {what}", wanted) from error
        if empty:
            raise _empty(file)


def _of_something(files: list[Path], fold: int) -> Iterator[_Listed]:
    for file in files:
        text = _text(file)
        try:
            rows = [
                (str(row["id"]).strip(), row["template"].replace("[", "").replace("]", "").strip())
                for row in (json.loads(text) if text.strip() else [])
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise _wrong(file, "is no list of Something-Something v2", "records of id and template") from error
        if not rows:
            raise _empty(file)
        if not all(name and template for name, template in rows):
            raise _wrong(file, "has an empty id or template", "both in every record")
        split = _SPLITS[_OF_SOMETHING.findall(file.name)[0]]
        yield from (_Listed(name, template, split, file) for name, template in rows)


def _of_ucf(files: list[Path], fold: int) -> Iterator[_Listed]:
    for split in ("train", "test"):
        file = files[0].with_name(f"{split}list{fold:02d}.txt")
        for line in _lines(file):
            path = line.split()[0].replace("\\", "/")
            label, slash, name = path.rpartition("/")
            scene = re.fullmatch(r"(v_.+_g\d+)_c\d+", Path(name).stem)
            if not slash or scene is None:
                raise _wrong(file, f"'{printable(line)}' is no video of UCF101", "Archery/v_Archery_g01_c01.avi 3")
            yield _Listed(Path(name).stem, label.rpartition("/")[2], split, file, scene[1])


def _of_hmdb(files: list[Path], fold: int) -> Iterator[_Listed]:
    for file in files:
        action = file.name.removesuffix("_test_split1.txt")
        own = file.with_name(f"{action}_test_split{fold}.txt")
        for line in _lines(own):
            name, _, code = line.rpartition(" ")
            if code not in _FOLDS or not name:
                raise _wrong(own, f"'{printable(line)}' is no video of HMDB51", "NAME.avi and 0, 1 or 2")
            if _FOLDS[code]:
                yield _Listed(Path(name.strip()).stem, action, _FOLDS[code], own)


_LAYOUTS: tuple[tuple[str, Callable[[Path], list[Path]], Callable[[list[Path], int], Iterator[_Listed]], bool], ...] = (
    ("UCF101", lambda root: _lists(root, "trainlist01.txt"), _of_ucf, True),
    ("HMDB51", lambda root: _lists(root, "*_test_split1.txt"), _of_hmdb, True),
    ("Kinetics", lambda root: [file for file in _lists(root, "*.csv") if _has_columns(file)], _of_kinetics, False),
    ("Something-Something v2", _something, _of_something, False),
)
"""Name, finder of its lists, reader of them, whether they have several folds."""


def _wrong(file: Path, problem: str, wanted: str) -> DataError:
    return DataError(f"{file}: {problem}", f"It should have {wanted}.")


def _empty(file: Path) -> DataError:
    return DataError(f"{file} lists no video", "Copy the whole list again, or remove it.")


def _text(file: Path) -> str:
    text, notes = read_text(file)
    for note in notes:
        warn_once(note)
    return text


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise DataError(f"there is no list {file}", "Copy it beside the others, or name another fold: ?fold=1.")
    lines = [line.strip() for line in _text(file).splitlines() if line.strip()]
    if not lines:
        raise _empty(file)
    return lines


def recognises(spec: str) -> bool:
    """Return whether the string is a folder with lists of one of the data sets."""
    root = Path(spec)
    try:
        return root.is_dir() and any(finder(root) for _, finder, _, _ in _LAYOUTS)
    except OSError:  # reading it as any folder says what is wrong
        return False


def open(request: SampleRequest[VideoListOptions]) -> dict[str, Source]:
    """Return the listed videos that are there, by their split."""
    spec, root, fold = request.spec, Path(request.spec), request.options.fold
    with reading():
        title, finder, read, folds = next(layout for layout in _LAYOUTS if layout[1](root))
        if fold and not folds:
            raise UsageError(f"{spec}: {title} has no folds, so fold={fold} has no effect", "Leave it out.")
        listed = list(dict.fromkeys(read(finder(root), fold or 1)))
        found = _places(root)
    # In a folder called as the class, since HMDB51 may have a name in two; else the first.
    places = {
        video: next((path for path in found[video.name] if Path(path).parent.name == video.label), found[video.name][0])
        for video in listed
        if video.name in found
    }
    if not places:
        raise DataError(
            f"{spec}: none of the listed videos of {title} is below this folder"
            + (f": {some([video.name for video in listed])}" if listed else ""),
            "Put the lists and the folder of the videos into one folder, or link them there.",
        )
    _refuse_twice(spec, places)
    sources = {}
    for split in dict.fromkeys(video.split for video in listed):
        part = sorted((v for v in places if v.split == split), key=lambda video: printable(places[video]))
        absent = [video.name for video in listed if video.split == split and video not in places]
        if not part:
            lists = dict.fromkeys(str(video.file) for video in listed if video.split == split)
            raise DataError(
                f"{spec}: none of the {counted(len(absent), 'video')} of {split} is here: {some(absent)}",
                f"Put them below this folder, or take them out of the lists: {some([*lists])}.",
            )
        ids = tuple(printable(places[video]) for video in part)
        paths = Files(tuple(places[video] for video in part), str(root))
        groups = {"group": tuple(video.group for video in part)} if part[0].group else {}
        notes = [f"{part_name(spec, split)}: {title}" + (f", fold {fold or 1}" if folds else "")]
        if absent:
            total = len(absent) + len(part)
            notes.append(f"{notes[0]}: {len(absent):,} of {counted(total, 'listed video')} not there: {some(absent)}")
        sources[split] = Source(
            part_name(spec, split),
            ids,
            single_labels([video.label for video in part]),
            paths,
            tuple(notes),
            groups,
            "group" if groups else "",
        )
    return sources


def _refuse_twice(spec: str, places: dict[_Listed, str]) -> None:
    """Raise for a file that two lines of the lists want in two splits or classes."""
    taken = dict[str, _Listed]()
    for video, path in places.items():
        other = taken.setdefault(path, video)
        if other is not video:
            one, two = (f"'{v.label}' of {v.split} by {v.file}" for v in (other, video))
            raise DataError(f"{spec}: {printable(path)} is listed twice, as {one} and as {two}", "Correct the lists.")


def _places(root: Path) -> dict[str, list[str]]:
    """Return name without suffix -> paths of the videos below a folder, in order."""

    def refuse(error: OSError) -> None:
        raise error

    found = dict[str, list[str]]()
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_clutter(name))
        base = os.path.relpath(folder, root)
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)  # noqa: PTH122 - a Path per file is slow
            if suffix.lower() in VIDEOS and not is_clutter(name):
                path = name if base == "." else f"{base}/{name}".replace(os.sep, "/")
                found.setdefault(stem, []).append(path)
    return found


FORMAT = SourceFormat(__doc__, SampleReader(recognises, open, VideoListOptions))
