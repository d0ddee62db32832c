"""Retrieval sets with queries and ground truth: (r)Oxford5k, (r)Paris6k, INSTRE, Holidays, Copydays, DISC21.

The folder as its authors distribute it is recognised by what lies in it:

- revisited Oxford and Paris, INSTRE: `gnd_*.pkl` or `gnd_*.mat`, and the images below the folder;
- Oxford5k and Paris6k of 2007: `*_query.txt`, `*_good.txt`, `*_ok.txt`, `*_junk.txt`;
- Holidays: images called 100000.jpg to 149902.jpg;
- Copydays: `original/`, `strong/`, `jpegqual/3` ..., `crops/10` ...;
- DISC21: `references/`, `queries/` and a .csv of the columns query_id and reference_id.

The ground-truth file itself may be named too, with `?images=FOLDER`.
"""

import csv
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.sniff import unpickling
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.images import Files
from sslbench.data.labels import single_labels
from sslbench.data.maps.layout import walk
from sslbench.data.objects.crops import Crops
from sslbench.data.regular import matching, reading
from sslbench.data.source import Source
from sslbench.data.wording import counted, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.targets.classes import Answers, Queries
from sslbench.text import printable

Box = tuple[float, float, float, float]
"""x1, y1, x2, y2 in pixels."""
# Boxes are clipped to their image when it is read.
_WHOLE: Box = (0.0, 0.0, 1e9, 1e9)
DATABASE = "database"
"""Label of images that are no queries."""


@dataclasses.dataclass(frozen=True)
class RetrievalOptions:
    """Options behind a '?': gnd_roxford5k.pkl?images=oxford5k/jpg&queries=whole."""

    images: str = setting("", "folder of the images, where they do not lie beside the ground truth")
    queries: Literal["crop", "whole"] = setting("crop", "part of a query image that is used: its box, or all of it")
    distractors: str = setting("", "folder of images that are searched too, and match no query")

    def refuse(self, name: str, *fields: str) -> None:
        """Refuse options that have no effect on a set."""
        usual = RetrievalOptions()
        for field in fields:
            if getattr(self, field) != getattr(usual, field):
                raise UsageError(f"the option {field} has no effect on {name}")


def images_below(folder: Path) -> dict[str, Path]:
    """Return the images below a folder by their relative path, ascending."""
    if not folder.is_dir():
        raise DataError(f"there is no folder of images {printable(str(folder))}", "Give it as ?images=FOLDER.")
    return {name: folder / name for name in walk(folder)}


def matched(names: Sequence[str], folder: Path, ground_truth: str) -> list[str]:
    """Return the relative path of each listed image: its name is the path or the file name, with or without suffix."""
    by_name: dict[str, set[str]] = {}
    for path in images_below(folder):
        file = path.rpartition("/")[2]
        for name in (path, path.rpartition(".")[0], file, file.rpartition(".")[0]):
            by_name.setdefault(name, set()).add(path)
    missing = [name for name in names if name not in by_name]
    if missing:
        raise DataError(
            f"{ground_truth}: {len(missing):,} of {counted(len(names), 'image')} are not below "
            f"{printable(str(folder))}: {some(missing)}",
            "Give the folder of the images as ?images=FOLDER.",
        )
    several = next((name for name in names if len(by_name[name]) > 1), None)
    if several is not None:
        raise DataError(f"{ground_truth}: the name {several} fits several images: {some(sorted(by_name[several]))}")
    return [next(iter(by_name[name])) for name in names]


