"""DAVIS 2017 (JPEGImages/480p, Annotations/480p, ImageSets/2017): videos with masks of objects in every frame.

Pont-Tuset et al. 2017. A palette image holds the number of the object at each pixel, 0 for background and 255 for void,
which counts as background.
"""

from pathlib import Path

from sslbench.data.format import SourceFormat, TupleReader
from sslbench.data.palette_masks import palette_videos
from sslbench.data.source import Source
from sslbench.errors import DataError


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with JPEGImages/, Annotations/ and ImageSets/2017/."""
    root = Path(spec)
    return (root / "ImageSets" / "2017").is_dir() and all(
        (root / name).is_dir() for name in ("JPEGImages", "Annotations")
    )


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
            sources[split] = palette_videos(f"{spec} ({split})", photos, masks, names)
    if not sources:
        raise DataError(f"{spec}: no list in ImageSets/2017 names videos in JPEGImages/480p and Annotations/480p")
    return sources


FORMAT = SourceFormat(__doc__, videos=TupleReader(recognises, open))
