"""DAVIS 2017 (JPEGImages/480p, Annotations/480p, ImageSets/2017): videos with masks of objects in every frame.

Pont-Tuset et al. 2017. A palette image holds the number of the object at each pixel, 0 for background and 255 for void,
which counts as background.
"""

import dataclasses
from pathlib import Path

import numpy as np
from PIL import Image

from sslbench.arrays import IntArray
from sslbench.data.format import SourceFormat, TupleReader
from sslbench.data.images import Files
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.regular import open_regular
from sslbench.data.source import Source
from sslbench.data.tracks import Ids, videos_source
from sslbench.data.wording import some
from sslbench.errors import DataError

_VOID = 255


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with JPEGImages/, Annotations/ and ImageSets/2017/."""
    root = Path(spec)
    return (root / "ImageSets" / "2017").is_dir() and all(
        (root / name).is_dir() for name in ("JPEGImages", "Annotations")
    )


@dataclasses.dataclass(frozen=True, eq=False)
class PaletteMasks:
    """Masks in palette images, one per frame; see `tracks.ObjectIds`."""

    files: Files

    def read_ids(self, row: int) -> Ids:
        """Return the objects of a frame.

        Raises:
            DataError: the file cannot be read, or has colours in place of numbers.
        """
        path = self.files.path(row)
        try:
            with open_regular(path) as file, Image.open(file) as image:
                if image.mode not in ("P", "L"):
                    raise DataError(f"{path} has colours (mode {image.mode}) where numbers of objects should be")
                ids = np.array(image, dtype=np.int32)
        except (OSError, SyntaxError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}") from error
        ids[ids == _VOID] = 0
        return ids

    def select(self, indices: IntArray) -> "PaletteMasks":
        """Return the masks at `indices`, in that order."""
        return PaletteMasks(self.files.select(indices))

    def fingerprint(self) -> str:
        """Return a hash of the files."""
        return self.files.digests().tobytes().hex()


def open(spec: str) -> dict[str, Source]:
    """Return the videos of each list in ImageSets/2017 (train, val, test-dev).

    Raises:
        DataError: a frame has no mask or one of another size, or a video cannot be scored; all of them are listed.
    """
    root, sources = Path(spec), {}
    for file in sorted((root / "ImageSets" / "2017").glob("*.txt")):
        split = file.stem
        names = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        photos, masks = root / "JPEGImages" / "480p", root / "Annotations" / "480p"
        if names and all((photos / name).is_dir() and (masks / name).is_dir() for name in names):
            sources[split] = _split(f"{spec} ({split})", photos, masks, names)
    if not sources:
        raise DataError(f"{spec}: no list in ImageSets/2017 names videos in JPEGImages/480p and Annotations/480p")
    return sources


def _split(name: str, photos: Path, annotations: Path, names: list[str]) -> Source:
    frames, videos = list[str](), dict[str, list[int]]()
    for video in names:
        own = sorted(f"{video}/{file.stem}" for file in (photos / video).glob("*.jpg"))
        videos[video] = list(range(len(frames), len(frames) + len(own)))
        frames += own
    missing = [frame for frame in frames if not (annotations / f"{frame}.png").is_file()]
    if missing:
        raise DataError(f"{name}: {len(missing):,} of {len(frames):,} frames have no mask: {some(missing, 5)}")
    both = [(size_in_file(photos / f"{f}.jpg"), size_in_file(annotations / f"{f}.png")) for f in frames]
    differ = [
        f"{frame} ({own[1]} x {own[0]}, mask {mask[1]} x {mask[0]})"
        for frame, (own, mask) in zip(frames, both, strict=True)
        if own != mask and (0, 0) not in (own, mask)
    ]
    if differ:
        raise DataError(f"{name}: {len(differ):,} masks are not of the size of their frame: {some(differ, 3)}")
    images = Files(tuple(f"{frame}.jpg" for frame in frames), str(photos))
    masks = PaletteMasks(Files(tuple(f"{frame}.png" for frame in frames), str(annotations)))
    return videos_source(name, videos, images, masks)


FORMAT = SourceFormat(__doc__, videos=TupleReader(recognises, open))