def assembled(
    name: str,
    files: Mapping[str, Path],
    labels: Mapping[str, str],
    tasks: Mapping[str, Mapping[str, Answers]],
    *,
    apart: Sequence[str] = (),
    boxes: Mapping[str, Box] | None = None,
    distractors: str = "",
) -> Source:
    """Return the source of a retrieval set.

    `tasks` may have queries without positives; `apart` are ids of queries that are not part of the database; `boxes`
    are those of queries, None: all images are whole; `distractors` is a folder of further images of the database.
    """
    for answers in tasks.values():
        for query, each in answers.items():
            if twice := repeated(each.positives + each.ignored):
                raise DataError(f"{name}: {twice[0]} is twice among the positives and ignored images of {query}")
    files, labels = dict(files), dict(labels)
    if distractors:
        for path, file in images_below(Path(distractors).expanduser()).items():
            files[f"distractors/{path}"], labels[f"distractors/{path}"] = file, "distractor"
    ids = sorted(files)
    if printable("".join(ids)) != "".join(ids):
        raise DataError(f"{name}: names of images should be UTF-8")
    whole = Files(tuple(str(files[i]) for i in ids))
    images: Files | Crops = whole
    if boxes:
        cut = np.array([boxes.get(i, _WHOLE) for i in ids], dtype=np.float32)
        rows = np.arange(len(ids), dtype=np.int64)
        images = Crops(whole, rows, np.zeros_like(rows), cut, np.zeros((len(ids), 2), np.int64), margin=0.0)
    queries = Queries({task: dict(answers) for task, answers in tasks.items()}, frozenset(apart))
    number = len(set().union(*tasks.values()))
    note = f"{name}: {counted(number, 'query')}, {counted(len(ids) - len(apart), 'image')} searched"
    return Source(name, tuple(ids), single_labels([labels[i] for i in ids]).changed(queries=queries), images, (note,))


_NUMBER = re.compile(r"(\d{6})\.\w+")
_COLUMNS = ("query_id", "reference_id")


def _number(path: str) -> int | None:
    found = _NUMBER.fullmatch(path.rpartition("/")[2])
    return int(found[1]) if found else None


def is_holidays(path: Path) -> bool:
    """Return whether the path is a folder with the first two images of Holidays, or one level above them."""
    return any(
        (folder / "100000.jpg").is_file() and (folder / "100001.jpg").is_file() for folder in (path, path / "jpg")
    )


