"""Images without their outermost pixels: those of ObjectNet have a red border of one pixel."""

import dataclasses
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from sslbench.arrays import IntArray
from sslbench.data.decode.handlers import Handler, PictureDecoder, handlers_of, picture_decoder, picture_of
from sslbench.data.decode.picture import Decoded, UnreadableImage
from sslbench.data.images import UNREADABLE_DIGEST, digest
from sslbench.data.source import Source
from sslbench.targets.images import Images


def without_border(source: Source, pixels: int = 1) -> Source:
    """Return a source whose pictures lack their outermost pixels."""
    return dataclasses.replace(source, images=Borderless(source.images, pixels))


@dataclasses.dataclass(frozen=True, eq=False)
class Borderless:
    """Images without a border of some pixels."""

    base: Images
    pixels: int

    def __len__(self) -> int:
        return len(self.base)

    @property
    def handlers(self) -> Iterable[Handler]:
        """Handlers of the images themselves."""
        return handlers_of(self.base)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the picture in RGB, (H, W, 3)."""
        picture = self.decoded(index, picture_decoder(None, self.base)).image
        return np.ascontiguousarray(picture.permute(1, 2, 0).numpy())

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the picture that `decoder` reads, without its border.

        Raises:
            UnreadableImage: nothing is left of it.
        """
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

    def select(self, indices: IntArray) -> "Borderless":
        """Return the images at `indices`, in that order."""
        return Borderless(self.base.select(indices), self.pixels)
