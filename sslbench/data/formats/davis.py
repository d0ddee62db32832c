"""DAVIS 2017 (JPEGImages/480p, Annotations/480p, ImageSets/2017): videos with masks of objects in every frame.

Pont-Tuset et al. 2017. A palette image holds the number of the object at each pixel, 0 for background and 255 for void,
which counts as background.
"""

from pathlib import Path

from sslbench.data.containers.sniff import text_lines
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.videos import palette_videos
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.targets.videos import Tracks


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with JPEGImages/, Annotations/ and ImageSets/2017/."""
    root = Path(spec)
    return (root / "ImageSets" / "2017").is_dir() and all(
        (root / name).is_dir() for name in ("JPEGImages", "Annotations")
    )


def open(spec: str) -> dict[str, Source]:
    """Return the videos of each list in ImageSets/2017 (train, val, test-dev).

    A list without any masks is left out: the archives of train and val lack those of test-dev and test-challenge.
    """
    root, sources = Path(spec), {}
    photos, masks = root / "JPEGImages" / "480p", root / "Annotations" / "480p"
    for file in matching(root / "ImageSets" / "2017", "*.txt"):
        split = file.stem
        names = text_lines(file)
        if not any((masks / name).is_dir() for name in names):
            continue
        if missing := [str(part / name) for name in names for part in (photos, masks) if not (part / name).is_dir()]:
            raise DataError(
                f"{file}: there is no folder {some(missing, 5)}",
                "Unpack the archive again, or remove the names of videos that should not be used from the list.",
            )
        sources[split] = palette_videos(f"{spec} ({split})", photos, masks, names)
    if not sources:
        raise DataError(f"{spec}: no list in ImageSets/2017 names videos in JPEGImages/480p and Annotations/480p")
    return sources


FORMAT = SourceFormat(__doc__, readers={Tracks: plain_reader(recognises, open)})
