"""One picture of a source, also where it is made of others."""

from collections.abc import Callable

from sslbench.data.decoder import PictureDecoder
from sslbench.data.joined import JoinedImages
from sslbench.data.picture import Decoded
from sslbench.data.source import Images


def picture_of(images: Images, index: int, decoder: PictureDecoder) -> Decoded:
    """One picture; of `Images` whose pictures are made of others (crops, several files) as they make it.

    Such `Images` have a method `decoded(index, decoder) -> Decoded`, which reads the others with the decoder. One of
    several sources is decoded as its own source does it.

    Raises:
        UnreadableImage: it cannot be decoded.
        OSError: its file cannot be read.
    """
    if isinstance(images, JoinedImages):
        part, row = images.located(index)
        return picture_of(images.parts[part], row, decoder.parts[part] if decoder.parts else decoder)
    made: Callable[[int, PictureDecoder], Decoded] | None = getattr(images, "decoded", None)
    return made(index, decoder) if made is not None else decoder(images.path(index), images.read(index))
