"""Videos in folders of frames (.jpg) and of masks (.png of the same names, numbers in place of colours)."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from sslbench.arrays import OfRows
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.images import Files
from sslbench.data.maps.files import load
from sslbench.data.maps.types import SAME_SIZE, size_difference
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.source import Source
from sslbench.data.tracks import UNLABELLED, videos_source
from sslbench.data.wording import some
from sslbench.errors import DataError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.videos import Ids


@dataclasses.dataclass(frozen=True, eq=False)
class PaletteMasks(OfRows):
    """Masks in palette or grey images, one per frame; see `tracks.ObjectIds`.

    Attributes:
        files: of the frames.
        classes: number of classes, and pixels with 255 have none; 0 for masks of objects, where 255 is background.
    """

    of_rows = ("files",)
    files: Files
    classes: int = 0

    def read_ids(self, row: int) -> Ids:
        """Return the objects or classes of a frame."""
        path = self.files.path(row)
        try:
            ids = load(self.files, row, MAX_PIXELS).indices()
        except UnreadableImage as error:
            raise DataError(f"{path} cannot be used: {error.reason}") from error
        # In DAVIS 255 is void, which counts as background.
        if not self.classes:
            ids[ids == UNLABELLED] = 0
        elif (beyond := ids[(ids >= self.classes) & (ids != UNLABELLED)]).size:
            raise DataError(f"{path} has class {beyond.max()}; there are the classes 0 to {self.classes - 1}, and 255")
        return ids

    def fingerprint(self) -> str:
        """Return a hash of the files."""
        return self.files.digests().tobytes().hex()


def frames_in(folder: Path, pattern: str) -> list[str]:
    """Return the names of the frames of a video in order: numbers without leading zeros are sorted as numbers."""
    return sorted((file.name for file in folder.glob(pattern)), key=lambda name: (len(name), name))


def palette_videos(
    name: str, photos: Path, annotations: Path, names: Sequence[str], *, classes: tuple[str, ...] = ()
) -> Source:
    """Return the videos PHOTOS/NAME/*.jpg with their masks ANNOTATIONS/NAME/*.png."""
    frames, videos = list[str](), dict[str, list[int]]()
    for video in names:
        own = [f"{video}/{Path(file).stem}" for file in frames_in(photos / video, "*.jpg")]
        videos[video] = list(range(len(frames), len(frames) + len(own)))
        frames += own
    missing = [frame for frame in frames if not (annotations / f"{frame}.png").is_file()]
    if missing:
        raise DataError(f"{name}: {len(missing):,} of {len(frames):,} frames have no mask: {some(missing, 5)}")
    both = [(size_in_file(photos / f"{f}.jpg"), size_in_file(annotations / f"{f}.png")) for f in frames]
    differ = [
        f"{frame} ({difference})"
        for frame, (own, mask) in zip(frames, both, strict=True)
        # 0, 0: the head of a file cannot be read, which decoding it explains.
        if (0, 0) not in (own, mask) and (difference := size_difference(mask, own, "the mask"))
    ]
    if differ:
        raise DataError(
            f"{name}: {len(differ):,} masks are not of the size of their frame: {some(differ, 3)}", SAME_SIZE
        )
    images = Files(tuple(f"{frame}.jpg" for frame in frames), str(photos))
    masks = PaletteMasks(Files(tuple(f"{frame}.png" for frame in frames), str(annotations)), len(classes))
    return videos_source(name, videos, images, masks, classes=classes)
