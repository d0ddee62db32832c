"""Ground truth of landmarks and instances: Oxford5k, Paris6k, their revisited versions, INSTRE."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.data.formats.retrieval.parts import DATABASE, Box, RetrievalOptions, assembled, images_below, matched
from sslbench.data.source import Source
from sslbench.errors import DataError, WeightsError
from sslbench.targets.queries import Answers
from sslbench.weights.reading.pickled import resolve
from sslbench.weights.reading.unpickle import RestrictedPickle

_NAME = re.compile(r"gnd_.*\.(pkl|mat)", re.IGNORECASE)
_KEYS = ("imlist", "qimlist", "gnd")
_LISTS = ("good", "ok", "junk")
_OXFORD_PREFIX = "oxc1_"


def is_ground_truth(path: Path) -> bool:
    """Return whether the path is a file gnd_*.pkl or gnd_*.mat, or a folder that holds just one."""
    return _file_of(path) is not None


def _file_of(path: Path) -> Path | None:
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
    try:
        if file.suffix.lower() == ".mat":
            from scipy.io import loadmat

            content = loadmat(file, simplify_cells=True)
            # A cell array of one element is read as the element.
            content |= {key: [content[key]] for key in _KEYS if isinstance(content.get(key), str | Mapping)}
        else:
            with file.open("rb") as stream:
                restricted = RestrictedPickle(file.stat().st_size)
                content = resolve(restricted.load(stream), restricted.budget)
    except WeightsError as error:
        raise DataError(f"{file}: {error.message}") from error
    except Exception as error:  # a damaged file raises anything
        message = " ".join(str(error).split())[:200]
        raise DataError(f"{file} is no ground truth, or is damaged: {message}") from error
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


def is_oxford(path: Path) -> bool:
    """Return whether the path is a folder of lists such as all_souls_1_query.txt, directly or one level below."""
    return bool(path.is_dir() and _query_lists(path))


def _query_lists(folder: Path) -> list[Path]:
    return sorted(folder.glob("*_query.txt")) or sorted(folder.glob("*/*_query.txt"))


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
