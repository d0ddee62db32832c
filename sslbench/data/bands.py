"""Chosen channels of images of any kind: `photos/?channels=1|2|3` takes three of four bands, in that order."""

import dataclasses
import hashlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from sslbench.arrays import OfRows
from sslbench.data.decode.handlers import PictureDecoder, make_decoder, picture_of
from sslbench.data.decode.picture import Decoded, OtherChannels, UnreadableImage, Wanted, as_wanted
from sslbench.data.images import DIGEST_BYTES, UNREADABLE_DIGEST
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.targets.target import Images


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
            image, conversions = image.repeat(3, 1, 1), (*conversions, "grey to RGB")
        image = image.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # interleaved, which makes resizing fast
        return as_wanted(Decoded(image, conversions), self.path(index), decoder.wanted)

    def read(self, index: int) -> npt.NDArray[np.uint8]:
        """Return the chosen channels, uint8 (H, W, channels), or uint16 if the file has samples of 16 bits."""
        decoder = make_decoder((), Wanted(len(self.take), deep=True), self.images)
        image = self.decoded(index, decoder).image.permute(1, 2, 0)
        if image.dtype != torch.uint8:
            # Samples of 16 bits were divided by 257, so that 65,535 became 255.
            return np.ascontiguousarray(np.round(image.numpy() * 257).astype(np.uint16))
        return np.ascontiguousarray(image.numpy())

    def path(self, index: int) -> str:
        """Return the name of an image in messages."""
        return self.images.path(index)

    def digests(self) -> npt.NDArray[np.uint8]:
        """Return (N, 16) bytes: of the image's content and the channels; zeros where the file cannot be read."""
        digests = np.array(self.images.digests())
        for row, content in enumerate(digests):
            if content.tobytes() != UNREADABLE_DIGEST:
                state = hashlib.blake2b(content.tobytes() + repr(self.take).encode(), digest_size=DIGEST_BYTES)
                digests[row] = np.frombuffer(state.digest(), dtype=np.uint8)
        return digests
