"""VIP (Images/, Annotations/Category_ids/, lists/): videos of people with a class of body part or clothes per pixel.

Video Instance-level Parsing (Zhou et al., ACM Multimedia 2018); its folder is VIP_Fine. A grey or palette image holds
the class of each pixel: background, 19 parts, or 255 for none.
"""

from pathlib import Path

from sslbench.data.containers.sniff import text_lines
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.videos import palette_videos
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.targets.videos import Parts

CLASSES = (
    *("background", "hat", "hair", "sun-glasses", "upper-clothes", "dress", "coat", "socks", "pants", "gloves"),
    *("scarf", "skirt", "torso-skin", "face", "right-arm", "left-arm", "right-leg", "left-leg", "right-shoe"),
    "left-shoe",
)
_LIST = "_videos"


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with Images/ and Annotations/Category_ids/."""
    return (Path(spec) / "Images").is_dir() and (Path(spec) / "Annotations" / "Category_ids").is_dir()


def open(spec: str) -> dict[str, Source]:
    """Return the videos of each list in lists/ (val_videos.txt: val) whose videos have annotations."""
    root, sources = Path(spec), {}
    photos, masks = root / "Images", root / "Annotations" / "Category_ids"
    lists = matching(root / "lists", f"*{_LIST}.txt")
    for file in lists:
        split = file.stem.removesuffix(_LIST)
        names = list(dict.fromkeys(line.rpartition("/")[2] for line in text_lines(file)))
        if not any((masks / name).is_dir() for name in names):
            continue
        if missing := [name for name in names if not ((photos / name).is_dir() and (masks / name).is_dir())]:
            raise DataError(
                f"{file}: {len(missing):,} of {len(names):,} videos are not in both Images/ and "
                f"Annotations/Category_ids/: {some(missing, 5)}"
            )
        sources[split] = palette_videos(f"{spec} ({split})", photos, masks, names, classes=CLASSES)
    if not lists:
        raise DataError(f"{spec}: there is no list of videos, lists/val_videos.txt", "Give the folder VIP_Fine.")
    if not sources:
        raise DataError(f"{spec}: no list in lists/ names a video in Annotations/Category_ids/")
    return sources


FORMAT = SourceFormat(__doc__, readers={Parts: plain_reader(recognises, open)})
