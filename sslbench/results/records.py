"""Result records on disk: one JSON file and one file of per-sample scores each, written atomically."""

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import importlib.metadata
import json
import logging
import math
import platform
import re
import subprocess
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sslbench import config
from sslbench.errors import ResultError, UsageError
from sslbench.metrics.answers import BestScores, ClassScores, predicted_classes, stored_places
from sslbench.metrics.measure import SampleMeans
from sslbench.metrics.regression import R2
from sslbench.names import did_you_mean, plugin_remedy
from sslbench.paths import files_below, not_written, temporary_beside
from sslbench.results import SCHEMA, Neighbours, NetworkWeights, Result, WorkingFolder, canonical, plain, sinks
from sslbench.targets import kinds
from sslbench.targets.classes import Classes

_SCORES = ".scores.npz"
OVERLAPS = ".overlaps.csv"
"""Suffix of the list of suspected overlaps beside a record."""
NEIGHBOURS = ".neighbours.jpg"
"""Suffix of the sheet of queries and their neighbours beside a record."""
PICTURE = ".png"
"""Suffix of the picture of some test images, with prediction and truth, beside a record."""
WEIGHTS = ".weights.torch"
"""Suffix of the network that a protocol has trained, beside its record."""
PROBE = ".probe.torch"
"""Suffix of a head trained on a frozen backbone, beside its record."""
PREDICTIONS_CSV = ".predictions.csv"
"""Suffix of the predicted class of every test sample beside a record with one class per sample."""
CONFUSION_CSV, CONFUSION_PNG = ".confusion.csv", ".confusion.png"
"""Suffixes of the confusion matrix beside it."""
PREDICTIONS = ".predictions.json"
"""Suffix of a detector's COCO result file beside its record; `read_tree` skips it."""
log = logging.getLogger("sslbench")

OBJECTS = ".objects.npz"
"""Suffix of a file of the objects of a test part, which all records of detections on it share."""
_COMPRESSED_UP_TO = 64_000_000  # largest size of stored scores, in bytes
_DRAWS_UP_TO = 256_000_000  # bytes of the scores of all draws: 5 of 50,000 samples and 256 classes
_HALF_FROM = 101  # classes, from which scores are stored in half precision: 100 MB for ImageNet
_LARGEST_HALF = 2.0**15
WHOLE_UP_TO = 2**28
"""Scores (samples x classes) of one class per sample above which the best of each sample alone are stored."""
_RECORDED_PACKAGES = ("sslbench", "torch", "torchvision", "numpy", "scikit-learn", "timm", "onnxruntime")


@dataclasses.dataclass(frozen=True)
class Scores:
    """Per-sample scores of a result.

    Attributes:
        scores: float32 (N, C), higher means more likely; the best ones alone where all are more than `WHOLE_UP_TO`.
        labels: int64 (N,) class numbers, or int8 (N, C) with 1 present, 0 absent, -1 ignore.
        groups: int64 (N,), the group of each sample, which comparisons keep together; None: each stands for itself.
        draws: scores (N, C) of each draw, for metrics that are means over several draws of train, the first being
            `scores`; empty where the file would be too large.
        places: (R, N), number of classes ranked before the true one in each draw, for single labels; None where
            there are no draws and scores are in single precision.
        neighbours: first images found by a few queries; not stored, but drawn beside the record.
        means: metrics that are means over the samples, with the outcomes of each, one bit per outcome in the file; None
            where there are none.
        half: True if the file has scores in half precision (11 binary digits). The predicted classes and `places` are
            those of the scores themselves, so top-k accuracies, recalls and F1 do not change.
        file: file that they were read from or written to; None where there is none.
        weights: network or probe that gave them, written beside the record; None where there is none.
    """

    ids: Sequence[str]
    scores: npt.NDArray[np.float32] | BestScores
    labels: npt.NDArray[np.int64] | npt.NDArray[np.int8]
    classes: tuple[str, ...]
    groups: npt.NDArray[np.int64] | None = None
    draws: tuple[npt.NDArray[np.float32] | BestScores, ...] = ()
    places: npt.NDArray[np.integer] | None = None
    neighbours: tuple[Neighbours, ...] = ()
    means: SampleMeans | None = None
    half: bool = False
    file: Path | None = None
    weights: NetworkWeights | None = None

    def draws_of(self, result: Result) -> tuple[npt.NDArray[np.float32] | BestScores, ...]:
        """Return the scores of all draws whose mean the result is, one for a single draw; () if they were not kept."""
        draws = self.draws or (self.scores,)
        return draws if len(draws) >= result.protocol.settings.get("draws", 1) else ()

    @property
    def whole(self) -> npt.NDArray[np.float32]:
        """Scores of all classes; refused where the best ones alone are stored."""
        if isinstance(self.scores, BestScores):
            raise best_alone(self.scores, str(self.file), "the scores of all are needed")
        return self.scores


