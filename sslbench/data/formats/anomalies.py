"""Anomalies with masks: MVTec AD and its layout (MVTec LOCO), VisA with its split_csv/1cls.csv.

Bergmann et al. (CVPR 2019; IJCV 2022) and Zou et al. (ECCV 2022). MVTec's layout is a folder per category, or one of
them: CATEGORY/train/good, CATEGORY/test/good and CATEGORY/test/DEFECT, and masks ground_truth/DEFECT/NAME_mask.png
(NAME.png, or the files of a folder NAME as LOCO has them, which are joined) in the category. LOCO's defects_config.json
in the category says for the pixel value of each mask after how many pixels its region is found.
`?category=bottle,screw` takes some categories. Pixels above 0 are defects. Without ground_truth/ images alone are
scored.
"""

import csv
import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sslbench.arrays import BoolArray, OfRows
from sslbench.config import setting
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.format import Reader, SourceFormat
from sslbench.data.images import Files
from sslbench.data.maps.files import load
from sslbench.data.maps.layout import walk
from sslbench.data.maps.types import SAME_SIZE, size_and_turn, size_difference
from sslbench.data.regular import reading
from sslbench.data.source import Source
from sslbench.data.wording import counted, part_name, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.anomalies import Anomalies
from sslbench.targets.label_maps import IGNORED, LabelMap
from sslbench.targets.target import Images
from sslbench.text import printable

_GOOD, _TRUTH = "good", "ground_truth"
_LIST = "split_csv/1cls.csv"
_SATURATION = "defects_config.json"
_COLUMNS = ("object", "split", "label", "image", "mask")


@dataclasses.dataclass(frozen=True, eq=False)
class DefectMasks(OfRows):
    """Masks of defects, of which an image may have several files or none.

    Attributes:
        name: of the source, for messages.
        images: the images of the masks.
        root: folder of the files.
        files: those of each image; (): no defect; None: not known where one is.
        saturations: of the category of each image, pixel value of a mask -> number of pixels after which its region is
            found, or share of the region if true stands behind it; {} without.
        kinds: kind of anomaly of each image, the folder of its defects; '' for good images.
    """

    of_rows = ("files", "images", "saturations", "kinds")
    name: str
    images: Images
    root: str
    files: tuple[tuple[str, ...] | None, ...]
    saturations: tuple[Mapping[int, tuple[float, bool]], ...]
    kinds: tuple[str, ...]

    def read_map(self, index: int, *, size: tuple[int, int] | None = None) -> LabelMap:
        """Return the mask of an image, 1 for defects; see `PixelLabels`."""
        size, files = size or size_and_turn(self.images, index)[0], self.files[index]
        if size is None:
            raise UnreadableImage(self.images.path(index), "its size cannot be read")
        semantic = np.full(size, IGNORED if files is None else 0, np.int32)
        masks = Files(files or (), self.root)
        for i in range(len(masks)):
            values = load(masks, i, MAX_PIXELS).indices()
            if found := size_difference(values.shape, size, "the mask"):
                raise DataError(f"{self.name}: {masks.path(i)}: {found}", SAME_SIZE)
            semantic[values > 0] = 1
        return LabelMap(semantic, None)

    def read_regions(self, index: int) -> list[tuple[BoolArray, int]]:
        """Return mask (H, W) and number of pixels after which it is found, of each region of an image."""
        masks, regions = Files(self.files[index] or (), self.root), []
        for i in range(len(masks)):
            values = load(masks, i, MAX_PIXELS).indices()
            present = np.unique(values[values > 0]).tolist()
            known = self.saturations[index]
            if len(present) > 1 or not set(present) <= known.keys():
                raise DataError(
                    f"{self.name}: {masks.path(i)} has the values {some(present)}",
                    f"A mask has one, and {_SATURATION} of its category says when it is found: {some(list(known))}.",
                )
            if present:
                (needed, relative), area = known[present[0]], int((values > 0).sum())
                regions.append((values > 0, max(1, int(needed * area) if relative else min(int(needed), area))))
        return regions

    def fingerprint(self) -> str:
        """Return a hash of the masks and saturations, 32 hex digits."""
        state = hashlib.sha256(b"defects" + repr([files and len(files) for files in self.files]).encode())
        if any(self.saturations):
            state.update(repr(([sorted(each.items()) for each in self.saturations], self.kinds)).encode())
        state.update(Files(tuple(file for files in self.files for file in files or ()), self.root).digests().tobytes())
        return state.hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class AnomalyOptions:
    """Options behind a '?': mvtec?category=bottle,screw."""

    category: tuple[str, ...] = setting((), "categories to take; none: all", filled=False, distinct=True)


