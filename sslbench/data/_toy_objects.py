"""Toy images with shapes on noise, drawn by kwcoco once and kept in the cache: `kwcoco:shapes8` is eight of them."""

import contextlib
import dataclasses
import io
import json
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.data._object_types import ObjectSource
from sslbench.errors import UsageError

_PREFIX = "kwcoco:"
_NAME = re.compile(r"shapes(?P<n>[1-9]\d{0,4})(-(?P<side>[1-9]\d{1,3}))?")
_SIDE = 600
"""Pixels of a toy image, kwcoco's own default."""
_MANIFEST = "data.kwcoco.json"


def recognises(spec: str) -> bool:
    """Whether the string names a toy data set."""
    return spec.startswith(_PREFIX)


def manifest(spec: str) -> Path:
    """The manifest of a toy data set in the cache folder; draws the images if they are not there yet.

    Args:
        spec: `kwcoco:shapesN` or `kwcoco:shapesN-SIDE`: N images of SIDE x SIDE pixels (600 unless given).

    Raises:
        UsageError: another name, or the cache folder cannot be written.
    """
    match = _NAME.fullmatch(spec.removeprefix(_PREFIX))
    if not match:
        raise UsageError(
            f"there is no toy data set '{spec}'",
            "kwcoco:shapes8 is 8 images of 600 x 600 pixels, kwcoco:shapes64-128 is 64 of 128 x 128.",
        )
    n, side = int(match["n"]), int(match["side"] or _SIDE)
    folder = paths.cache_dir() / "toy" / f"shapes{n}-{side}-v{_version()}"
    if not (folder / _MANIFEST).is_file():
        try:
            _draw(folder, n, side)
        except OSError as error:
            raise UsageError(
                f"the toy images cannot be written to {folder}: {error.strerror or error}",
                "Set $SSLBENCH_CACHE to a folder that can be written.",
            ) from error
    return folder / _MANIFEST


def named(spec: str, source: ObjectSource) -> ObjectSource:
    """The source under the name that the user gave, without what is always so with toys."""
    return dataclasses.replace(source, name=spec, notes=())


def _version() -> int:
    from kwcoco.demo import toydata_image

    return int(toydata_image.TOYDATA_IMAGE_VERSION)


def _draw(folder: Path, n: int, side: int) -> None:
    """Draws into a folder beside and renames it, so that another process sees all images or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _call_kwcoco(temporary, n, side)
        file = temporary / _MANIFEST
        content = json.loads(file.read_text(encoding="utf-8"))
        for image in content["images"]:
            image["file_name"] = Path(image["file_name"]).relative_to(temporary.resolve()).as_posix()
        file.write_text(json.dumps(content), encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / _MANIFEST).is_file():  # else another process was faster, with the same images
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _call_kwcoco(folder: Path, n: int, side: int) -> None:
    said = io.StringIO()  # kwcoco shows progress on stdout, where the results go
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from kwcoco.demo.toydata_image import demodata_toy_dset

        where = str(folder.resolve())
        draw: Any = demodata_toy_dset  # untyped
        draw(image_size=(side, side), n_imgs=n, rng=0, bundle_dpath=where, verbose=0, use_cache=False)
