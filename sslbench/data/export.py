"""Export of any source as a kwcoco manifest: one file that lists the images, their labels and their splits.

`sslbench_id` has the id of an image; `id` counts the images in order of split and id, since COCO needs numbers. `info`
has the label kind, all classes, and the attribute that seeded splits group by; `assets` the files of an image in
several. The manifest opens with the same ids, labels, groups and image contents, so that stored features are reused.
"""

import dataclasses
import io
import json
import os
import re
import tempfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.members import DistinctNames, is_image
from sslbench.data.formats.coco.assets import AssetImages
from sslbench.data.formats.coco.columns import CHANNELS_KEY, FRAME, GROUPED_KEY, ID_KEY, INFO_TYPE, VALUES_KEY, VIDEO
from sslbench.data.formats.coco.objects import NEGATIVE, PARTLY
from sslbench.data.images import Files
from sslbench.data.joined import located, sources_of
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection.keypoints import Skeleton, labelled
from sslbench.paths import FULL, not_written
from sslbench.runtime.folders import refuse_filled_folder
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.objects import Boxes, Objects
from sslbench.targets.target import Images, Target

SUFFIXES = (".json", ".kwcoco.zip")


def check_manifest(out: Path, *, overwrite: bool) -> None:
    """Refuse a manifest that cannot be written."""
    if not out.name.lower().endswith(SUFFIXES):
        raise UsageError(f"{out} should end in .kwcoco.json, .json or .kwcoco.zip")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists already", "Give another name, or --overwrite.")
    if not out.parent.is_dir():
        raise UsageError(f"the folder {out.parent} does not exist")


_SIGNATURES = (
    *((b"\xff\xd8\xff", ".jpg"), (b"\x89PNG", ".png"), (b"GIF8", ".gif"), (b"BM", ".bmp"), (b"II*\0", ".tif")),
    *((b"MM\0*", ".tif"), (b"RIFF", ".webp"), (b"\x93NUMPY", ".npy"), (b"PK\x03\x04", ".npz"), (b"P5", ".pgm")),
    (b"P6", ".ppm"),
)


class Extractor:
    """Provider of the file of each image, which extracts those that have none.

    Attributes:
        written: number of extracted files.
    """

    def __init__(self, folder: Path | None, *, start: Path | None) -> None:
        """Set the folder of extracted images, and the base of relative paths; absolute paths without one."""
        self._folder, self._start = folder, start
        self._names: defaultdict[str, DistinctNames] = defaultdict(DistinctNames)
        self.written = 0

    def check(self, name: str, split: str, images: Images) -> None:
        """Raise if images have to be extracted and cannot be."""
        if isinstance(images, AssetImages) or all(isinstance(part, Files) for part in sources_of(images)):
            return
        if self._folder is None:
            raise UsageError(
                f"the images of {name} are not single files, and a manifest lists files",
                "Extract them to a folder with --extract FOLDER.",
            )
        refuse_filled_folder(self._folder / split)

    def file(self, source: Source, split: str, index: int) -> str:
        """Return the path of an image's file in the manifest, extracting it if necessary.

        Raises:
            DataError: the image cannot be read, or the file cannot be written.
        """
        images, row = located(source.images, index)
        if isinstance(images, Files):
            return self.shown(Path(images.root) / images.paths[row])
        folder = self._folder or Path()
        try:
            content, suffix = _image_content(images.read(row))
        except OSError as error:
            raise DataError(f"{images.path(row)} cannot be read: {error.strerror or error}") from error
        target = folder / split / self._name(split, source.ids[index], suffix)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        except OSError as error:
            raise DataError(not_written(target, error)) from error
        self.written += 1
        return self.shown(target)

    def _name(self, split: str, sample: str, suffix: str) -> str:
        """Return the id as a unique path below the folder, with a suffix that fits the content."""
        if is_image(sample) or sample.lower().endswith((".npy", ".npz")):
            suffix = PurePosixPath(sample).suffix
            sample = sample.removesuffix(suffix)
        return self._names[split].name(sample, suffix)

    def shown(self, file: Path) -> str:
        """Return the path of a file in the manifest."""
        if self._start is None:
            return os.path.abspath(file)  # noqa: PTH100 - links stay as they are
        return Path(os.path.relpath(file, self._start)).as_posix()


def _image_content(image: bytes | npt.NDArray[np.uint8]) -> tuple[bytes, str]:
    """Return the content of the file to write, and its suffix."""
    if isinstance(image, bytes):
        return image, next((suffix for start, suffix in _SIGNATURES if image.startswith(start)), ".img")
    file = io.BytesIO()
    if image.ndim == 2 or image.shape[2] in (1, 3, 4):
        from PIL import Image

        Image.fromarray(image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image).save(file, "png")
        return file.getvalue(), ".png"
    np.save(file, image)
    return file.getvalue(), ".npy"


Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class ExportSummary:
    """Counts of an export.

    Attributes:
        images: number of images per split.
        annotations: number of annotations.
        extracted: number of extracted image files.
    """

    images: dict[str, int]
    annotations: int
    extracted: int


