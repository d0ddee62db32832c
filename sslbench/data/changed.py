"""Changed images of a source: chosen channels, pictures without a border, and versions, decoded once for all.

Versions show the picture as a backbone gets it, resized and cropped. The order of the samples is by version, then
by image: rows i * N to (i + 1) * N of the features are those of version i.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray, OfRows
from sslbench.data.decode.handlers import (
    Handler,
    PictureDecoder,
    handlers_of,
    make_decoder,
    picture_decoder,
    picture_of,
)
from sslbench.data.decode.picture import GREY_TO_RGB, Decoded, OtherChannels, UnreadableImage, Wanted, as_wanted
from sslbench.data.images import digests_with
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images

ByteImage = npt.NDArray[np.uint8]


def split_option(
    spec: str, options: Mapping[str, str], *, named: bool = False
) -> tuple[tuple[int, ...], dict[str, str]]:
    """Return the numbers of the chosen channels, from 0, () for all of them; and the options that are left.

    With `named`, the format knows names of channels (`red|nir`), and chooses by these itself.

    >>> split_option("photos/", {"channels": "4|1|2", "group": "patient"})
    ((3, 0, 1), {'group': 'patient'})
    """
    if "channels" not in options:
        return (), dict(options)
    words = options["channels"].replace("|", ",").split(",")
    numbers = all(word.isdecimal() and 0 < int(word) < 10_000 for word in words)
    if named and not numbers:
        return (), dict(options)
    if not numbers:
        raise UsageError(
            f"{spec}: ?channels={options['channels']} should be numbers from 1", "For example ?channels=1|2|3."
        )
    return tuple(int(word) - 1 for word in words), {key: text for key, text in options.items() if key != "channels"}


def with_channels(source: Source, take: tuple[int, ...]) -> Source:
    """Return a source whose images have only the chosen channels (numbers from 0), in that order."""
    return dataclasses.replace(source, images=Bands(source.images, take))


@dataclasses.dataclass(frozen=True)
class Bands(OfRows):
    """Images of which some channels are taken: numbers from 0."""

    of_rows = ("images",)
    images: Images
    take: tuple[int, ...]

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Decode all channels of an image at full size and take the chosen ones."""

        def all_of(channels: int) -> Decoded:
            wanted = dataclasses.replace(decoder.wanted, channels=channels, deep=True, resize=None)
            return picture_of(self.images, index, decoder.wanting(wanted))

        try:
            # Nothing tells the number of channels before; if it is another one, the error of the decoder does.
            whole = all_of(max(self.take) + 1)
        except OtherChannels as error:
            if error.channels <= max(self.take):
                named = "|".join(str(number + 1) for number in self.take)
                reason = f"{error.channels} channels, and ?channels={named} names channel {max(self.take) + 1}"
                raise UnreadableImage(self.path(index), reason) from error
            whole = all_of(error.channels)
        image, conversions = whole.image[list(self.take)], whole.conversions
        if len(image) == 1 and decoder.wanted.channels == 3:
            image, conversions = image.repeat(3, 1, 1), (*conversions, GREY_TO_RGB)
        image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # interleaved, which makes resizing fast
        return as_wanted(Decoded(image, conversions), self.path(index), decoder.wanted)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the chosen channels, uint8 (H, W, channels), or uint16 if the file has samples of 16 bits."""
        decoder = make_decoder((), Wanted(len(self.take), deep=True), self.images)
        image = self.decoded(index, decoder).image.permute(1, 2, 0)
        if image.is_floating_point():
            # Samples of 16 bits were divided by 257, so that 65,535 became 255.
            return np.ascontiguousarray(np.round(image.numpy() * 257).astype(np.uint16))
        return np.ascontiguousarray(image.numpy())

    def path(self, index: int) -> str:
        """Return the name of an image in messages."""
        return self.images.path(index)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: of the image's content and the channels; zeros where the file cannot be read."""
        contents = self.images.digests()
        return digests_with(contents, [repr(self.take).encode()] * len(contents))


@dataclasses.dataclass(frozen=True, eq=False)
class ChangedPictures(OfRows):
    """Images whose pictures are changed once they are decoded.

    Attributes:
        base: the images themselves.
    """

    base: Images

    @property
    def handlers(self) -> Iterable[Handler]:
        """Handlers of the images themselves."""
        return handlers_of(self.base)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the picture in RGB, (H, W, 3)."""
        picture = self.decoded(index, picture_decoder(None, self.base)).image
        return np.ascontiguousarray(picture.permute(1, 2, 0).numpy())

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the changed picture that `decoder` reads."""
        raise NotImplementedError


