"""Toy data by kwcoco: kwcoco:shapes8 (8 images of 600 x 600), kwcoco:vidshapes2-msi (2 videos with more channels).

They have shapes on noise, and are drawn once and kept in the cache. `kwcoco:vidshapes2` is two videos of two frames,
`kwcoco:vidshapes2-frames5-multispectral` two of five frames whose channels lie in several files. `special:` in place of
`kwcoco:`, as kwcoco writes it, is the same.
"""

import contextlib
import dataclasses
import io
import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sslbench import paths
from sslbench.data.format import SampleReader, SampleRequest, SourceFormat, plain_reader
from sslbench.data.formats import coco
from sslbench.data.formats.coco import CocoOptions
from sslbench.data.maps.classes import LabelMapOptions
from sslbench.data.maps.foreground import map_readers
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.targets.objects import Boxes
from sslbench.targets.videos import Tracks

_PREFIXES = ("kwcoco:", "special:")
_NAME = re.compile(r"shapes(?P<n>[1-9]\d{0,4})(-(?P<side>[1-9]\d{1,3}))?")
_VIDEOS = re.compile(r"vidshapes(?P<n>[1-9]\d{0,3})(?P<parts>(-[a-z0-9.]+)*)")
_PART = re.compile(r"(?P<name>frames|tracks|speed|gsize)?(?P<value>\d+(\.\d+)?)|multispectral|msi|multisensor")
# Pixels of a toy image, kwcoco's own default.
_SIDE = 600
_MANIFEST = "data.kwcoco.json"
_KNOWN = (
    "kwcoco:shapes8 is 8 images of 600 x 600 pixels, kwcoco:shapes64-128 is 64 of 128 x 128, kwcoco:vidshapes2 is 2 "
    "videos; behind it -frames5, -tracks3, -speed0.2, -128 (pixels), -multispectral or -multisensor."
)


@dataclasses.dataclass(frozen=True)
class _Toy:
    """Parsed name of a toy data set.

    Attributes:
        n: images, or videos.
        side: of an image in pixels.
        key: kwcoco's name of videos; None for images.
    """

    n: int
    side: int
    key: str | None = None

    @property
    def folder(self) -> str:
        """Name in the cache, with the version of kwcoco's drawing."""
        if self.key is None:
            from kwcoco.demo import toydata_image

            return f"shapes{self.n}-{self.side}-v{int(toydata_image.TOYDATA_IMAGE_VERSION)}"
        from kwcoco.demo import toydata_video

        return f"{self.key}-{self.side}-v{int(toydata_video.TOYDATA_VIDEO_VERSION)}"


def manifest(spec: str) -> Path:
    """Return the manifest of a toy data set in the cache folder; the images are drawn the first time.

    Args:
        spec: `kwcoco:shapesN` or `kwcoco:shapesN-SIDE`: N images of SIDE x SIDE pixels (600 unless given); or
            `kwcoco:vidshapesN` with -framesF, -tracksT, -speedS, -SIDE, -multispectral (-msi), -multisensor behind it:
            N videos.
    """
    toy = _named(spec)
    folder = paths.cache_dir() / "toy" / toy.folder
    if not (folder / _MANIFEST).is_file():
        try:
            _draw(folder, toy)
        except OSError as error:
            raise UsageError(
                f"the toy images cannot be written to {folder}: {error.strerror or error}",
                "Set $SSLBENCH_CACHE to a folder that can be written.",
            ) from error
    return folder / _MANIFEST