def write_kwcoco(
    sources: Mapping[str, Source],
    out: Path,
    *,
    extract: Path | None = None,
    absolute: bool = False,
    overwrite: bool = False,
) -> ExportSummary:
    """Write a kwcoco manifest of a source.

    Args:
        sources: result of `open_data`, with one annotation without a box per label of an image; or of `open_objects`,
            with one per object.
        out: `NAME.kwcoco.json`, `NAME.json` or `NAME.kwcoco.zip`.
        extract: folder for images inside containers: `SPLIT/ID`, byte for byte, arrays as PNG.
        absolute: write absolute paths instead of paths relative to the manifest.
        overwrite: replace an existing manifest.
    """
    check_manifest(out, overwrite=overwrite)
    places = Extractor(extract, start=None if absolute else out.parent)
    for split, source in sources.items():
        # Of all splits, before the first image is extracted.
        places.check(source.name, split, source.images)
    content = _content(sources, places)
    _write(out, content)
    n = {split: len(source) for split, source in sources.items()}
    return ExportSummary(n, len(content["annotations"]), places.written)


def _content(sources: Mapping[str, Source], places: Extractor) -> dict[str, Any]:
    numbers = _category_numbers(sources)
    skeleton = next((s.target.skeleton for s in sources.values() if isinstance(s.target, Boxes)), None)
    of_skeleton, keypoint_kinds = _skeleton(skeleton)
    images: list[Row] = []
    annotations: list[Row] = []
    videos: dict[str, int] = {}
    frequencies: dict[str, Row] = {}
    for split, source in sources.items():
        target = source.target
        if isinstance(target, Boxes) and target.federated is not None:
            pairs = zip(target.classes, target.federated.frequencies, strict=True)
            frequencies |= {name: {"frequency": frequency} for name, frequency in pairs if frequency}
        for i, sample in enumerate(source.ids):
            row: Row = {"id": len(images) + 1, **_files(source, split, i, places), ID_KEY: sample}
            if split != "all":
                row["split"] = split
            if isinstance(target, Boxes) and target.sizes[i].all():
                row |= dict(zip(("height", "width"), target.sizes[i].tolist(), strict=True))
            # An attribute does not take the place of the manifest's own keys, such as height.
            row |= {key: column[i] for key, column in source.attributes.items() if column[i] and key not in row}
            if isinstance(target, Boxes):
                row |= {key: [numbers[name] for name in names] for key, names in _looked_for(target, i).items()}
                found = _boxes(target.objects[i], target.classes)
            else:
                if isinstance(target, Numbers):
                    row[VALUES_KEY] = target.values[i].tolist()
                found = _labels(target, i)
            if row.get(VIDEO) and (source.grouped_by == VIDEO or FRAME in source.attributes):
                row["video_id"] = videos.setdefault(row[VIDEO], len(videos) + 1)
                # kwcoco needs a number for every frame.
                frame = str(row.get(FRAME))
                row[FRAME] = int(frame) if re.fullmatch(r"-?\d+", frame) else len(images)
            images.append(row)
            for name, annotation in found:
                number = {"id": len(annotations) + 1, "image_id": row["id"], "category_id": numbers[name]}
                annotations.append(number | annotation)
    return {
        "info": _info(sources),
        "categories": [
            {"id": number, "name": name, **frequencies.get(name, {}), **of_skeleton} for name, number in numbers.items()
        ],
        **keypoint_kinds,
        **({"videos": [{"id": number, "name": name} for name, number in videos.items()]} if videos else {}),
        "images": images,
        "annotations": annotations,
    }


def _looked_for(boxes: Boxes, index: int) -> dict[str, list[str]]:
    """Return LVIS's keys of an image: the classes that are absent, and those of which not all objects are labelled."""
    if boxes.federated is None:
        return {}
    tables = {NEGATIVE: boxes.federated.negative, PARTLY: boxes.federated.not_exhaustive}
    return {key: [boxes.classes[c] for c in pairs[pairs[:, 0] == index, 1]] for key, pairs in tables.items()}


def _files(source: Source, split: str, index: int, places: Extractor) -> Row:
    """Return the entries of a row for an image's file, or for its files with their channels."""
    images = source.images
    if not isinstance(images, AssetImages):
        return {"file_name": places.file(source, split, index)}
    height, width = images.sizes[index].tolist()
    row: Row = {"file_name": None, "name": f"{split}/{source.ids[index]}"}
    row |= {"height": height, "width": width} if height else {}
    row["assets"] = []
    for path, kind in images.parts(index):
        matrix = [list(kind.matrix[:3]), list(kind.matrix[3:]), [0.0, 0.0, 1.0]]
        warp = {"warp_aux_to_img": {"type": "affine", "matrix": matrix}}
        row["assets"].append({"file_name": places.shown(path), "channels": "|".join(kind.channels), **warp})
    return row