def without_border(source: Source) -> Source:
    """Return a source whose pictures lack their outermost pixels: ObjectNet has a red border of one pixel."""
    return dataclasses.replace(source, images=Borderless(source.images))


@dataclasses.dataclass(frozen=True, eq=False)
class Borderless(ChangedPictures):
    """Images without their outermost pixels."""

    of_rows = ("base",)

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the picture that `decoder` reads, without its border."""
        full = decoder.wanting(dataclasses.replace(decoder.wanted, resize=None))  # the border is in pixels of the file
        whole = picture_of(self.base, index, full)
        if min(whole.image.shape[1:]) <= 2:
            raise UnreadableImage(self.base.path(index), "nothing is left without a border of 1 pixel")
        return dataclasses.replace(whole, image=whole.image[:, 1:-1, 1:-1])

    def path(self, index: int) -> str:
        """Return the name of the image."""
        return self.base.path(index)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the digest of content and border of each image, (N, 16); zeros for unreadable images."""
        contents = self.base.digests()
        return digests_with(contents, [b"border 1"] * len(contents))


@dataclasses.dataclass(frozen=True)
class ImageChange:
    """Change of a picture.

    Attributes:
        name: unique among the changes of a source; part of the ids.
        apply: function from a picture (H, W, 3), 8 bits, to one of the same shape; randomness comes from the generator.
        code: version of the function and of everything else that it reads, for keys of stored features.
    """

    name: str
    apply: Callable[[ByteImage, np.random.Generator], ByteImage]
    code: str


def versions_of(source: Source, changes: Sequence[ImageChange], preprocessing: Preprocessing, seed: int) -> Source:
    """Return V versions of the N images of a source, unlabelled; changes are sorted by name.

    Its features are those of a backbone with the preprocessing `without_geometry(preprocessing)`.

    The ids of the versions are those of the images behind the name of the change: 'fog-3/cat/17.png'. Every version of
    every image (by its id) has a random generator of its own.
    """
    ordered = tuple(sorted(changes, key=lambda change: change.name))
    images = Versions(source.images, source.ids, ordered, preprocessing, seed)
    ids = tuple(f"{change.name}/{name}" for change in ordered for name in source.ids)
    return Source(f"{source.name}, {counted(len(ordered), 'version')}", ids, Unlabelled(len(ids)), images)


def without_geometry(preprocessing: Preprocessing) -> Preprocessing:
    """Return the preprocessing for pictures that are resized and cropped already."""
    return dataclasses.replace(preprocessing, resize=None, squash=None, crop=None)