def best_alone(scores: BestScores, name: str, need: str) -> ResultError:
    """Return the error for a record that has the best scores of each sample where those of all classes are needed."""
    return ResultError(
        f"{name}: of {scores.n_classes:,} classes the {scores.scores.shape[1]} best ones of each sample are stored, "
        f"and {need}",
        f"All are stored of up to {WHOLE_UP_TO:,} scores: evaluate fewer test samples (--limit).",
    )


def write(  # noqa: PLR0913  the parts of a file of scores
    result: Result,
    scores: ClassScores,
    ids: Sequence[str],
    labels: npt.NDArray[np.int64] | npt.NDArray[np.int8],
    folder: Path,
    *,
    groups: npt.NDArray[np.int64] | None = None,
    draws: Sequence[ClassScores] = (),
    places: npt.NDArray[np.integer] | None = None,
    means: SampleMeans | None = None,
    same_as: Path | None = None,
) -> Result:
    """Write a record and its per-sample scores to `<folder>/<protocol>/<weights>-<id>.json` and `.scores.npz`.

    `scores`: (N, C), columns in the order of `result.data.test.classes`; (N, 0) where classes have no scores. Of label
    maps and videos (N, K * C): the K counts of each class in `summary.CLASS_COLUMNS`. Of other labels without classes
    the columns of `summary.ROW_COLUMNS`; `labels`: int64 (N,), or int8 (N, C); `groups`: int64 (N,), or None; `draws`:
    scores (N, C) of every draw; of more than 256 MB only `places` are written; `places`: (R, N), see `Scores`.
    """
    # The JSON file is written last, so that a visible record has its scores. A record of the same measurement under the
    # same name is replaced. Scores of more than 100 classes are stored in half precision, with `places`.
    classes = kinds()[result.data.labels].columns(result.data.test.classes) if scores.shape[1] else ()
    if scores.shape != (len(ids), len(classes)) or len(labels) != len(ids):
        raise ValueError(f"scores {scores.shape}, {len(ids)} ids, {len(labels)} labels, {len(classes)} classes")
    if {draw.shape for draw in draws} - {scores.shape} or (groups is not None and groups.shape != (len(ids),)):
        raise ValueError(f"scores {scores.shape}, but those of a draw or the groups have another shape")
    stem = path_of(result, folder).stem

    kind = kinds()[result.data.labels]
    one_class = issubclass(kind, Classes)
    if one_class and (isinstance(scores, BestScores) or scores.size > WHOLE_UP_TO):
        scores, draws = BestScores.of(labels.astype(np.int64), scores, result.probabilities), ()
    half = kind.of_classes and scores.shape[1] >= _HALF_FROM
    # Zeros and names compress well; dense scores of a thousand classes hardly do, in 15 seconds.
    each = math.prod(scores.shape) * (2 if half else 4)
    kept = draws if each * len(draws) <= _DRAWS_UP_TO else ()
    save = np.savez_compressed if each * max(1, len(kept)) < _COMPRESSED_UP_TO else np.savez
    if half and one_class and places is None:
        places = stored_places(labels.astype(np.int64), [scores])

    def write_scores(file: IO[bytes]) -> None:
        arrays: dict[str, Any] = {"ids": np.asarray(list(ids), dtype=np.str_), "classes": np.asarray(classes, np.str_)}
        arrays |= {} if groups is None else {"groups": groups}
        arrays |= {} if places is None else {"places": places}
        if means is not None:
            arrays |= {"means_metrics": np.asarray(means.metrics, np.str_), "means_weights": means.weights}
            arrays |= {"means_outcomes": np.packbits(means.outcomes, axis=1)}
        if isinstance(scores, BestScores):
            arrays |= {f"best_{name}": part for name, part in scores.arrays().items()}
        else:
            whole = {"scores": scores} | {f"draw{i}": draw for i, draw in enumerate(kept) if i}
            parts = {name: np.asarray(part, np.float32) for name, part in whole.items()}
            arrays |= _halved(parts, one_class=one_class) if half else parts
        save(file, labels=labels, **arrays)

    return _write(dataclasses.replace(result, scores_file=stem + _SCORES), folder, write_scores, same_as)