def open_holidays(path: Path, options: RetrievalOptions) -> Source:
    """Return INRIA Holidays (Jegou et al., ECCV 2008): the first image of each group of hundred queries the others.

    A query is part of the database, and is taken out of its own ranking.
    """
    options.refuse("Holidays", "images", "queries")
    files = {name: file for name, file in images_below(path).items() if _number(name) is not None}
    groups: dict[int, list[str]] = {}
    for name in files:
        groups.setdefault((_number(name) or 0) // 100, []).append(name)
    answers = {}
    for members in groups.values():
        query = min(members, key=lambda name: _number(name) or 0)
        if (_number(query) or 0) % 100 == 0:
            answers[query] = Answers(tuple(name for name in members if name != query), (query,))
    labels = {name: str((_number(name) or 0) // 100) for name in files}
    return assembled(str(path), files, labels, {"": answers}, distractors=options.distractors)


def is_copydays(path: Path) -> bool:
    """Return whether the path is a folder with original/ and at least one folder of Copydays' copies."""
    return (path / "original").is_dir() and any(
        (path / name).is_dir() and (name == "strong" or (path / name / "50").is_dir())
        for name in ("strong", "jpegqual", "crops")
    )


def open_copydays(path: Path, options: RetrievalOptions) -> Source:
    """Return Copydays (Douze et al., CIVR 2009): every folder of copies is a task, strong copies lead.

    A copy has the hundreds of its original's number: 200001.jpg is a copy of 200000.jpg.
    """
    options.refuse("Copydays", "images", "queries")
    files = {name: file for name, file in images_below(path).items() if _number(name) is not None}
    original = {(_number(name) or 0) // 100: name for name in files if name.startswith("original/")}
    copies: dict[str, dict[str, Answers]] = {}
    for name in files:
        task = name.rpartition("/")[0].replace("/", "_")
        if task != "original":
            found = original.get((_number(name) or 0) // 100)
            copies.setdefault(task, {})[name] = Answers(() if found is None else (found,))

    def order(task: str) -> tuple[bool, str, int]:
        name, _, level = task.rpartition("_")
        # False sorts first, and the first task leads.
        return task != "strong", name, int(level) if level.isdecimal() else 0

    tasks = {task: copies[task] for task in sorted(copies, key=order)}
    labels = {name: str((_number(name) or 0) // 100) for name in files}
    apart = [name for answers in tasks.values() for name in answers]
    return assembled(str(path), files, labels, tasks, apart=apart, distractors=options.distractors)


def is_disc(path: Path) -> bool:
    """Return whether the path is a folder with references/, queries/ and a list of pairs, or such a list."""
    if path.is_dir():
        return (path / "references").is_dir() and (path / "queries").is_dir() and len(_pair_lists(path)) == 1
    return path.suffix.lower() == ".csv" and _has_pairs(path)


def _pair_lists(folder: Path) -> list[Path]:
    return [file for file in matching(folder, "*.csv") if _has_pairs(file)]


def _has_pairs(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            # No more than a header needs: a .csv may be one endless line.
            first = stream.readline(200)
    except (OSError, UnicodeDecodeError):
        return False
    return tuple(word.strip() for word in first.strip().split(",")) == _COLUMNS


def open_disc(path: Path, options: RetrievalOptions) -> Source:
    """Return DISC2021 (Douze et al. 2021): queries of the list, each with the reference of which it is a copy."""
    options.refuse("DISC21", "queries")
    file = _pair_lists(path)[0] if path.is_dir() else path
    folder = Path(options.images).expanduser() if options.images else file.parent
    references, queries = (images_below(folder / name) for name in ("references", "queries"))
    with file.open(encoding="utf-8-sig", newline="", errors="replace") as stream:
        pairs = [
            (row[0].strip(), row[1].strip() if len(row) > 1 else "") for row in list(csv.reader(stream))[1:] if row
        ]
    found: dict[str, list[str]] = {}
    for query, reference in pairs:
        found.setdefault(query, []).extend([reference] if reference else [])
    if not found:
        raise DataError(f"{file} lists no queries")
    names = sorted({reference for each in found.values() for reference in each})
    ids = dict(zip(names, matched(names, folder / "references", file.name), strict=True))
    of_query = dict(zip(found, matched(list(found), folder / "queries", file.name), strict=True))
    files = {f"references/{name}": image for name, image in references.items()}
    files |= {f"queries/{name}": queries[name] for name in of_query.values()}
    answers = {
        f"queries/{of_query[query]}": Answers(tuple(f"references/{ids[each]}" for each in dict.fromkeys(positives)))
        for query, positives in found.items()
    }
    if not any(each.positives for each in answers.values()):
        raise DataError(f"{file}: no query has a reference: {some(list(found))}")
    labels = {name: DATABASE if name.startswith("references/") else "query" for name in files}
    return assembled(str(path), files, labels, {"": answers}, apart=list(answers), distractors=options.distractors)


_NAME = re.compile(r"gnd_.*\.(pkl|mat)", re.IGNORECASE)
_KEYS = ("imlist", "qimlist", "gnd")
_LISTS = ("good", "ok", "junk")
# Oxford's lists of queries have it before the names of the images.
_OXFORD_PREFIX = "oxc1_"


def _file_of(path: Path) -> Path | None:
    """Return the file gnd_*.pkl or gnd_*.mat that the path is, or the only one in that folder; None without one."""
    if path.is_dir():
        found = [file for file in path.iterdir() if _NAME.fullmatch(file.name)]
        return found[0] if len(found) == 1 else None
    return path if _NAME.fullmatch(path.name) and path.is_file() else None


def open_ground_truth(path: Path, options: RetrievalOptions) -> Source:
    """Return the images of a ground truth with `imlist`, `qimlist` and `gnd`, which has a dict per query.

    Revisited Oxford and Paris (Radenovic et al., CVPR 2018): a dict has 'easy', 'hard' and 'junk'. Easy: easy images
    are positives, hard and junk ones are ignored; Medium: easy and hard ones are positives; Hard: hard ones are, easy
    and junk ones are ignored. INSTRE (Wang and Jiang 2015; split of Iscen et al. 2017): a dict has 'ok', and perhaps
    'junk'. Rows are numbered from 0 in .pkl files and from 1 in .mat files.
    """
    file = _file_of(path)
    assert file is not None  # noqa: S101 - recognised before
    content = _read(file)
    folder = Path(options.images).expanduser() if options.images else file.parent
    base = 1 if file.suffix.lower() == ".mat" else 0
    database = _texts(content, "imlist", file)
    names = _texts(content, "qimlist", file)
    images = matched(names, folder, file.name)
    queries = [f"query/{name}" for name in names]
    answers = content.get("gnd")
    if not isinstance(answers, list | tuple) or len(answers) != len(queries):
        raise _wrong(file, "'gnd' should have one entry per query")
    tasks: dict[str, dict[str, Answers]] = {}
    boxes: dict[str, Box] = {}
    for query, entry in zip(queries, answers, strict=True):
        if not isinstance(entry, Mapping):
            raise _wrong(file, "an entry of 'gnd' is no dict")
        rows = {key: _ids(entry.get(key, ()), database, base, file) for key in ("easy", "hard", "ok", "junk")}
        if "ok" in entry:
            found = {"": Answers(rows["ok"], rows["junk"])}
        else:
            found = {
                "medium": Answers(rows["easy"] + rows["hard"], rows["junk"]),
                "hard": Answers(rows["hard"], rows["easy"] + rows["junk"]),
                "easy": Answers(rows["easy"], rows["hard"] + rows["junk"]),
            }
        for task, each in found.items():
            tasks.setdefault(task, {})[query] = each
        if "bbx" in entry:
            boxes[query] = _box(entry["bbx"], file)
    files = {name: folder / path for name, path in zip(database, matched(database, folder, file.name), strict=True)}
    files |= {query: folder / image for query, image in zip(queries, images, strict=True)}
    labels = dict.fromkeys(database, DATABASE) | {query: query.removeprefix("query/") for query in queries}
    if not boxes:
        options.refuse("a ground truth without boxes", "queries")
    cut = boxes if options.queries == "crop" else None
    return assembled(str(path), files, labels, tasks, apart=queries, boxes=cut, distractors=options.distractors)


def _read(file: Path) -> Mapping[str, Any]:
    """Read a ground truth without running anything in the file."""
    with unpickling(file, "no ground truth") as load, file.open("rb") as stream:
        if file.suffix.lower() == ".mat":
            from scipy.io import loadmat

            content = loadmat(stream, simplify_cells=True)
            # A cell array of one element is read as the element.
            content |= {key: [content[key]] for key in _KEYS if isinstance(content.get(key), str | Mapping)}
        else:
            content = load(stream)
    if not isinstance(content, Mapping):
        raise _wrong(file, "it holds no dict")
    return content


def _wrong(file: Path, problem: str) -> DataError:
    return DataError(
        f"{file} is no ground truth of retrieval: {problem}",
        "It should be a dict of imlist, qimlist and gnd, as cmp.felk.cvut.cz/revisitop offers it.",
    )


def _texts(content: Mapping[str, Any], key: str, file: Path) -> list[str]:
    values = content.get(key)
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, list | tuple) or not values or not all(isinstance(value, str) for value in values):
        raise _wrong(file, f"'{key}' should be a list of names")
    if len(set(values)) < len(values):
        raise _wrong(file, f"'{key}' has a name twice")
    return [value.strip() for value in values]


def _ids(rows: Any, database: Sequence[str], base: int, file: Path) -> tuple[str, ...]:
    try:
        # scipy reads an array of one element as a number.
        numbers = np.atleast_1d(np.asarray(rows, dtype=np.float64)).astype(np.int64) - base
    except (TypeError, ValueError) as error:
        raise _wrong(file, "an entry of 'gnd' has rows that are no numbers") from error
    if len(numbers) and not (numbers.ndim == 1 and numbers.min() >= 0 and numbers.max() < len(database)):
        raise _wrong(file, f"an entry of 'gnd' has rows outside of the {len(database):,} of 'imlist'")
    return tuple(database[row] for row in dict.fromkeys(numbers.tolist()))


def _box(values: Any, file: Path) -> Box:
    try:
        x1, y1, x2, y2 = (float(value) for value in values)
    except (TypeError, ValueError) as error:
        raise _wrong(file, "a box 'bbx' is not four numbers") from error
    if not (np.isfinite([x1, y1, x2, y2]).all() and x1 < x2 and y1 < y2):
        raise _wrong(file, f"a box 'bbx' is empty: {x1:g} {y1:g} {x2:g} {y2:g}")
    return x1, y1, x2, y2


def _query_lists(folder: Path) -> list[Path]:
    """Return the lists such as all_souls_1_query.txt in a folder, directly or one level below."""
    return matching(folder, "*_query.txt") or matching(folder, "*/*_query.txt")


def open_oxford(path: Path, options: RetrievalOptions) -> Source:
    """Return the images of Oxford5k or Paris6k (Philbin et al., CVPR 2007 and 2008) as they were published.

    Positives are the lists good and ok; junk is ignored. The database holds all images, also those that queries are cut
    from: the published program counts them as positives.
    """
    lists = _query_lists(path)
    folder = Path(options.images).expanduser() if options.images else path
    database = images_below(folder)
    answers: dict[str, Answers] = {}
    images: dict[str, str] = {}
    boxes: dict[str, Box] = {}
    for file in lists:
        name = file.name.removesuffix("_query.txt")
        words = _lines(file)[0].split() if _lines(file) else []
        if len(words) != 5:
            raise DataError(f"{file} should have an image and the four numbers of a box")
        query = f"query/{name}"
        images[query] = words[0].removeprefix(_OXFORD_PREFIX)
        boxes[query] = _box(words[1:], file)
        rows = {key: _lines(file.with_name(f"{name}_{key}.txt")) for key in _LISTS}
        answers[query] = Answers(tuple(rows["good"] + rows["ok"]), tuple(rows["junk"]))
    named = sorted({*images.values(), *(i for each in answers.values() for i in each.positives + each.ignored)})
    ids = dict(zip(named, matched(named, folder, str(path)), strict=True))
    tasks = {
        query: Answers(tuple(dict.fromkeys(ids[i] for i in each.positives)), tuple(ids[i] for i in each.ignored))
        for query, each in answers.items()
    }
    files = {**database, **{query: folder / ids[image] for query, image in images.items()}}
    labels = dict.fromkeys(database, DATABASE) | {query: query.removeprefix("query/") for query in images}
    cut = boxes if options.queries == "crop" else None
    return assembled(
        str(path), files, labels, {"": tasks}, apart=list(images), boxes=cut, distractors=options.distractors
    )


def _lines(file: Path) -> list[str]:
    if not file.is_file():
        raise DataError(f"there is no file {file} beside the list of its query")
    text = file.read_text(encoding="utf-8", errors="replace")
    return [line.strip() for line in text.splitlines() if line.strip()]


LAYOUTS: tuple[tuple[Callable[[Path], bool], Callable[[Path, RetrievalOptions], Source]], ...] = (
    (lambda path: _file_of(path) is not None, open_ground_truth),
    (lambda path: path.is_dir() and bool(_query_lists(path)), open_oxford),
    (is_holidays, open_holidays),
    (is_copydays, open_copydays),
    (is_disc, open_disc),
)


def recognises(spec: str) -> bool:
    """Return whether the string is a file or folder of one of the layouts."""
    return any(is_layout(Path(spec)) for is_layout, _ in LAYOUTS)


def open(request: SampleRequest[RetrievalOptions]) -> dict[str, Source]:
    """Return all images of a set, queries among them, as one part.

    Images have one label each: 'database', or for a query its name; of Holidays and Copydays the original's number.
    Ids are the names in the ground truth, else paths relative to the images' folder; those of queries with a box
    begin with 'query/'.
    """
    path = Path(request.spec)
    read = next(read for is_layout, read in LAYOUTS if is_layout(path))
    with reading():
        return {"all": read(path, request.options)}


FORMAT = SourceFormat(__doc__, SampleReader(recognises, open, RetrievalOptions))