@dataclasses.dataclass(eq=False)
class Versions:
    """Versions of images; the last picture that was decoded is kept for the next version of it.

    Attributes:
        base: N images.
        names: their ids.
        changes: of each version.
        preprocessing: of the backbone.
        seed: of the changes.
        chosen: int64, version * N + image of each sample; None for all.
    """

    base: Images
    names: Sequence[str]
    changes: tuple[ImageChange, ...]
    preprocessing: Preprocessing
    seed: int
    chosen: IntArray | None = None
    _decoder: PictureDecoder | None = dataclasses.field(default=None, init=False)
    _last: tuple[int, ByteImage] | None = dataclasses.field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.changes) * len(self.base) if self.chosen is None else len(self.chosen)

    def _located(self, index: int) -> tuple[ImageChange, int]:
        change, image = divmod(index if self.chosen is None else int(self.chosen[index]), len(self.base))
        return self.changes[change], image

    def _rows(self) -> IntArray:
        return np.arange(len(self)) if self.chosen is None else self.chosen

    @property
    def handlers(self) -> Iterable[Handler]:
        """Handlers of the images that the versions are made of, for keys of features."""
        return handlers_of(self.base)

    def read(self, index: int) -> bytes | ByteImage:
        """Return the changed picture, (H, W, 3)."""
        change, image = self._located(index)
        file = self.names[image].rpartition("/")[2]  # no name of a class folder decides
        key = hashlib.sha256(f"{self.seed}\n{change.name}\n{file}".encode()).digest()
        generator = np.random.default_rng(int.from_bytes(key[:16], "little"))
        return change.apply(self._picture(image), generator)

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the changed picture; the decoder is that of the images themselves."""
        import torch

        changed = np.asarray(self.read(index))
        return Decoded(torch.from_numpy(np.ascontiguousarray(changed)).permute(2, 0, 1), ())

    def _picture(self, image: int) -> ByteImage:
        """Return an image of the base as a backbone gets it, (H, W, 3) of 8 bits."""
        if self._last is not None and self._last[0] == image:
            return self._last[1]
        if self._decoder is None:
            self._decoder = picture_decoder(self.preprocessing, self.base)
        from sslbench.data.decode.transforms import resize_and_crop  # loads torch

        decoded = picture_of(self.base, image, self._decoder)
        try:
            picture = resize_and_crop(decoded.image, self.preprocessing, decoded.full)
        except ValueError as error:
            raise UnreadableImage(self.base.path(image), str(error)) from error
        pixels = picture.clamp(0, 255).round() if picture.is_floating_point() else picture
        array = np.ascontiguousarray(pixels.byte().permute(1, 2, 0).numpy())
        # Kept for the next version, so a change must not work in place.
        array.setflags(write=False)
        self._last = image, array
        return array

    def path(self, index: int) -> str:
        """Return the name of the image and of the change: 'cat/17.png (fog-3)'."""
        change, image = self._located(index)
        return f"{self.base.path(image)} ({change.name})"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return a digest of image, change, seed and geometry of each sample, (N, 16); zeros for unreadable images."""
        geometry = sorted((name, str(value)) for name, value in self.preprocessing.values().items())
        ends = [f"{change.name}\n{change.code}\n{self.seed}\n{geometry}".encode() for change in self.changes]
        change, image = np.divmod(self._rows(), len(self.base))
        return digests_with(self.base.digests()[image], [ends[i] for i in change])

    def select(self, indices: IntArray) -> "Versions":
        """Return the samples at `indices`, in that order."""
        return dataclasses.replace(self, chosen=self._rows()[indices])

    def shards(self) -> IntArray:
        """Return for each sample the place of its image in the order of reading, so that versions come together."""
        order = by_shard(self.base, np.arange(len(self.base)))
        return np.argsort(order)[self._rows() % len(self.base)]

    def fetched(self) -> IntArray:
        """Return zeros: the images are fetched by their own source."""
        return np.zeros(len(self.base), dtype=np.int64)


GEOMETRY_VERSION = 1
"""Version of the changes, raised when the same picture gives another one."""


def rotate(image: ByteImage, degrees: float) -> ByteImage:
    """Return the picture turned about its centre, anticlockwise.

    >>> picture = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    >>> np.array_equal(rotate(picture, 90), np.rot90(picture))
    True
    """
    # Exact where the picture keeps its shape; a warp would interpolate.
    if degrees % 90 == 0 and (image.shape[0] == image.shape[1] or degrees % 180 == 0):
        return np.ascontiguousarray(np.rot90(image, int(degrees // 90) % 4))
    return _turned_and_scaled(image, degrees, 1.0)


def rescale(image: ByteImage, factor: float) -> ByteImage:
    """Return the picture shrunk (factor below 1) or enlarged about its centre.

    >>> rescale(np.full((4, 4, 3), 7, np.uint8), 0.5)[0, 0].tolist()
    [7, 7, 7]
    """
    return _turned_and_scaled(image, 0.0, factor)


def crop(image: ByteImage, share: float, rng: np.random.Generator) -> ByteImage:
    """Return a random part of the picture, of this share of both sides, resized to the size of the picture.

    >>> crop(np.full((8, 8, 3), 7, np.uint8), 0.5, np.random.default_rng(0)).shape
    (8, 8, 3)
    """
    import cv2

    height, width = image.shape[:2]
    h, w = max(1, round(share * height)), max(1, round(share * width))
    top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
    part = np.ascontiguousarray(image[top : top + h, left : left + w])
    resized: ByteImage = np.asarray(cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR), dtype=np.uint8)
    return resized


def _turned_and_scaled(image: ByteImage, degrees: float, factor: float) -> ByteImage:
    import cv2

    height, width = image.shape[:2]
    # OpenCV counts from the centre of the first pixel, so the middle lies at (width - 1) / 2.
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, factor)
    warped = cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(warped, dtype=np.uint8)
