"""Images with texts: COCO or kwcoco captions, Karpathy's splits, a table with a caption column, images beside .txt.

COCO's `captions_val2017.json` and kwcoco manifests have annotations with a `caption`, which crops of their boxes have
with `?unit=annotation`. Karpathy's `dataset_coco.json` and `dataset_flickr30k.json` have `sentences` and splits
(`restval` belongs to train). In a table (path and caption, or another column named by `?caption=`) an image may have
several rows. In folders, `a.txt` holds the texts of `a.jpg`, one per line. `texts:PLACE` makes a text of the class of
each image of any labelled data.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sslbench.config import setting
from sslbench.data.containers.exports import NOT_READ
from sslbench.data.containers.listed import find_listed, finds_all, folders_beside, images_folder
from sslbench.data.containers.members import split_name
from sslbench.data.containers.sniff import is_json_table, read_text
from sslbench.data.format import Reader, SourceFormat
from sslbench.data.formats import coco
from sslbench.data.formats.table import read_cells
from sslbench.data.maps.layout import in_order
from sslbench.data.objects.regions import RegionTexts, text_sources
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.data.wording import counted, part_name, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.target import OfClasses
from sslbench.targets.texts import Texts, as_texts, captions_in

log = logging.getLogger("sslbench")

PREFIX = "texts:"
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".txt")
_IMAGES = ("path", "image", "file", "filename", "file_name", "filepath", "image_path", "image_name")
_CAPTIONS = ("caption", "captions", "text", "texts", "sentence", "comment", "raw")

Captions = dict[str, dict[str, list[str]]]
"""Split -> image -> its texts."""


@dataclasses.dataclass(frozen=True)
class TextOptions(RegionTexts):
    """Options behind a '?': captions.json?images=val2014&most=5, regions.json?unit=annotation."""

    unit: Literal["annotation", "image"] = setting("image", "unit of a sample: an image, or a manifest's box as a crop")
    images: str = setting("", "folder of the images of a file of texts")
    caption: str = setting("", "table: column of the texts; empty: caption, text or the like")


def recognises(spec: str, _: Mapping[str, str]) -> bool:
    """Return whether a location starts with 'texts:', is a file of a kind that may hold texts, or a folder."""
    path = Path(spec)
    return spec.startswith(PREFIX) or path.is_dir() or (path.is_file() and path.suffix.lower() in (*_TABLES, ".json"))


def open(spec: str, options: TextOptions) -> dict[str, Source]:
    """Return the images of every split that have texts."""
    path = Path(spec)
    if options.unit == "annotation":
        if path.suffix.lower() != ".json" or path.is_dir() or is_json_table(spec) or options.caption:
            problem = f"{spec}: '?unit=annotation' is for manifests with boxes that have a caption"
            raise UsageError(problem, "Leave it out, and 'caption=' of a manifest.")
        return text_sources(spec, coco.open_objects(spec, images_folder(spec, options.images)), options)
    if spec.startswith(PREFIX) or path.is_dir():
        if options.images or options.caption:
            given = "images" if options.images else "caption"
            raise UsageError(
                f"{spec}: '?{given}=' has no effect here: it is for files that list images", "Leave it out."
            )
        made = spec.startswith(PREFIX)
        sources = open_data(spec.removeprefix(PREFIX))
        found = {split: (_of_classes if made else _beside)(part) for split, part in sources.items()}
        return {split: _first(source, options.most) for split, source in found.items()}
    table = path.suffix.lower() != ".json" or is_json_table(spec)
    if options.caption and not table:
        raise UsageError(f"{spec}: '?caption=' has no effect here: only tables have columns", "Leave it out.")
    splits = _of_table(path, options.caption) if table else _of_json(path)
    folders = [folder] if (folder := images_folder(spec, options.images)) else folders_beside(path)
    if "train" in splits and len(splits) > 1 and not any(finds_all([name], folders) for name in [*splits["train"]][:3]):
        del splits["train"]  # Karpathy's list of COCO: nothing is trained, and test is of val2014 alone
        log.info(f"{spec}: the images of train are not here, and left out")
    sources = {split: _listed(spec, split, texts, folders) for split, texts in splits.items() if texts}
    if not sources:
        raise DataError(f"{spec} has no image with a text")
    return in_order({split: _first(source, options.most) for split, source in sources.items()})


def _listed(spec: str, split: str, texts: Mapping[str, list[str]], folders: list[Path]) -> Source:
    found = find_listed(spec, list(texts), folders, "?images=FOLDER")
    if twice := repeated(found.ids):
        raise DataError(f"{spec} names an image in two ways: {some(twice)}")
    order = sorted(range(len(found.ids)), key=found.ids.__getitem__)
    own = list(texts.values())
    images = found.files.select(np.array(order, dtype=np.int64))
    target = Texts(tuple(tuple(own[i]) for i in order))
    return Source(part_name(spec, split), tuple(found.ids[i] for i in order), target, images, found.notes)


def _first(source: Source, most: int) -> Source:
    """Return the images with their first texts only."""
    if not most:
        return source
    target = Texts(tuple(each[:most] for each in Texts.of(source.target).texts))
    return dataclasses.replace(source, target=target)


def _with_texts(source: Source, texts: list[list[str]]) -> Source:
    """Return the images of a source that have texts, with a note on the others."""
    kept = np.array([i for i, own in enumerate(texts) if own], dtype=np.int64)
    if not len(kept):
        raise DataError(
            f"{source.name}: none of {counted(len(texts), 'image')} has a text",
            "Beside a.jpg lies a.txt, with a text per line; or give a file of captions.",
        )
    notes = tuple(note for note in source.notes if NOT_READ not in note)
    if len(kept) < len(texts):
        notes = (*notes, f"{source.name}: {counted(len(texts) - len(kept), 'image')} without a text left out")
    part = dataclasses.replace(source, notes=notes, grouped_by="", attributes={}).select(kept)
    return dataclasses.replace(part, target=Texts(tuple(tuple(texts[i]) for i in kept)))


def _beside(source: Source) -> Source:
    """Return the images of folders with the lines of the .txt beside each."""
    texts: list[list[str]] = []
    for i in range(len(source)):
        file = Path(source.images.path(i)).with_suffix(".txt")
        texts.append(as_texts(read_text(file)[0].splitlines()) if file.is_file() else [])
    return _with_texts(source, texts)


def _of_classes(source: Source) -> Source:
    """Return the images with a text that names their classes, those of a single class after the words of CLIP."""
    if not isinstance(source.target, OfClasses):
        raise DataError(f"{source.name}: texts are made of images with classes", "Give labelled images.")
    names = [name.replace("_", " ") for name in source.target.classes]
    texts = [
        [f"a photo of {' and '.join(names[c] for c in np.flatnonzero(row > 0))}"] if (row > 0).any() else []
        for row in source.target.flags()
    ]
    found = _with_texts(source, texts)
    note = f"{source.name}: texts made of the names of classes, which images of a class share"
    return dataclasses.replace(found, notes=(*found.notes, note))


def _of_table(path: Path, column: str) -> Captions:
    """Return the texts of a table; cells may be lists in JSON."""
    cells = read_cells(path)
    image = next((name for known in _IMAGES for name in cells.columns if name.strip().lower() == known), None)
    known = (
        [column] if column else [name for known in _CAPTIONS for name in cells.columns if name.strip().lower() == known]
    )
    if image is None or not known or known[0] not in cells.columns:
        wanted = column or ("caption" if image is not None else "path")
        raise UsageError(
            f"{cells.name} has no column '{wanted}'",
            f"{did_you_mean(wanted, list(cells.columns))} Name it by ?caption=.",
        )
    found: Captions = {}
    for row, (name, cell) in enumerate(zip(cells.columns[image], cells.columns[known[0]], strict=True)):
        texts = cell if isinstance(cell, list) else [cell]
        if not name or not (own := as_texts(text for text in texts if isinstance(text, str))):
            raise DataError(f"{cells.name}, {cells.row_name(row)}: the {'text' if name else 'image'} is missing")
        given = str(cells.columns["split"][row] or "") if "split" in cells.columns else ""
        found.setdefault(_split(given), {}).setdefault(str(name), []).extend(own)
    return found


def _split(name: str) -> str:
    """Return the split of a word; Karpathy's 'restval' is the part of COCO's val that models train on."""
    return "train" if name == "restval" else split_name(name) or name or "all"


def _of_json(path: Path) -> Captions:
    """Return the texts of a manifest of COCO or kwcoco, or of Karpathy's splits."""
    try:
        content = json.loads(read_text(path)[0])
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    try:
        images = content["images"]
        if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
            raise TypeError("images")
        karpathy = any("sentences" in image for image in images)
        each = _of_karpathy(images) if karpathy else _of_coco(path, images, content.get("annotations") or [])
    except (KeyError, TypeError, AttributeError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else "images or captions are of another kind"
        raise DataError(
            f"{path} is no file of captions: {problem}",
            "COCO has images (id, file_name) and annotations (image_id, caption); Karpathy's splits sentences (raw).",
        ) from error
    found: Captions = {}
    for image, name, own in each:
        part = found.setdefault(_split(str(image.get("split") or "")), {})
        if name in part:
            raise DataError(f"{path} lists the image {name} more than once", "Keep one entry, with all its texts.")
        part[name] = own
    return {split: {name: own for name, own in part.items() if own} for split, part in found.items()}


Entries = list[tuple[Mapping[str, Any], str, list[str]]]
"""Images, their files and texts."""


def _of_karpathy(images: list[dict[str, Any]]) -> Entries:
    return [
        (
            image,
            "/".join(filter(None, (image.get("filepath", ""), image["filename"]))),
            as_texts(sentence["raw"] for sentence in image["sentences"]),
        )
        for image in images
    ]


def _of_coco(path: Path, images: list[dict[str, Any]], annotations: list[dict[str, Any]]) -> Entries:
    texts: dict[Any, list[str]] = {image["id"]: as_texts(captions_in(image)) for image in images}
    if len(texts) < len(images):
        raise DataError(f"{path} has {counted(len(images) - len(texts), 'image')} with the id of another")
    for number, annotation in enumerate(annotations):
        if (image := annotation["image_id"]) not in texts:
            raise DataError(f"{path}, annotations[{number}]: there is no image of the id {image}")
        texts[image] += as_texts(captions_in(annotation))
    return [(image, str(image["file_name"]), texts[image["id"]]) for image in images]


FORMAT = SourceFormat(
    __doc__,
    readers={Texts: Reader(recognises, open, TextOptions, unresolved=lambda spec: spec.startswith(PREFIX))},
    last_resort=True,
)
