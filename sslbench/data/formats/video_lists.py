"""Videos by published lists: Kinetics, Something-Something v2, UCF101 and HMDB51, a folder with lists and files.

Kinetics (Kay et al. 2017): csv of label, youtube_id, time_start, time_end, split; ID_000010_000020.mp4.
Something-Something v2 (Goyal et al. 2017): json of id and template; ID.webm. UCF101 (Soomro et al. 2012):
trainlist01.txt, testlist01.txt. HMDB51 (Kuehne et al. 2011): ACTION_test_split1.txt, 1 for train, 2 for test.
Lists lie in the folder itself or in annotations/, labels/, lists/, splits/, ucfTrainTestlist/ or
testTrainMulti_7030_splits/; videos anywhere below it, found by their name without suffix. Listed videos that are not
there are left out, and counted: those of Kinetics vanish.
"""

import csv
import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sslbench.config import setting
from sslbench.data.containers.sniff import VIDEOS, is_clutter
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.images import Files
from sslbench.data.labels import single_labels
from sslbench.data.regular import reading
from sslbench.data.source import Source
from sslbench.data.wording import counted, part_name, some
from sslbench.errors import DataError, UsageError
from sslbench.text import printable

_PLACES = ("", "annotations", "labels", "lists", "splits", "ucfTrainTestlist", "testTrainMulti_7030_splits")
_KINETICS = {"label", "youtube_id", "time_start", "time_end", "split"}
_SPLITS = {"train": "train", "training": "train", "validate": "val", "validation": "val", "val": "val", "test": "test"}
_FOLDS = {"1": "train", "2": "test", "0": ""}
_HEAD = 10_000
"""Bytes that a cheap look at a list reads."""


@dataclasses.dataclass(frozen=True)
class VideoListOptions:
    """Options behind a '?' of videos by published lists."""

    fold: int = setting(0, "split of UCF101 and HMDB51, 1 to 3; 0: the first", within="[0, 3]")


@dataclasses.dataclass(frozen=True)
class _Listed:
    """Video of a list: its name without suffix, its class, its split, and the group that its scene belongs to."""

    name: str
    label: str
    split: str
    group: str = ""


def _lists(root: Path, *patterns: str) -> list[Path]:
    """Return the files of these names in the folders where lists lie, in order."""
    found = (file for place in _PLACES for pattern in patterns for file in sorted((root / place).glob(pattern)))
    return [file for file in found if file.is_file() and not is_clutter(file.name)]


def _head(file: Path) -> str:
    with file.open("rb") as stream:
        return stream.read(_HEAD).decode("utf-8-sig", "replace")


def _kinetics(root: Path) -> list[Path]:
    return [file for file in _lists(root, "*.csv") if {*_head(file).partition("\n")[0].strip().split(",")} >= _KINETICS]


def _something(root: Path) -> list[Path]:
    return [file for file in _lists(root, "*train*.json", "*validation*.json") if '"template"' in _head(file)]


def _ucf(root: Path) -> list[Path]:
    return _lists(root, "trainlist01.txt")


def _hmdb(root: Path) -> list[Path]:
    return _lists(root, "*_test_split1.txt")


def _of_kinetics(files: list[Path], fold: int) -> Iterator[_Listed]:
    for file in files:
        for number, row in enumerate(csv.DictReader(file.read_text("utf-8-sig").splitlines()), 2):
            try:
                start, end = (int(float(row[key])) for key in ("time_start", "time_end"))
                split = _SPLITS[row["split"].strip()]
                # Names of the files that the authors' downloader writes.
                yield _Listed(f"{row['youtube_id'].strip()}_{start:06d}_{end:06d}", row["label"].strip(), split)
            except (KeyError, ValueError, TypeError, AttributeError) as error:
                raise _wrong(
                    file, f"line {number} is no video of Kinetics", "train, validate or test, and seconds"
                ) from error


