"""Re-identification: Market-1501, DukeMTMC, VeRi-776, MSMT17, CUHK03, or a table of identity, split and camera.

Zheng et al. (ICCV 2015), Ristani et al. (ECCVW 2016), Liu et al. (ECCV 2016), Wei et al. (CVPR 2018), Li et al. (CVPR
2014) in the split of Zhong et al. (CVPR 2017). Queries search the gallery; images of the query's identity and camera
are taken out of its ranking, and identities of the gallery without a query match nothing. Images of Market's identity
-1 (junk) are left out. A table (.csv, .tsv, .parquet) has the splits query and gallery, and perhaps train; without a
column of cameras no image is taken out.
"""

import dataclasses
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.listed import find_listed, folders_beside
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats import table
from sslbench.data.images import Files
from sslbench.data.labels import single_labels
from sslbench.data.maps.layout import walk
from sslbench.data.regular import reading
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import DataError
from sslbench.targets.classes import Answers, Queries
from sslbench.text import printable

# Folders of training images, gallery and queries: of Market-1501 and DukeMTMC, and of VeRi-776.
_FOLDERS = (
    {"train": "bounding_box_train", "gallery": "bounding_box_test", "query": "query"},
    {"train": "image_train", "gallery": "image_test", "query": "image_query"},
)
_NAME = re.compile(r"(?P<identity>-?\d+)_c(?P<camera>\d+)")
_JUNK = "-1"
# MSMT17: the folder of the images of each list.
_LISTS = {
    "train": ("list_train.txt", "train"),
    "query": ("list_query.txt", "test"),
    "gallery": ("list_gallery.txt", "test"),
}
_CUHK03 = "cuhk03_new_protocol_config_{}.mat"
T = TypeVar("T")
_SPLITS = ("train", "gallery", "query")


@dataclasses.dataclass(frozen=True)
class Options:
    """Options behind a '?': cuhk03?boxes=labeled."""

    boxes: Literal["detected", "labeled"] | None = setting(
        None, "people of CUHK03 as a detector found them, or as labelled by hand; by default detected"
    )


@dataclasses.dataclass(frozen=True)
class _Image:
    """Image with its path below the root; `camera` is '' where it is not known."""

    path: str
    identity: str
    camera: str
    split: str


def _folders(root: Path) -> dict[str, str]:
    return next((each for each in _FOLDERS if all((root / name).is_dir() for name in each.values())), {})


def _is_msmt(root: Path) -> bool:
    return all((root / name).is_file() for name, _ in _LISTS.values())


def _is_cuhk03(root: Path) -> bool:
    return any((root / _CUHK03.format(boxes)).is_file() for boxes in ("detected", "labeled"))


def _columns(file: Path) -> bool:
    """Return whether a table has queries by identity."""
    if file.suffix.lower() not in (".csv", ".tsv", ".parquet") or not file.is_file():
        return False
    try:
        if file.suffix.lower() != ".parquet":
            with file.open(encoding="utf-8-sig", errors="replace") as stream:
                # No more than a header needs: the first line may be endless.
                header = stream.readline(10_000)
            if not {"identity", "split"} <= {*re.split(r"[,;\t]", header.strip().lower().replace('"', ""))}:
                return False
        columns = _lower(table.read_cells(file).columns)
    except (DataError, OSError):  # opening it as any table says what is wrong
        return False
    return {"identity", "split"} <= {*columns} and "query" in {*map(str, columns["split"])}


def _lower(columns: Mapping[str, T]) -> dict[str, T]:
    return {name.strip().lower(): values for name, values in columns.items()}


def recognises(spec: str) -> bool:
    """Return whether the string is a folder of one of the layouts, or a table of identities with queries."""
    path = Path(spec)
    return bool(path.is_dir() and (_folders(path) or _is_msmt(path) or _is_cuhk03(path))) or _columns(path)


def open(request: SampleRequest[Options]) -> dict[str, Source]:
    """Return the images for training, where there are any, and queries with their gallery as test."""
    spec, root = request.spec, Path(request.spec)
    notes: tuple[str, ...] = ()
    if request.options.boxes and not (root.is_dir() and _is_cuhk03(root)):
        raise DataError(f"{spec} is not CUHK03, so ?boxes={request.options.boxes} has no effect", "Leave it out.")
    with reading():
        if root.is_file():
            images, root, notes = _of_table(root)
        elif _is_cuhk03(root):
            images = [*_of_cuhk03(root, request.options.boxes or "detected")]
        else:
            images = [*(_of_lists(root) if _is_msmt(root) else _of_folders(root))]
    junk = sum(image.identity == _JUNK for image in images)
    images = sorted((image for image in images if image.identity != _JUNK), key=lambda image: printable(image.path))
    if absent := [split for split in ("query", "gallery") if not any(image.split == split for image in images)]:
        raise DataError(f"{spec} has no images of the split '{absent[0]}'", "It needs queries and a gallery.")
    notes = (*notes, f"{spec}: {counted(junk, 'image')} of identity -1 (junk) left out") if junk else notes
    test = [image for image in images if image.split != "train"]
    train = [image for image in images if image.split == "train"]
    parts = {"train": _source(f"{spec} (train)", root, train)} if train else {}
    queries = [image for image in test if image.split == "query"]
    note = f"{spec}: {counted(len(queries), 'query')}, {counted(len(test) - len(queries), 'image')} searched"
    source = _source(f"{spec} (test)", root, test, (*notes, note))
    found = Queries({"": _answers(test)}, frozenset(printable(query.path) for query in queries), identities=True)
    return {**parts, "test": dataclasses.replace(source, target=source.target.changed(queries=found))}