def _halved(parts: Mapping[str, npt.NDArray[np.floating]], *, one_class: bool) -> dict[str, Any]:
    """Return scores in half precision times a power of two, `exponent`, by which the largest uses its range."""
    each = (np.max(np.abs(part), where=np.isfinite(part), initial=0) for part in parts.values())
    largest = max(map(float, each))
    exponent = math.floor(math.log2(_LARGEST_HALF / largest)) if largest > 0 else 0
    found: dict[str, Any] = {"exponent": exponent}
    for name, scores in parts.items():
        found[name] = half = np.ldexp(scores, exponent).astype(np.float16)
        if one_class:
            # Where rounding makes the best score equal to another, it gets the next larger number.
            best = predicted_classes(scores)
            rows = np.flatnonzero(predicted_classes(half) != best)
            half[rows, best[rows]] = np.nextafter(half[rows, best[rows]], np.float16(np.inf))
    return found


def _unpacked(arrays: np.lib.npyio.NpzFile, n: int) -> SampleMeans | None:
    """Return the metrics that are means of a file of n samples; None where it has none."""
    if "means_metrics" not in arrays.files:
        return None
    metrics, weights, packed = (arrays[f"means_{name}"] for name in ("metrics", "weights", "outcomes"))
    if weights.ndim != 2 or len(weights) != len(metrics) or packed.shape != (n, -(-weights.shape[1] // 8)):
        raise ValueError(
            f"means of {len(metrics)} metrics, weights {weights.shape}, outcomes {packed.shape} of {n} ids"
        )
    outcomes = np.unpackbits(packed, axis=1, count=weights.shape[1]).astype(np.bool_)
    return SampleMeans(tuple(metrics.tolist()), weights.astype(np.float64), outcomes)


def write_without_scores(result: Result, folder: Path) -> Result:
    """Write the record of a measurement without per-sample scores, such as detection; return it with its `file`."""
    return _write(dataclasses.replace(result, scores_file=None), folder, None)


def path_of(result: Result, folder: Path) -> Path:
    """Return the path of a record's JSON file in a folder of results."""
    return Path(folder) / slug(result.protocol.name) / f"{slug(result.weights.name)}-{result.id}.json"


def _write(
    result: Result, folder: Path, write_scores: Callable[[IO[bytes]], object] | None, same_as: Path | None = None
) -> Result:
    path = path_of(result, folder)
    content = plain(result)
    # refuses a record that could not be read back
    content["checksum"] = checksum = _checksum(config.build(Result, content, path.stem))
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        if write_scores is not None and not (same_as and _linked(path.with_name(path.stem + _SCORES), same_as)):
            replace_file(path.with_name(path.stem + _SCORES), write_scores)
        replace_file(path, text.encode())
    except OSError as error:
        raise ResultError(not_written(path, error), "Free some, or give another --out.") from error
    sinks.send(content, path)
    return dataclasses.replace(result, checksum=checksum, file=path)


def _checksum(result: Result) -> str:
    return hashlib.sha256(canonical(dict(result.metrics)).encode()).hexdigest()[:16]


def is_edited(result: Result) -> bool:
    """Return whether the metrics of a record are others than those that were written; False for older records."""
    return result.checksum not in (None, _checksum(result))


def _linked(path: Path, file: Path) -> bool:
    """Make a path a hard link to a file, in place of what is there; return False where that cannot be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary_beside(path) as temporary:
            temporary.unlink(missing_ok=True)
            temporary.hardlink_to(file)
            temporary.replace(path)
    except OSError:  # another disk, a file system without links, or the file is gone
        return False
    return True


def slug(name: str) -> str:
    """Return a name as part of a file name: letters, digits, dot, dash and underscore; at most 60 characters.

    >>> slug("my weights/last.pt")
    'my-weights-last.pt'
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60] or "unnamed"


def replace_file(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a file atomically: beside its place under a hidden name, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary_beside(path) as temporary:
        with temporary.open("wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
        temporary.replace(path)


def is_record(path: Path) -> bool:
    """Return whether a file begins as records do; it is not read to its end, since manifests may be large."""
    try:
        with Path(path).open("rb") as file:
            return re.match(rb'\s*\{\s*"schema"\s*:\s*\d', file.read(200)) is not None
    except OSError:
        return False


def read(path: Path) -> Result:
    """Read one record."""
    path = Path(path)
    with _errors_name(path):
        # JSON has no NaN: where another program wrote it, the number is not computable.
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    if not isinstance(content, dict) or type(content.get("schema")) is not int:
        raise ResultError(f"{path} is not a result record: it has no 'schema' number")
    if content["schema"] > SCHEMA:
        raise ResultError(
            f"{path} was written by a newer sslbench: its schema is {content['schema']}, this one reads up to {SCHEMA}",
            "Upgrade with: pip install --upgrade sslbench",
        )
    if content["schema"] < 1 or "file" in content:
        raise ResultError(f"{path} is not a result record of schema 1 to {SCHEMA}")
    content.pop("rounding", None)  # records of 0.1.0 in int8 compared themselves with fp32 on a sample
    try:
        result = config.build(Result, content, str(path))
    except UsageError as error:
        raise ResultError(error.message, error.remedy) from error
    if result.schema < SCHEMA:
        result = _with_r2_as_fraction(content, result, str(path))
    if result.headline not in result.metrics:
        raise ResultError(f"{path}: the headline '{result.headline}' is not among the metrics")
    if (labels := result.data.labels) not in kinds():
        if remedy := plugin_remedy(name := result.protocol.name):
            raise ResultError(f"{path}: the plug-in that has {name} is not installed", remedy)
        raise ResultError(f"{path}: data: labels: '{labels}' is not possible", did_you_mean(labels, kinds()))
    return dataclasses.replace(_with_train_part(result), file=path)


def _with_r2_as_fraction(content: dict[str, Any], result: Result, where: str) -> Result:
    """Return a record of schema 1 as one of schema 2: it held R2 in percent."""
    if R2.name not in result.metrics:
        return dataclasses.replace(result, schema=SCHEMA)

    def scaled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: each if key == "n" else scaled(each) for key, each in value.items()}
        return value / 100 if isinstance(value, int | float) else value

    def changed(part: Any) -> Any:
        if isinstance(part, dict):
            return {key: (scaled if key.rpartition(".")[2] == R2.name else changed)(part[key]) for key in part}
        return [changed(each) for each in part] if isinstance(part, list) else part

    found = changed(content)
    found["per_class"] = scaled(content.get("per_class", {}))
    if result.headline == R2.name:
        found["train"] = scaled(content.get("train"))
        found["groups"] = {
            column: [{**group, "metric": scaled(group["metric"])} for group in groups]
            for column, groups in content.get("groups", {}).items()
        }
        if result.overlaps is not None:
            found["overlaps"]["without"] = scaled(content["overlaps"].get("without"))
    new = dataclasses.replace(config.build(Result, found, where), schema=SCHEMA)
    known = result.checksum is not None and not is_edited(result)
    return dataclasses.replace(new, checksum=_checksum(new)) if known else new


def read_intact(path: Path) -> Result:
    """Read one record that is to stand for a measurement, so that this is not made again."""
    result = read(path)
    if is_edited(result):
        raise ResultError(f"{path}: its metrics are not those that were written; the record was edited")
    return result


def _with_train_part(result: Result) -> Result:
    """Return a record with the part of train that a network was finetuned on, which older ones have in `layer` only."""
    _, _, part = result.layer.partition(", ")
    if result.protocol.name != "finetune" or result.data.train_part or not part:
        return result
    part = re.sub(r" images of .* (?=\([0-9a-f]{8}\)$)", " listed images ", part)
    return dataclasses.replace(result, data=dataclasses.replace(result.data, train_part=part))


@contextlib.contextmanager
def _errors_name(path: Path) -> Iterator[None]:
    """Turn errors of reading a file into one message with its name."""
    try:
        yield
    except OSError as error:
        raise ResultError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, EOFError, RecursionError, zipfile.BadZipFile, zlib.error) as error:
        raise ResultError(
            f"{path} is damaged: {error}", "Move it out of the folder of results, or run that evaluation again."
        ) from error


def read_tree(folder: Path) -> list[Result]:
    """Return all records below a folder, in order of their paths, without hidden files and folders and predictions."""
    found, broken = read_readable(folder)
    if broken:
        raise broken[0]
    return found


def read_readable(folder: Path) -> tuple[list[Result], list[ResultError]]:
    """Return all records below a folder as `read_tree` does, and the errors of those that cannot be read."""
    # These are never left out in silence: a table would lack a row.
    folder = Path(folder)
    if folder.is_file():
        return [read(folder)], []
    if not folder.is_dir():
        raise ResultError(f"there is no folder of results {folder}", "Results are written by: sslbench eval ... --out")
    try:
        files = files_below(folder, ".json")
    except OSError as error:
        raise ResultError(f"cannot read {error.filename!s:.300}: {error.strerror}") from error
    found, broken = [], []
    for file in files:
        if file.name.endswith(PREDICTIONS):
            continue
        try:
            found.append(read(file))
        except ResultError as error:
            broken.append(error)
    return found, broken


def left_out(broken: Sequence[ResultError]) -> list[str]:
    """Return the note of a table for each record that could not be read."""
    return [f"Left out: {error.message.removesuffix('.')}." for error in broken]


def neighbours_path(result: Result) -> Path | None:
    """Return the path of the sheet of neighbours of a record, which may not exist; None for a record not on disk."""
    return None if result.file is None else result.file.with_suffix(NEIGHBOURS)


def predictions_paths(result: Result) -> dict[str, Path]:
    """Return the file of detections of each training of a record: 'seed 0' -> path; {} for a record not on disk."""
    if result.file is None:
        return {}
    names = {f"seed {each.seed}": each.record_file for each in result.trainings}
    names = names or {f"seed {result.seed}": result.file.name}
    return {seed: result.file.with_name(name.removesuffix(".json") + PREDICTIONS) for seed, name in names.items()}


def picture_path(result: Result) -> Path | None:
    """Return the path of the picture of a record, which may not exist; None for a record not on disk."""
    return None if result.file is None else result.file.with_suffix(PICTURE)


def write_picture(result: Result, picture: bytes) -> None:
    """Write a PNG beside a record, unless it is empty."""
    path = picture_path(result)
    if not picture or path is None:
        return
    try:
        path.write_bytes(picture)
    except OSError as error:
        raise ResultError(not_written(path, error)) from error


def scores_path(result: Result) -> Path | None:
    """Return the path of the per-sample scores of a record that was read from disk; None if they are missing."""
    if result.file is None or result.scores_file is None:
        return None
    path = result.file.parent / result.scores_file
    return path if path.is_file() else None


def read_scores(path: Path) -> Scores:
    """Read per-sample scores, from their own path or that of their record; nothing pickled is loaded."""
    path = Path(path)
    if path.suffix == ".json":
        path = path.with_suffix(_SCORES)
    with _errors_name(path), path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as arrays:
        ids, classes = tuple(arrays["ids"].tolist()), tuple(arrays["classes"].tolist())
        names = sorted((n for n in arrays.files if re.fullmatch("draw[0-9]+", n)), key=lambda n: (len(n), n))
        # Files of older versions have no groups, places, exponent or means.
        half, exponent = "exponent" in arrays.files, np.asarray(arrays.get("exponent", 0))
        if exponent.shape != () or exponent.dtype.kind != "i":
            raise ValueError(f"the exponent of its scores is {exponent.dtype} {exponent.shape}")
        best = {name.removeprefix("best_"): arrays[name] for name in arrays.files if name.startswith("best_")}
        scores: npt.NDArray[np.float32] | BestScores
        if best:
            scores, further = BestScores(n_classes=len(classes), **best), []
            if scores.scores.shape[1] < 2:  # from a second one on a margin is known
                raise ValueError("one score per sample, and at least two are stored")
        else:
            scores, *further = (_single(arrays[name], int(exponent)) for name in ("scores", *names))
        found = Scores(
            ids,
            scores,
            arrays["labels"],
            classes,
            arrays.get("groups"),
            (scores, *further) if further else (),
            arrays.get("places"),
            means=_unpacked(arrays, len(ids)),
            half=half,
            file=path,
        )
        if {draw.shape for draw in (found.scores, *further)} != {(len(ids), len(classes))} or len(found.labels) != len(
            ids
        ):
            raise ValueError(f"scores {found.scores.shape}, {len(ids)} ids, {len(classes)} classes")
        for name, column in (("groups", found.groups), ("places", found.places)):
            if column is not None and column.shape[-1:] != (len(ids),):
                raise ValueError(f"{name} {column.shape} of {len(ids)} ids")
    return found


def _single(stored: npt.NDArray[np.floating], exponent: int) -> npt.NDArray[np.float32]:
    return (
        stored if stored.dtype == np.float32 else np.asarray(np.ldexp(stored.astype(np.float32), -exponent), np.float32)
    )


@functools.cache  # metadata of packages take long to read, and what is loaded stays
def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that can change a number, without importing any of them."""
    found = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def now() -> str:
    """Return the time in UTC, ISO 8601 to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def working_folder() -> WorkingFolder:
    """Return the current folder with its git commit, as it was when this process first asked."""
    return _git_state(str(Path.cwd()))


_GIT = ("git", "-c", "core.fsmonitor=false")
"""git, without the program that a folder's own configuration may name."""
_GIT_S = 20.0


@functools.cache
def _git_state(folder: str) -> WorkingFolder:
    def ask(*words: str) -> str:
        return subprocess.run(
            [*_GIT, *words], cwd=folder, capture_output=True, text=True, check=True, timeout=_GIT_S
        ).stdout.strip()

    try:
        commit = ask("rev-parse", "--verify", "HEAD")
        changed = bool(ask("--no-optional-locks", "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return WorkingFolder(path=folder)
    return WorkingFolder(path=folder, commit=commit, changed=changed)
