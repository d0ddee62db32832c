"""Images and labels as arrays (.npz): MedMNIST (train_images, train_labels, val_images, ...), Keras (x_train, ...)."""

import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.data.containers.members import numbered_ids, split_name, split_rank
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.images import Arrays
from sslbench.data.labels import labels_of
from sslbench.data.source import Source
from sslbench.data.wording import counted, in_python, one_line, part_name, some
from sslbench.errors import DataError, UsageError
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Target

_IMAGES, _LABELS = ("images", "image", "x", "data"), ("labels", "label", "y", "targets", "target")
_USUAL_CHANNELS = (1, 3, 4)
_AXES = (3, 4)  # of an array of images


def recognises(spec: str) -> bool:
    """Return whether the string ends in .npz."""
    return spec.lower().endswith(".npz")


def open(spec: str) -> dict[str, Source]:
    """Return the images of the arrays of a file, which are kept in memory.

    The file has `SPLIT_images` and `SPLIT_labels`, `x_SPLIT` and `y_SPLIT`, or without splits `images` and `labels`,
    `x` and `y`: images uint8 (N, H, W) or (N, H, W, channels); labels (N,), (N, 1), or (N, C) with 1 present, 0 absent.
    Ids are the numbers of the rows.
    """
    try:
        with np.load(spec, allow_pickle=False) as arrays:
            parts = _parts(spec, arrays.files)
            sources = {}
            for split, keys in parts.items():
                name = part_name(spec, split)
                images = _checked(f"{spec}, {keys['images']}", _array(spec, arrays, keys["images"]), Path(spec))
                labels: Target = Unlabelled(len(images))
                if "labels" in keys:
                    values = _array(spec, arrays, keys["labels"])
                    # MedMNIST's labels are (N, 1).
                    column = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
                    if len(values) != len(images):
                        raise DataError(
                            f"{spec}: {counted(len(images), 'image')} and {counted(len(values), 'label')} ({split})"
                        )
                    labels = labels_of(column, len(images), name=f"{spec}, {keys['labels']}")
                sources[split] = Source(name, numbered_ids(len(images)), labels, Arrays(images, name))
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, KeyError, NotImplementedError) as error:
        raise DataError(f"cannot read {spec}: {one_line(error)}") from error
    return {split: sources[split] for split in sorted(sources, key=split_rank)}


def _parts(spec: str, keys: list[str]) -> dict[str, dict[str, str]]:
    """Return split -> 'images' and 'labels' -> key."""
    found: dict[str, dict[str, str]] = {}
    for key in keys:
        words = re.split(r"[_\-./]", key.lower())
        split = next((split for word in words if (split := split_name(word)) is not None), "all")
        for what, names in (("images", _IMAGES), ("labels", _LABELS)):
            # Without further words: train_image_ids and the like are other arrays.
            if any(word in names for word in words) and len(words) <= (1 if split == "all" else 2):
                found.setdefault(split, {})[what] = key
    found = {split: part for split, part in found.items() if "images" in part}
    if not found or ("all" in found and len(found) > 1):
        raise UsageError(
            f"{spec} has no arrays of images of known names: it has {some(keys, 8) or 'none'}",
            "Known are train_images and train_labels, x_train and y_train, images and labels. Features are given by "
            f"--features. {in_python(Path(spec))}",
        )
    return found


def _array(spec: str, arrays: Any, key: str) -> npt.NDArray[Any]:
    try:
        values: npt.NDArray[Any] = arrays[key]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise DataError(
            f"{spec}, {key} holds objects of Python, which are not read",
            f"Write numbers or text: numpy.savez(FILE, {key}=x.astype(str), ...) for names.",
        ) from error
    return values


def _checked(where: str, images: npt.NDArray[Any], path: Path) -> npt.NDArray[np.uint8]:
    """Return an array of images."""
    shape = images.shape
    if images.ndim not in _AXES or not len(images) or images.dtype != np.uint8:
        remedy = "Write bytes; values from 0 to 1 become them by (255 * x).round().astype('uint8')."
        raise UsageError(
            f"{where}: {images.dtype} {shape}, and images are uint8 (N, height, width[, channels])",
            remedy if images.ndim in _AXES and len(images) else in_python(path),
        )
    if images.ndim == max(_AXES) and shape[-1] not in _USUAL_CHANNELS:
        if shape[1] in _USUAL_CHANNELS:
            raise UsageError(
                f"{where} {shape} has the channels before height and width",
                "Write x.transpose(0, 2, 3, 1) in its place.",
            )
        if shape[1] == shape[2] == shape[3]:
            raise UsageError(f"{where} {shape} holds volumes, not images", "Use slices of them: x[:, :, :, 14].")
    return images


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