def _of_something(files: list[Path], fold: int) -> Iterator[_Listed]:
    for file in files:
        try:
            rows = [
                (str(row["id"]), str(row["template"]).replace("[", "").replace("]", ""))
                for row in json.loads(file.read_bytes())
            ]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise _wrong(file, "is no list of Something-Something v2", "records of id and template") from error
        split = "train" if "train" in file.name else "val"
        yield from (_Listed(name, template, split) for name, template in rows)


def _of_ucf(files: list[Path], fold: int) -> Iterator[_Listed]:
    for split in ("train", "test"):
        file = files[0].with_name(f"{split}list{fold:02d}.txt")
        for line in _lines(file):
            path = line.split()[0].replace("\\", "/")
            label, slash, name = path.rpartition("/")
            scene = re.fullmatch(r"(v_.+_g\d+)_c\d+", Path(name).stem)
            if not slash or scene is None:
                raise _wrong(file, f"'{printable(line)}' is no video of UCF101", "Archery/v_Archery_g01_c01.avi 3")
            yield _Listed(Path(name).stem, label.rpartition("/")[2], split, scene[1])


def _of_hmdb(files: list[Path], fold: int) -> Iterator[_Listed]:
    for file in files:
        action = file.name.removesuffix("_test_split1.txt")
        own = file.with_name(f"{action}_test_split{fold}.txt")
        for line in _lines(own):
            name, _, code = line.rpartition(" ")
            if code not in _FOLDS or not name:
                raise _wrong(own, f"'{printable(line)}' is no video of HMDB51", "NAME.avi and 0, 1 or 2")
            if _FOLDS[code]:
                yield _Listed(Path(name.strip()).stem, action, _FOLDS[code])


_LAYOUTS: tuple[tuple[str, Callable[[Path], list[Path]], Callable[[list[Path], int], Iterator[_Listed]], bool], ...] = (
    ("UCF101", _ucf, _of_ucf, True),
    ("HMDB51", _hmdb, _of_hmdb, True),
    ("Kinetics", _kinetics, _of_kinetics, False),
    ("Something-Something v2", _something, _of_something, False),
)
"""Name, finder of its lists, reader of them, whether they have several folds."""


def _wrong(file: Path, problem: str, wanted: str) -> DataError:
    return DataError(f"{file}: {problem}", f"It should have {wanted}.")


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise DataError(f"there is no list {file}", "Copy it beside the others, or name another fold: ?fold=1.")
    return [line.strip() for line in file.read_text("utf-8-sig", "replace").splitlines() if line.strip()]


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
        places = _places(root)
    here = [video for video in listed if video.name in places]
    if not here:
        raise DataError(
            f"{spec}: none of the listed videos of {title} is below this folder"
            + (f": {some([video.name for video in listed])}" if listed else ""),
            "Put the lists and the folder of the videos into one folder, or link them there.",
        )
    sources = {}
    for split in dict.fromkeys(video.split for video in here):
        part = sorted((v for v in here if v.split == split), key=lambda video: printable(places[video.name]))
        ids = tuple(printable(places[video.name]) for video in part)
        if len({*ids}) < len(ids):
            twice = next(a for a, b in itertools.pairwise(ids) if a == b)
            raise DataError(f"{spec}: the lists name {twice} twice, with two classes", "Correct the lists.")
        paths = Files(tuple(places[video.name] for video in part), str(root))
        groups = {"group": tuple(video.group for video in part)} if part[0].group else {}
        absent = [video.name for video in listed if video.split == split and video.name not in places]
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


def _places(root: Path) -> dict[str, str]:
    """Return name without suffix -> path of the videos below a folder; of equal names the first by path."""

    def refuse(error: OSError) -> None:
        raise error

    found = dict[str, str]()
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        folders[:] = sorted(name for name in folders if not is_clutter(name))
        base = os.path.relpath(folder, root)
        for name in sorted(names):
            stem, suffix = os.path.splitext(name)  # noqa: PTH122 - a Path per file is slow
            if suffix.lower() in VIDEOS and not is_clutter(name):
                path = name if base == "." else f"{base}/{name}".replace(os.sep, "/")
                found.setdefault(stem, path)
    return found


FORMAT = SourceFormat(__doc__, SampleReader(recognises, open, VideoListOptions))