@dataclasses.dataclass(frozen=True)
class _Image:
    """Image of a category, with its file relative to the root and the masks of its defects."""

    category: str
    split: str
    file: str
    anomalous: bool
    masks: tuple[str, ...] | None
    saturations: Mapping[int, tuple[float, bool]] = dataclasses.field(default_factory=dict)
    kind: str = ""


def _saturations(path: Path) -> dict[int, tuple[float, bool]]:
    """Return pixel value -> pixels or share of a region after which it is found, and whether it is a share."""
    if not path.is_file():
        return {}
    try:
        entries = json.loads(path.read_text(encoding="utf-8-sig"))
        found = {
            int(each["pixel_value"]): (float(each["saturation_threshold"]), bool(each["relative_saturation"]))
            for each in entries
        }
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise DataError(
            f"{path} is no list of defects: {type(error).__name__} {error}",
            "Each has pixel_value, saturation_threshold and relative_saturation, as in MVTec LOCO AD.",
        ) from error
    if wrong := [value for value, (needed, _) in found.items() if not 0 < needed < np.inf]:
        raise DataError(f"{path}: the saturation_threshold of pixel_value {wrong[0]} should be above 0")
    return found


def _categories(root: Path) -> dict[str, str]:
    """Return the categories of a folder in MVTec's layout -> their folders, relative to it with a slash at the end."""
    if _is_category(root):
        return {root.resolve().name: ""}
    folders = [path for path in sorted(root.iterdir()) if (path / "test").is_dir()]
    # One without good images is named by the error: left out, it would change the means.
    return {path.name: f"{path.name}/" for path in folders} if any(map(_is_category, folders)) else {}


def _is_category(folder: Path) -> bool:
    return (folder / "train" / _GOOD).is_dir() and (folder / "test").is_dir()


def recognises(spec: str, options: Mapping[str, str]) -> bool:
    """Return whether the string is a folder in the layout of MVTec AD or of VisA."""
    root = Path(spec)
    return root.is_dir() and ((root / _LIST).is_file() or bool(_categories(root)))


def open(spec: str, options: AnomalyOptions) -> dict[str, Source]:
    """Return the good images of train, and good and anomalous ones of test; ids are paths below the folder."""
    root = Path(spec)
    with reading():
        listed = (root / _LIST).is_file()
        images = _of_list(root) if listed else _of_folders(root, _categories(root))
    names = tuple(sorted({image.category for image in images}))
    if unknown := [name for name in options.category if name not in names]:
        raise UsageError(f"{spec} has no category '{unknown[0]}'", did_you_mean(unknown[0], names))
    names = options.category or names
    return {
        split: _source(part_name(spec, split), root, names, [each for each in images if each.split == split])
        for split in ("train", "test")
    }


def _source(name: str, root: Path, names: Sequence[str], images: Sequence[_Image]) -> Source:
    images = sorted((image for image in images if image.category in names), key=lambda image: printable(image.file))
    if absent := [category for category in names if category not in {image.category for image in images}]:
        raise DataError(f"{name}: no images of {some(absent)}", "Each category needs good images to train, and a test.")
    values = [(names.index(image.category), int(image.anomalous)) for image in images]
    files = Files(tuple(image.file for image in images), str(root))
    saturations = tuple(image.saturations for image in images)
    kinds = tuple(image.kind for image in images)
    masks = DefectMasks(name, files, str(root), tuple(image.masks for image in images), saturations, kinds)
    regions = masks if any(saturations) else None
    target = Anomalies(tuple(names), np.array(values, np.int64), masks, regions)
    unknown = sum(image.masks is None for image in images)
    notes = (f"{name}: {counted(unknown, 'anomalous image')} without a mask: pixels not scored",) if unknown else ()
    return Source(name, tuple(printable(image.file) for image in images), target, files, notes)


