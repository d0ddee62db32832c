"""Sets whose file names tell the answers, and lists of pairs: Holidays, Copydays, DISC21."""

import csv
import re
from pathlib import Path

from sslbench.data.formats.retrieval.parts import DATABASE, RetrievalOptions, assembled, images_below, matched
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.targets.queries import Answers

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
    tasks = {task: copies[task] for task in sorted(copies, key=_task_order)}
    labels = {name: str((_number(name) or 0) // 100) for name in files}
    apart = [name for answers in tasks.values() for name in answers]
    return assembled(str(path), files, labels, tasks, apart=apart, distractors=options.distractors)


def _task_order(task: str) -> tuple[bool, str, int]:
    name, _, level = task.rpartition("_")
    return task != "strong", name, int(level) if level.isdecimal() else 0


def is_disc(path: Path) -> bool:
    """Return whether the path is a folder with references/, queries/ and a list of pairs, or such a list."""
    if path.is_dir():
        return (path / "references").is_dir() and (path / "queries").is_dir() and len(_pair_lists(path)) == 1
    return path.suffix.lower() == ".csv" and _has_pairs(path)


def _pair_lists(folder: Path) -> list[Path]:
    return [file for file in sorted(folder.glob("*.csv")) if _has_pairs(file)]


def _has_pairs(file: Path) -> bool:
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            first = stream.readline(200)
    except (OSError, UnicodeDecodeError):
        return False
    return tuple(word.strip() for word in first.strip().split(",")) == _COLUMNS


def open_disc(path: Path, options: RetrievalOptions) -> Source:
    """Return DISC2021 (Douze et al. 2021): queries of the list, each with the reference that it is a copy of, if any.

    Raises:
        DataError: the list names images that are not there.
    """
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