def _category_numbers(sources: Mapping[str, Source]) -> dict[str, int]:
    """Return class -> number; for objects the original numbers, if the splits agree on them."""
    pairs: dict[str, int] = {}
    for source in sources.values():
        if isinstance(source.target, Boxes):
            pairs |= dict(zip(source.target.classes, source.target.class_numbers, strict=True))
    if pairs and len(set(pairs.values())) == len(pairs):
        return pairs
    names = dict.fromkeys(
        name
        for source in sources.values()
        for name in (() if isinstance(source.target, Numbers) else source.target.classes)
    )
    return {name: i for i, name in enumerate(names, 1)}


def _labels(labels: Target, index: int) -> Iterator[tuple[str, Row]]:
    """Iterate over the class names of one image, with the other entries of their annotations."""
    if isinstance(labels, Classes):
        yield labels.classes[int(labels.values[index])], {}
    elif isinstance(labels, MultiLabel):
        for column in np.flatnonzero(labels.values[index]):
            yield labels.classes[column], {"ignore": 1} if labels.values[index, column] < 0 else {}


def _boxes(objects: Objects, classes: Sequence[str]) -> Iterator[tuple[str, Row]]:
    for k, (x1, y1, x2, y2) in enumerate(objects.boxes.astype(float).tolist()):
        row: Row = {"bbox": [x1, y1, x2 - x1, y2 - y1], "area": float(objects.areas[k])}
        row["iscrowd"] = int(objects.crowd[k])
        if objects.difficult[k]:
            row["ignore"] = 1
        if objects.masks is not None and objects.masks[k] is not None:
            row["segmentation"] = objects.masks[k]
        if objects.keypoints is not None:
            row["keypoints"] = objects.keypoints[k].ravel().tolist()
            row["num_keypoints"] = int(labelled(objects.keypoints[k]).sum())
        if objects.texts is not None and (texts := objects.texts[k]):
            row |= {"caption": texts[0]} if len(texts) == 1 else {"captions": list(texts)}
        if objects.points is not None and not np.isnan(objects.points[k]).any():
            row["point_coords"] = [objects.points[k].tolist()]
        yield classes[int(objects.classes[k])], row


def _skeleton(skeleton: Skeleton | None) -> tuple[Row, Row]:
    """Return the entries of every category on its keypoints, and kwcoco's table of those that a mirror exchanges."""
    if skeleton is None:
        return {}, {}
    # COCO counts keypoints from 1.
    row: Row = {"keypoints": list(skeleton.names), "skeleton": [[a + 1, b + 1] for a, b in skeleton.edges]}
    row |= {"sigmas": list(skeleton.sigmas)} if skeleton.sigmas else {}
    if not skeleton.mirrors:
        return row, {}
    number = {name: i for i, name in enumerate(skeleton.names, 1)}
    partner = dict(skeleton.mirrors) | {b: a for a, b in skeleton.mirrors}
    rows = [{"id": n, "name": name, "reflection_id": number[partner.get(name, name)]} for name, n in number.items()]
    return row, {"keypoint_categories": rows}


def _info(sources: Mapping[str, Source]) -> list[Row]:
    kept = {
        split: {"labels": source.target.name, "classes": list(source.target.classes)}
        for split, source in sources.items()
    }
    names = [source.name for source in sources.values()]
    entry: Row = {"type": INFO_TYPE, "from": names[0] if names else ""}
    grouped_by = {source.grouped_by for source in sources.values()} - {""}
    channels = {"|".join(s.images.channels) for s in sources.values() if isinstance(s.images, AssetImages)}
    entry |= {GROUPED_KEY: grouped_by.pop()} if len(grouped_by) == 1 else {}
    entry |= {CHANNELS_KEY: channels.pop()} if len(channels) == 1 else {}
    return [entry | ({"splits": kept} if kept else {})]


def _write(out: Path, content: dict[str, Any]) -> None:
    """Write the manifest atomically."""
    try:
        # Beside the manifest, since no rename goes from one file system to another.
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            new = Path(folder) / "data.kwcoco.json"
            with new.open("w", encoding="utf-8") as file:
                file.write("{\n")
                for i, (key, rows) in enumerate(content.items()):
                    # A row per line, for people and line-based tools. By default Python writes NaN, which is no JSON.
                    lines = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
                    file.write(f'{"," if i else ""}"{key}": [\n{lines}\n]\n')
                file.write("}\n")
            if out.name.lower().endswith(".zip"):
                packed = Path(folder) / "packed"
                with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                    archive.write(new, f"{out.name[: -len('.zip')]}.json")
                new = packed
            new.replace(out)
    except OSError as error:
        raise (DataError if error.errno in FULL else UsageError)(not_written(out, error)) from error
