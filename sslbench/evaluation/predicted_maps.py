"""Maps that the head of a dense protocol predicts, as files: pictures of classes with a palette, arrays of numbers."""

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.data.containers.members import DistinctNames, is_image
from sslbench.data.maps.colours import class_colours
from sslbench.data.open import kind_alone, open_as, open_data
from sslbench.data.source import Source
from sslbench.errors import SslbenchError, UsageError
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.paths import not_written
from sslbench.runtime.folders import refuse_filled_folder
from sslbench.targets.target import Target

CLASSES = "classes.json"
"""File beside the maps that names the classes, as the reader of label maps takes it."""


def open_images(request: Request, run: RunSettings, kinds: tuple[type[Target], ...]) -> Mapping[str, Source]:
    """Return the images of a location with such targets, as an evaluation opens it, or of any other.

    Raises:
        SslbenchError: it has no images; or maps of another kind, which would be read as images.
    """
    if request.image_column is None:
        try:
            return open_as(request.data, *kinds)
        except SslbenchError:
            if kind_alone(request.data) is not None:
                raise
    return open_data(request.data, image_column=request.image_column, decoder=run.decoder)


class MapFiles:
    """Writer of maps into a folder. A map is called as its image; below SPLIT/ where splits have images of one id."""

    def __init__(self, folder: Path, parts: Mapping[str, Source], classes: Sequence[str]) -> None:
        """Set the folder; `classes`: names of the classes, () for numbers."""
        self._folder, self._names = folder, DistinctNames()
        every = [sample for part in parts.values() for sample in part.ids]
        self._by_split = len(set(every)) < len(every)
        if classes:
            (folder / CLASSES).write_text(json.dumps(list(classes)), encoding="utf-8")

    def write(self, split: str, sample: str, values: npt.NDArray[Any]) -> str:
        """Write the map (H, W) or (H, W, K) of an image; return its name."""
        whole = values.dtype.kind == "u"
        name = sample.removesuffix(PurePosixPath(sample).suffix) if is_image(sample) else sample
        name = self._names.name(f"{split}/{name}" if self._by_split else name)
        name += ".png" if whole else ".npy"
        file = self._folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if whole:
            picture = Image.fromarray(values)
            if values.dtype == np.uint8:
                picture.putpalette(class_colours(256).tobytes())
            picture.save(file, "PNG")
        else:
            np.save(file, values)
        return name


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder that becomes `folder` when the block ends without an error, and is removed otherwise."""
    refuse_filled_folder(folder)
    temporary = folder.with_name(f".{folder.name}.{os.urandom(4).hex()}.part")
    try:
        temporary.mkdir()
        yield temporary
        if folder.is_dir():
            folder.rmdir()  # Windows replaces no folder
        temporary.rename(folder)
    except OSError as error:
        raise UsageError(not_written(folder, error)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