def _named(spec: str) -> _Toy:
    name = spec.partition(":")[2]
    if match := _NAME.fullmatch(name):
        return _Toy(int(match["n"]), int(match["side"] or _SIDE))
    match = _VIDEOS.fullmatch(name)
    parts = [(part, _PART.fullmatch(part)) for part in match["parts"].split("-")[1:]] if match else []
    if match is None or not all(found for _, found in parts):
        if name.startswith("photos"):
            raise UsageError(f"'{spec}' is a downloaded data set of kwcoco; only drawn toy data are supported", _KNOWN)
        raise UsageError(f"there is no toy data set '{spec}'", _KNOWN)
    sides = [part.removeprefix("gsize") for part, found in parts if found and found["value"] and _is_side(found)]
    if len(sides) > 1 or not all(side.isdecimal() and 10 <= int(side) < 10_000 for side in sides):
        raise UsageError(f"'{spec}': the side of the images should be one whole number from 10 to 9999", _KNOWN)
    rest = [part for part, found in parts if found and not _is_side(found)]
    rest = ["msi" if part == "multispectral" else part for part in rest]
    rest += ["msi"] if "multisensor" in rest else []  # kwcoco needs both
    # Sorted, so that the same words in another order name the same folder.
    key = "-".join([f"vidshapes{match['n']}", *sorted(set(rest))])
    return _Toy(int(match["n"]), int(sides[0]) if sides else _SIDE, key)


def _is_side(part: re.Match[str]) -> bool:
    return part["value"] is not None and part["name"] in (None, "gsize")


def _draw(folder: Path, toy: _Toy) -> None:
    """Draw into a temporary folder and rename it, so that other processes see all images or none."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _call_kwcoco(temporary, toy)
        shutil.rmtree(temporary / "_cache", ignore_errors=True)
        file = temporary / _MANIFEST
        content = json.loads(file.read_text(encoding="utf-8"))
        for image in content["images"]:
            for part in (image, *image.get("auxiliary", ())):
                if part["file_name"] is not None and Path(part["file_name"]).is_absolute():
                    part["file_name"] = Path(part["file_name"]).relative_to(temporary.resolve()).as_posix()
        file.write_text(json.dumps(content), encoding="utf-8")
        try:
            temporary.rename(folder)
        except OSError:
            if not (folder / _MANIFEST).is_file():  # else another process has written the same images
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _call_kwcoco(folder: Path, toy: _Toy) -> None:
    said = io.StringIO()  # kwcoco prints progress to stdout, which is reserved for results
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        common: Any = {"image_size": (toy.side, toy.side), "rng": 0, "bundle_dpath": str(folder.resolve())}
        if toy.key is None:
            from kwcoco.demo.toydata_image import demodata_toy_dset

            draw: Any = demodata_toy_dset  # untyped
            draw(n_imgs=toy.n, verbose=0, use_cache=False, **common)
        else:
            import kwcoco

            kwcoco.CocoDataset.demo(toy.key, verbose=0, use_cache=False, **common)


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'kwcoco:' or, as kwcoco itself writes it, with 'special:'."""
    return spec.startswith(_PREFIXES)


def open(request: SampleRequest[CocoOptions]) -> dict[str, Source]:
    """Return the images, labelled with the shapes on them (multi-label); they are drawn once, into the cache folder."""
    file, options = str(manifest(request.spec)), request.options
    sources = coco.open(file, attribute_columns=request.attribute_columns, options=options)
    return {split: dataclasses.replace(source, name=request.spec, notes=()) for split, source in sources.items()}


def open_objects(spec: str) -> Mapping[str, ObjectSource]:
    """Return the images with the boxes and masks of their shapes."""
    (source,) = coco.open_objects(str(manifest(spec))).values()
    return {"all": dataclasses.replace(source, name=spec, notes=())}


def open_videos(spec: str) -> dict[str, Source]:
    """Return the videos with the masks of their shapes."""
    (source,) = coco.open_videos(str(manifest(spec))).values()
    return {"all": dataclasses.replace(source, name=spec, notes=())}


def _is_no_file(spec: str) -> bool:
    return recognises(spec) and not Path(spec).exists()


def _open_maps(spec: str, options: LabelMapOptions) -> dict[str, Source]:
    if options.images:
        raise UsageError(f"{spec}: its images are drawn, so it takes no option '?images='")
    return coco.masks.open_maps(spec, options, open_objects)


FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, open, CocoOptions, frozenset(("attribute",))),
    {
        Boxes: plain_reader(_is_no_file, open_objects),
        **map_readers(lambda spec, _: _is_no_file(spec), _open_maps, LabelMapOptions),
        Tracks: plain_reader(_is_no_file, open_videos),
    },
)
