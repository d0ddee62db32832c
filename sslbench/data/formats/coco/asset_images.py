"""Images with channels in several files of several sizes, combined on reading."""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.decode.handlers import PictureDecoder, make_decoder
from sslbench.data.decode.picture import Decoded, OtherChannels, UnreadableImage, Wanted, as_wanted, check_size
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST, Files

IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


@dataclasses.dataclass(frozen=True)
class BandMapping:
    """Channels taken from a file, and their placement.

    Attributes:
        channels: names of its bands, in order.
        take: (band of the file, channel of the image) of those that are taken.
        matrix: the first two rows of the affine map from its pixels to those of the image, in coordinates in which the
            first pixel reaches from 0 to 1.
    """

    channels: tuple[str, ...]
    take: tuple[tuple[int, int], ...]
    matrix: tuple[float, ...] = IDENTITY


@dataclasses.dataclass(frozen=True, eq=False)
class AssetImages:
    """N images, each made of one file or more.

    Attributes:
        files: M files, those of an image behind each other.
        starts: int64 (N + 1,), where the files of each image start.
        kinds: int64 (M,), position in `about`.
        about: channels taken from a file.
        sizes: int64 (N, 2), height and width; zeros where nothing says: then they are those of the first file.
        channels: the names of the channels.
    """

    files: Files
    starts: IntArray
    kinds: IntArray
    about: tuple[BandMapping, ...]
    sizes: IntArray
    channels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.sizes)

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Decode all channels of an image; files of other sizes are resampled linearly, uncovered pixels are zero.

        Raises:
            UnreadableImage: a file cannot be decoded or has other bands than it should, or the image has not as many
                channels as are wanted.
            OSError: a file cannot be read.
        """
        import torch

        height, width = self.sizes[index].tolist()
        bands: dict[int, npt.NDArray[np.generic]] = {}
        conversions: list[str] = []
        for at in range(int(self.starts[index]), int(self.starts[index + 1])):
            kind = self.about[int(self.kinds[at])]
            part = self._file(at, kind, decoder)
            pixels = part.image.permute(1, 2, 0).numpy()
            if not height:
                height, width = pixels.shape[:2]
            check_size(width, height, self.path(index), decoder.wanted.max_pixels)
            pixels = placed(pixels, kind.matrix, height, width)
            bands |= {channel: pixels[:, :, band] for band, channel in kind.take}
            conversions += [done for done in part.conversions if done not in conversions]
        image = torch.from_numpy(np.stack([bands[channel] for channel in range(len(self.channels))]))
        if len(image) == 1 and decoder.wanted.channels == 3:
            image, conversions = image.repeat(3, 1, 1), [*conversions, "grey to RGB"]
        return as_wanted(Decoded(image, tuple(conversions)), self.path(index), decoder.wanted)

    def _file(self, at: int, kind: BandMapping, decoder: PictureDecoder) -> Decoded:
        """Decode all bands of one file at full size; 16 bits are kept, so that bands of all depths have one scale."""
        path = self.files.path(at)
        wanted = dataclasses.replace(decoder.wanted, channels=len(kind.channels), deep=True, resize=None)
        try:
            return decoder.wanting(wanted)(path, self.files.read(at))
        except OtherChannels as error:
            reason = f"{error.channels} channels in the file, the manifest names {'|'.join(kind.channels)}"
            raise UnreadableImage(path, reason) from error

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the stored image: uint8 (H, W, channels), or uint16 if a file has samples of 16 bits.

        Raises:
            UnreadableImage: as for `decoded`.
            OSError: a file cannot be read.
        """
        decoder = make_decoder((), Wanted(len(self.channels), deep=True), self.files)
        image = self.decoded(index, decoder).image.permute(1, 2, 0).numpy()
        if image.dtype == np.uint8:
            return np.ascontiguousarray(image)
        return np.ascontiguousarray(np.round(image * 257).astype(np.uint16))

    def parts(self, index: int) -> list[tuple[Path, BandMapping]]:
        """Return the files of an image, each with the channels taken from it."""
        rows = range(int(self.starts[index]), int(self.starts[index + 1]))
        return [(Path(self.files.root) / self.files.paths[row], self.about[int(self.kinds[row])]) for row in rows]

    def path(self, index: int) -> str:
        """Return the first file and the number of further ones: 'a.tif and 2 more'."""
        start, stop = int(self.starts[index]), int(self.starts[index + 1])
        more = stop - start - 1
        return self.files.path(start) + (f" and {more} more" if more else "")

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: hashes of the files' contents, of the channels taken and of their placement."""
        contents = self.files.digests()
        about = [repr(kind).encode() for kind in self.about]
        digests = np.zeros((len(self), DIGEST_BYTES), dtype=np.uint8)
        for i in range(len(self)):
            state = hashlib.blake2b(repr(self.sizes[i].tolist()).encode(), digest_size=DIGEST_BYTES)
            rows = range(int(self.starts[i]), int(self.starts[i + 1]))
            for row in rows:
                state.update(contents[row].tobytes() + about[int(self.kinds[row])])
            if all(contents[row].tobytes() != UNREADABLE_DIGEST for row in rows):
                digests[i] = np.frombuffer(state.digest(), dtype=np.uint8)
        return digests

    def select(self, indices: npt.NDArray[np.int64]) -> "AssetImages":
        """Return the images at `indices`, in that order."""
        chosen = np.asarray(indices, dtype=np.int64)
        counts = np.diff(self.starts)[chosen]
        starts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        rows = np.repeat(self.starts[:-1][chosen] - starts[:-1], counts) + np.arange(starts[-1])
        files = self.files.select(rows)
        return AssetImages(files, starts, self.kinds[rows], self.about, self.sizes[chosen], self.channels)


def placed(
    pixels: npt.NDArray[np.generic], matrix: tuple[float, ...], height: int, width: int
) -> npt.NDArray[np.generic]:
    """Warp a picture (H, W, C) to height x width: linear interpolation, antialiased where it shrinks.

    The outermost pixels reach to the edge of the picture; what lies outside of it is zero.
    """
    if matrix == IDENTITY and pixels.shape[:2] == (height, width):
        return pixels
    import kwimage

    forward = np.array([*matrix, 0, 0, 1], dtype=np.float64).reshape(3, 3)
    smooth = bool(np.abs(np.linalg.svd(forward[:2, :2], compute_uv=False)).min() < 1)
    options = {"dsize": (width, height), "origin_convention": "corner", "antialias": smooth}
    # Repeats the border: a border of zeros would darken a rim of half a pixel of the small image.
    source = np.ascontiguousarray(pixels.astype(np.float32))
    warped = kwimage.warp_affine(source, forward, border_mode="replicate", **options)
    warped = np.where(_covered(forward, pixels.shape[:2], height, width), warped.reshape(height, width, -1), 0)
    if pixels.dtype == np.uint8:
        return np.clip(np.rint(warped), 0, 255).astype(np.uint8)
    return np.clip(warped, 0, 255).astype(np.float32)


def _covered(forward: npt.NDArray[np.float64], size: tuple[int, ...], height: int, width: int) -> npt.NDArray[np.bool_]:
    """Return (height, width, 1) bool: pixels with their centre inside of the mapped picture."""
    back = np.linalg.inv(forward)
    x, y = np.arange(width)[None, :] + 0.5, np.arange(height)[:, None] + 0.5
    u, v = (back[row, 0] * x + back[row, 1] * y + back[row, 2] for row in (0, 1))
    inside: npt.NDArray[np.bool_] = (u >= 0) & (u <= size[1]) & (v >= 0) & (v <= size[0])
    return inside[:, :, None]