def _source(name: str, root: Path, images: Sequence[_Image], notes: tuple[str, ...] = ()) -> Source:
    files = Files(tuple(image.path for image in images), str(root))
    labels = single_labels([image.identity for image in images])
    return Source(name, tuple(printable(image.path) for image in images), labels, files, notes)


def _answers(images: Sequence[_Image]) -> dict[str, Answers]:
    gallery: dict[str, list[_Image]] = {}
    for image in images:
        if image.split == "gallery":
            gallery.setdefault(image.identity, []).append(image)
    answers = {}
    for query in images:
        if query.split == "query":
            same: tuple[list[str], list[str]] = [], []
            for image in gallery.get(query.identity, ()):
                same[bool(query.camera) and image.camera == query.camera].append(printable(image.path))
            answers[printable(query.path)] = Answers(tuple(same[0]), tuple(same[1]))
    return answers


def _of_folders(root: Path) -> Iterator[_Image]:
    for split, folder in _folders(root).items():
        for name in walk(root / folder):
            found = _NAME.match(name.rpartition("/")[2])
            if found is None:
                raise DataError(
                    f"{root / folder / name} has no identity and camera in its name",
                    "Names begin like 0002_c1s1 or 0002_c002.",
                )
            yield _Image(f"{folder}/{name}", found["identity"], str(int(found["camera"])), split)


def _of_lists(root: Path) -> Iterator[_Image]:
    for split, (name, folder) in _LISTS.items():
        for number, line in enumerate((root / name).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            path, _, identity = line.strip().rpartition(" ")
            parts = path.rpartition("/")[2].split("_")
            if line.strip() and not (identity.isdecimal() and len(parts) > 2 and parts[2].isdecimal()):
                raise DataError(f"{root / name}, line {number} is no path and identity", "As 0000/0000_000_01_x.jpg 0.")
            if line.strip():
                yield _Image(f"{folder}/{path}", identity, parts[2], split)


def _of_cuhk03(root: Path, boxes: str) -> Iterator[_Image]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    file, folder = root / _CUHK03.format(boxes), f"images_{boxes}"
    if not file.is_file():
        raise DataError(f"{file} is not there", "Leave out ?boxes=, or name the boxes whose file is there.")
    if not (root / folder).is_dir():
        raise DataError(
            f"{file} is there, but not the folder {root / folder}",
            "Write the images of cuhk-03.mat there as PNG: 1_001_1_01.png is pair of cameras, person, view and number.",
        )
    try:
        content: dict[str, Any] = loadmat(file, squeeze_me=True)
        names, identities = (np.atleast_1d(content[key]).tolist() for key in ("filelist", "labels"))
        rows = {split: np.atleast_1d(content[f"{split}_idx"]).tolist() for split in _SPLITS}
    except KeyError as error:
        raise DataError(f"{file} has no array {error}") from None
    except (OSError, ValueError, TypeError, IndexError, NotImplementedError, zlib.error, MatReadError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    seen = set[int]()
    for split, numbers in rows.items():
        for number in numbers:  # from 1
            if number in seen:
                raise DataError(f"{file}: {split}_idx has {number}, which stands there or in another split already")
            seen.add(number)
            if not (isinstance(number, int) and 1 <= number <= min(len(names), len(identities))):
                raise DataError(f"{file}: {split}_idx has {number}, and there are {len(names):,} files")
            name = str(names[number - 1])
            if len(parts := name.split("_")) != 4:
                raise DataError(f"{file}: {name} is no name of CUHK03", "Names are such as 1_001_1_01.png.")
            yield _Image(f"{folder}/{name}", str(identities[number - 1]), parts[2], split)


def _of_table(file: Path) -> tuple[list[_Image], Path, tuple[str, ...]]:
    cells = table.read_cells(file)
    columns = _lower(cells.columns)
    column = next((name for name in table.IMAGE_COLUMNS if name in columns), None)
    if column is None:
        raise DataError(f"{file} has no column of images", f"It is called {', '.join(table.IMAGE_COLUMNS[:4])} or so.")
    text = {name: [str(value).strip() for value in columns[name]] for name in (column, "identity", "split")}
    cameras = [str(value).strip() for value in columns.get("camera", [""] * len(text[column]))]
    cameras = ["" if camera.lower() in ("", "nan", "none") else camera for camera in cameras]
    for i, (identity, split) in enumerate(zip(text["identity"], text["split"], strict=True)):
        if split not in _SPLITS or not identity:
            raise DataError(
                f"{cells.name}, {cells.row_name(i)}: identity '{identity}', split '{split}'",
                f"Splits are {', '.join(_SPLITS)}.",
            )
    listed = find_listed(str(file), text[column], folders_beside(file))
    rows = zip(listed.paths, text["identity"], cameras, text["split"], strict=True)
    notes = (
        () if "camera" in columns else (f"{file} has no column 'camera': no image of a query's camera is taken out",)
    )
    return [_Image(*row) for row in rows], listed.folder, (*cells.notes, *listed.notes, *notes)


FORMAT = SourceFormat(__doc__, SampleReader(recognises, open, Options))
