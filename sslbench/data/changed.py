"""Changed images of a source, as a source of their own: versions (each image decoded once for all), no border.

Versions show the picture as a backbone gets it, resized and cropped. The order of the samples is by version, then
by image: rows i * N to (i + 1) * N of the features are those of version i.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch

from sslbench.arrays import IntArray, OfRows
from sslbench.data.decode.handlers import Handler, PictureDecoder, handlers_of, picture_decoder, picture_of
from sslbench.data.decode.picture import Decoded, UnreadableImage
from sslbench.data.decode.transforms import resize_and_crop
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST, digest
from sslbench.data.sharded import by_shard
from sslbench.data.source import Source
from sslbench.data.wording import counted
from sslbench.preprocessing import Preprocessing
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Images

ByteImage = npt.NDArray[np.uint8]


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
        place = index if self.chosen is None else int(self.chosen[index])
        return self.changes[place // len(self.base)], place % len(self.base)

    def _places(self) -> IntArray:
        return np.arange(len(self)) if self.chosen is None else self.chosen

    @property
    def handlers(self) -> Iterable[Handler]:
        """Handlers of the images that the versions are made of, for keys of features."""
        return handlers_of(self.base)

    def read(self, index: int) -> bytes | ByteImage:
        """Return the changed picture, (H, W, 3)."""
        change, image = self._located(index)
        return change.apply(self._picture(image), self._generator(change, image))

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the changed picture; the decoder is that of the images themselves."""
        changed = np.asarray(self.read(index))
        return Decoded(torch.from_numpy(np.ascontiguousarray(changed)).permute(2, 0, 1), ())

    def _picture(self, image: int) -> ByteImage:
        """Return an image of the base as a backbone gets it, (H, W, 3) of 8 bits."""
        if self._last is not None and self._last[0] == image:
            return self._last[1]
        if self._decoder is None:
            self._decoder = picture_decoder(self.preprocessing, self.base)
        decoded = picture_of(self.base, image, self._decoder)
        try:
            picture = resize_and_crop(decoded.image, self.preprocessing, decoded.full)
        except ValueError as error:
            raise UnreadableImage(self.base.path(image), str(error)) from error
        pixels = picture.clamp(0, 255).round() if picture.is_floating_point() else picture
        array = np.ascontiguousarray(pixels.to(torch.uint8).permute(1, 2, 0).numpy())
        # Kept for the next version, so a change must not work in place.
        array.setflags(write=False)
        self._last = image, array
        return array

    def _generator(self, change: ImageChange, image: int) -> np.random.Generator:
        file = self.names[image].rpartition("/")[2]  # no name of a class folder decides
        key = hashlib.sha256(f"{self.seed}\n{change.name}\n{file}".encode()).digest()
        return np.random.default_rng(int.from_bytes(key[:16], "little"))

    def path(self, index: int) -> str:
        """Return the name of the image and of the change: 'cat/17.png (fog-3)'."""
        change, image = self._located(index)
        return f"{self.base.path(image)} ({change.name})"

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return a digest of image, change, seed and geometry of each sample, (N, 16); zeros for unreadable images."""
        own, found = self.base.digests(), np.zeros((len(self), DIGEST_BYTES), dtype=np.uint8)
        geometry = sorted((name, str(value)) for name, value in self.preprocessing.values().items())
        ends = [f"{change.name}\n{change.code}\n{self.seed}\n{geometry}".encode() for change in self.changes]
        for row, place in enumerate(self._places().tolist()):
            content = own[place % len(own)].tobytes()
            if content != UNREADABLE_DIGEST:
                found[row] = np.frombuffer(digest(content + ends[place // len(own)]), dtype=np.uint8)
        return found

    def select(self, indices: IntArray) -> "Versions":
        """Return the samples at `indices`, in that order."""
        return dataclasses.replace(self, chosen=self._places()[indices])

    def shards(self) -> IntArray:
        """Return for each sample the place of its image in the order of reading, so that versions come together."""
        order = by_shard(self.base, np.arange(len(self.base)))
        return np.argsort(order)[self._places() % len(self.base)]

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
    height, width = image.shape[:2]
    # Exact where the picture keeps its shape; a warp would interpolate.
    if degrees % 90 == 0 and (height == width or degrees % 180 == 0):
        return np.ascontiguousarray(np.rot90(image, int(degrees // 90) % 4))
    # OpenCV counts from the centre of the first pixel, so the middle lies at (width - 1) / 2.
    return _warp(image, cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), degrees, 1.0))


def rescale(image: ByteImage, factor: float) -> ByteImage:
    """Return the picture shrunk (factor below 1) or enlarged about its centre.

    >>> rescale(np.full((4, 4, 3), 7, np.uint8), 0.5)[0, 0].tolist()
    [7, 7, 7]
    """
    height, width = image.shape[:2]
    return _warp(image, cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), 0.0, factor))


def crop(image: ByteImage, share: float, rng: np.random.Generator) -> ByteImage:
    """Return a random part of the picture, of this share of both sides, resized to the size of the picture.

    >>> crop(np.full((8, 8, 3), 7, np.uint8), 0.5, np.random.default_rng(0)).shape
    (8, 8, 3)
    """
    height, width = image.shape[:2]
    h, w = max(1, round(share * height)), max(1, round(share * width))
    top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
    part = np.ascontiguousarray(image[top : top + h, left : left + w])
    resized: ByteImage = np.asarray(cv2.resize(part, (width, height), interpolation=cv2.INTER_LINEAR), dtype=np.uint8)
    return resized


def _warp(image: ByteImage, matrix: npt.NDArray[Any]) -> ByteImage:
    size = (image.shape[1], image.shape[0])
    warped = cv2.warpAffine(image, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(warped, dtype=np.uint8)


def without_border(source: Source) -> Source:
    """Return a source whose pictures lack their outermost pixels: ObjectNet has a red border of one pixel."""
    return dataclasses.replace(source, images=Borderless(source.images, 1))


@dataclasses.dataclass(frozen=True, eq=False)
class Borderless(OfRows):
    """Images without a border of some pixels."""

    of_rows = ("base",)
    base: Images
    pixels: int

    @property
    def handlers(self) -> Iterable[Handler]:
        """Handlers of the images themselves."""
        return handlers_of(self.base)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the picture in RGB, (H, W, 3)."""
        picture = self.decoded(index, picture_decoder(None, self.base)).image
        return np.ascontiguousarray(picture.permute(1, 2, 0).numpy())

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the picture that `decoder` reads, without its border."""
        full = decoder.wanting(dataclasses.replace(decoder.wanted, resize=None))  # the border is in pixels of the file
        whole, n = picture_of(self.base, index, full), self.pixels
        if min(whole.image.shape[1:]) <= 2 * n:
            raise UnreadableImage(self.base.path(index), f"nothing is left without a border of {n} pixels")
        return dataclasses.replace(whole, image=whole.image[:, n:-n, n:-n])

    def path(self, index: int) -> str:
        """Return the name of the image."""
        return self.base.path(index)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return the digest of content and border of each image, (N, 16); zeros for unreadable images."""
        found = self.base.digests()
        for row, content in enumerate(found):
            if content.tobytes() != UNREADABLE_DIGEST:
                found[row] = np.frombuffer(digest(content.tobytes() + b"border %d" % self.pixels), dtype=np.uint8)
        return found