def _of_folders(root: Path, categories: Mapping[str, str]) -> list[_Image]:
    images = []
    for category, folder in categories.items():
        for file in walk(root / f"{folder}train") if (root / f"{folder}train").is_dir() else ():
            kind = file.partition("/")[0]
            images.append(_Image(category, "train", f"{folder}train/{file}", kind != _GOOD, ()))
        truth, saturations = _masks(root / folder / _TRUTH), _saturations(root / folder / _SATURATION)
        lacking = []
        for file in walk(root / f"{folder}test"):
            kind = file.partition("/")[0]
            key = file.rpartition(".")[0]
            masks = () if kind == _GOOD else truth.pop(key, None)
            lacking += [file] if masks is None else []
            paths = None if masks is None else tuple(f"{folder}{_TRUTH}/{mask}" for mask in masks)
            anomaly = "" if kind == _GOOD else kind
            images.append(_Image(category, "test", f"{folder}test/{file}", bool(anomaly), paths, saturations, anomaly))
        if lacking and (root / folder / _TRUTH).is_dir():
            raise DataError(
                f"{root}/{folder}{_TRUTH} has no mask of {counted(len(lacking), 'anomalous image')}: {some(lacking)}",
                f"Masks are called DEFECT/NAME_mask.png or DEFECT/NAME.png. Others: {some(sorted(truth)) or 'none'}.",
            )
    return images


def _masks(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return DEFECT/NAME -> the files of masks below a folder; {} if there is none."""
    found: dict[str, tuple[str, ...]] = {}
    for file in walk(folder) if folder.is_dir() else ():
        parts = file.split("/")
        # LOCO has a folder of masks for each image.
        name = parts[1] if len(parts) > 2 else parts[-1].rpartition(".")[0].removesuffix("_mask")
        key = f"{parts[0]}/{name}"
        found[key] = (*found.get(key, ()), file)
    return found


def _of_list(root: Path) -> list[_Image]:
    path = root / _LIST
    with path.open(encoding="utf-8-sig", newline="", errors="replace") as stream:
        table = csv.DictReader(stream)
        if absent := [column for column in _COLUMNS if column not in (table.fieldnames or ())]:
            raise DataError(f"{path} has no column '{absent[0]}'", f"VisA's list has {', '.join(_COLUMNS)}.")
        rows = [{column: (row[column] or "").strip() for column in _COLUMNS} for row in table]
    images = []
    for number, row in enumerate(rows, start=2):
        if row["split"] not in ("train", "test") or row["label"] not in ("normal", "anomaly") or not row["image"]:
            raise DataError(
                f"{path}, line {number}: split '{row['split']}' and label '{row['label']}'",
                "Splits are train and test, labels normal and anomaly.",
            )
        anomalous = row["label"] == "anomaly"
        masks: tuple[str, ...] | None = (row["mask"],) if row["mask"] else None
        images.append(_Image(row["object"], row["split"], row["image"], anomalous, masks if anomalous else ()))
    files = [file for each in images for file in (each.file, *(each.masks or ()))]
    if missing := [file for file in files if not (root / file).is_file()]:
        raise DataError(f"{path}: {counted(len(missing), 'file')} not found below {root}: {some(missing)}")
    if twice := repeated(each.file for each in images):
        raise DataError(f"{path} lists {counted(len(twice), 'image')} more than once: {some(twice)}")
    return images


FORMAT = SourceFormat(__doc__, readers={Anomalies: Reader(recognises, open, AnomalyOptions)})
