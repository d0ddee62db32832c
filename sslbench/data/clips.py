"""Clips of videos as samples: every video is a sample, its chosen frames stand one after the other in its picture."""

import dataclasses
import importlib.util
from collections.abc import Mapping
from pathlib import PurePosixPath

from sslbench.arrays import ByteArray, OfRows
from sslbench.data.containers.sniff import VIDEOS
from sslbench.data.decode.handlers import Handler
from sslbench.data.decode.sampling import ClipOptions
from sslbench.data.decode.videos import ClipHandler
from sslbench.data.images import digests_with
from sslbench.data.joined import JoinedImages
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import DataError
from sslbench.targets.target import Images


@dataclasses.dataclass(frozen=True)
class Clips(OfRows):
    """Videos of which some frames are taken.

    Attributes:
        videos: the files.
        options: sampling of the frames.
    """

    of_rows = ("videos",)
    videos: Images
    options: ClipOptions

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """Handler that decodes the frames."""
        return (ClipHandler(self.options),)

    def read(self, index: int) -> bytes | ByteArray:
        """Return the bytes of a video."""
        return self.videos.read(index)

    def path(self, index: int) -> str:
        """Return the path of a video."""
        return self.videos.path(index)

    def digests(self) -> ByteArray:
        """Return the digest of content and sampling of each video, (N, 16); zeros for unreadable files."""
        contents = self.videos.digests()
        return digests_with(contents, [self.options.key()] * len(contents))


def sampling_of(images: Images) -> tuple[ClipOptions, ...]:
    """Return the samplings of videos, several for joined sources; () for images."""
    if isinstance(images, JoinedImages):
        return tuple(dict.fromkeys(options for part in images.parts for options in sampling_of(part)))
    return (images.options,) if isinstance(images, Clips) else ()


def views_of(images: Images) -> ClipOptions:
    """Return the sampling that says the views of a sample; of images, and of joined videos, it has one."""
    return next((options for options in sampling_of(images) if options.views > 1), ClipOptions())


def frames_of(images: Images) -> int:
    """Return the number of frames of a sample, over all clips; 1 for images."""
    return max((options.total for options in sampling_of(images)), default=1)


def noun_of(source: Source) -> str:
    """Return the noun for a sample of a source in messages: 'video' or 'image'."""
    return "video" if sampling_of(source.images) else "image"


def are_videos(source: Source) -> bool:
    """Return whether the samples of a source are files of videos, by the suffix of the first one."""
    return len(source) > 0 and PurePosixPath(source.images.path(0)).suffix.lower() in VIDEOS


def clips_of(source: Source, options: ClipOptions) -> Source:
    """Return the clips of the videos of a source, with their labels.

    Raises:
        DataError: PyAV is not installed.
    """
    if importlib.util.find_spec("av") is None:
        raise DataError(f"{source.name} has videos, and reading them needs PyAV", "pip install 'sslbench[video]'")
    note = f"{source.name}: {options.text()} of each of {counted(len(source), 'video')}"
    return dataclasses.replace(source, images=Clips(source.images, options), notes=(*source.notes, note))


def split_options(options: Mapping[str, str], others: frozenset[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the options of clips, and those that are left; those of these names that a format has are left.

    >>> split_options({"frames": "8", "group": "person"}, frozenset())
    ({'frames': '8'}, {'group': 'person'})
    """
    names = {field.name for field in dataclasses.fields(ClipOptions)} - others
    if options.get("unit", "clip") != "clip":
        names.discard("unit")
    own = {key: text for key, text in options.items() if key in names}
    return own, {key: text for key, text in options.items() if key not in own}
