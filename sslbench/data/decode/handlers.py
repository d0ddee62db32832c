"""The routed decoder: functions that each decode what they know, asked in turn, the first answer wins.

The design is that of torchvision's request for comments on decoding (torchvision issue 5075). The user's functions come
first, then the source's own (an attribute `handlers` of its `Images`), then the default, which reads every picture.
"""

import io
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from sslbench import user_code
from sslbench.data.decode.files import decode
from sslbench.data.decode.picture import RGB, Decoded, UnreadableImage, Wanted, as_wanted, from_array, from_fractions
from sslbench.data.decode.pillow import from_pillow
from sslbench.data.decode.reading import DEFAULT as DEFAULT
from sslbench.data.decode.reading import Reading as Reading
from sslbench.data.joined import JoinedImages
from sslbench.data.source import Images
from sslbench.errors import SslbenchError, UsageError
from sslbench.names import did_you_mean, find_object, refuse_named_by_file
from sslbench.preprocessing import Preprocessing

Handler = Callable[[str, BinaryIO], Any]
"""(path, file) -> what the file holds, or None when it is for somebody else to decode.

For a picture that is an array (H, W) or (H, W, channels) or a tensor (channels, H, W), of uint8, uint16 or floating
point values from 0 to 1; a Pillow image; or a `Decoded`.
"""

WAYS = ("reference", "fast")
"""How the default decodes; see `Preprocessing.decoder`."""


class Decoder:
    """Handlers that are asked in turn; it has those that it is given and no others.

    It holds no state, and can be sent to other processes if its handlers can (functions of a module can).

    Attributes:
        handlers: in the order in which they are asked.
        must_decode: whether a file that none of them takes is an error; if not, it stays as it is.
    """

    def __init__(self, *handlers: Handler, must_decode: bool = True) -> None:
        self.handlers = handlers
        self.must_decode = must_decode

    def __call__(
        self, path: str, buffer: bytes | BinaryIO, *, prefix: str = "", include_path: bool = True
    ) -> dict[str, Any]:
        """What belongs into the dictionary of a sample.

        Args:
            path: of the file; handlers may go by its suffix.
            buffer: its content.
            prefix: of the keys, for samples that hold several files: 'image', 'mask'.
            include_path: put the path beside it.

        Returns:
            A handler's dictionary as it is; any other value under the prefix, or 'data' without one; the content
            itself, undecoded, under 'buffer' ('mask_buffer'); and the path under 'path' ('mask_path').

        Raises:
            UnreadableImage: nobody takes the file, and `must_decode` is set; or a handler failed.
        """
        before = f"{prefix}_" if prefix else ""
        handler, value = self.route(path, buffer)
        if handler is None:
            sample = {f"{before}buffer": buffer}
        else:
            sample = dict(value) if isinstance(value, Mapping) else {prefix or "data": value}
        return {**sample, f"{before}path": path} if include_path else sample

    def route(self, path: str, buffer: bytes | BinaryIO) -> tuple[Handler | None, Any]:
        """The handler that takes a file, and what it gave; (None, None) if nobody does and nobody must.

        Raises:
            UnreadableImage: nobody takes the file, and `must_decode` is set; or a handler failed.
        """
        for handler in self.handlers:
            try:
                value = handler(path, _from_its_start(buffer))
            except (UnreadableImage, SslbenchError):
                raise
            except Exception as error:  # a handler raises what its library does on a damaged file
                message = " ".join(f"{type(error).__name__}: {error}".split())
                raise UnreadableImage(path, f"{name_of(handler)}: {message[:200]}") from error
            if value is not None:
                return handler, value
        if self.must_decode:
            asked = ", ".join(name_of(handler) for handler in self.handlers) or "there are none"
            raise UnreadableImage(path, f"no handler takes it ({asked})")
        return None, None


class Pictures:
    """The default handler: takes every file, and gives the picture as it is wanted or the reason why there is none."""

    def __init__(self, wanted: Wanted = RGB) -> None:
        self.wanted = wanted

    def __call__(self, path: str, buffer: BinaryIO) -> Decoded:
        """Never None."""
        return decode(buffer.read(), path, self.wanted)


class PictureDecoder:
    """From what a source holds to a picture: arrays as they are, files through a `Decoder`.

    Attributes:
        decoder: for all files.
        wanted: see there.
        parts: of several sources at once, that of each.
    """

    def __init__(self, decoder: Decoder, wanted: Wanted = RGB, parts: tuple["PictureDecoder", ...] = ()) -> None:
        self.decoder, self.wanted, self.parts = decoder, wanted, parts

    def __call__(self, path: str, data: bytes | npt.NDArray[np.uint8]) -> Decoded:
        """The picture; what a handler other than the default gave is counted among its conversions.

        Raises:
            UnreadableImage: there is none, or not one as wanted.
            UsageError: a handler gave something that is no picture.
        """
        if isinstance(data, np.ndarray):  # decoded already, there is nothing for a handler to do
            return decode(data, path, self.wanted)
        handler, value = self.decoder.route(path, data)
        if handler is None:
            raise UnreadableImage(path, "left undecoded, and a backbone takes pictures")
        if isinstance(handler, Pictures):
            return value  # type: ignore[no-any-return]
        decoded = as_picture(value, path, self.wanted, name_of(handler))
        return Decoded(decoded.image, (f"decoded by {name_of(handler)}", *decoded.conversions), decoded.full)

    def wanting(self, wanted: Wanted) -> "PictureDecoder":
        """The same handlers for pictures that are wanted otherwise."""
        handlers = [Pictures(wanted) if isinstance(h, Pictures) else h for h in self.decoder.handlers]
        parts = tuple(part.wanting(wanted) for part in self.parts)
        return PictureDecoder(Decoder(*handlers, must_decode=self.decoder.must_decode), wanted, parts)

    def same_as(self, other: "PictureDecoder") -> bool:
        """Whether both give the same pictures."""
        own, others = ([h for h in d.decoder.handlers if not isinstance(h, Pictures)] for d in (self, other))
        return self.wanted == other.wanted and own == others


def picture_decoder(preprocessing: Preprocessing | None, images: Images) -> PictureDecoder:
    """The decoder for some images: the user's handlers, the source's, the default.

    Args:
        preprocessing: whose `decoder` names the handlers; None: RGB of 8 bits without handlers of the user's.
        images: of the source.

    Raises:
        UsageError: a handler's name leads nowhere.
    """
    if preprocessing is None:
        return make_decoder((), RGB, images)
    return make_decoder(preprocessing.decoder, Wanted.by(preprocessing), images)


def make_decoder(names: Iterable[str], wanted: Wanted, images: Images) -> PictureDecoder:
    """The same for pictures as they are `wanted`.

    Args:
        names: of the user's handlers; 'reference' and 'fast' among them mean nothing here.
        wanted: see there.
        images: of the source.

    Raises:
        UsageError: a handler's name leads nowhere.
    """
    names = tuple(names)
    parts = (
        tuple(make_decoder(names, wanted, part) for part in images.parts) if isinstance(images, JoinedImages) else ()
    )
    return PictureDecoder(Decoder(*resolve(names), *handlers_of(images), Pictures(wanted)), wanted, parts)


def handlers_of(images: Images) -> tuple[Handler, ...]:
    """A source's own handlers, if it has any."""
    return tuple(getattr(images, "handlers", ()))


def as_picture(value: Any, path: str, wanted: Wanted, handler: str) -> Decoded:
    """What a handler gave, as a picture.

    Raises:
        UnreadableImage: its size or channels are not wanted.
        UsageError: it is none.
    """
    if isinstance(value, Decoded):
        return as_wanted(value, path, wanted)
    if isinstance(value, Image.Image):
        return from_pillow(value, path, wanted)
    if isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating):
        value = torch.from_numpy(value if value.ndim == 2 else np.moveaxis(value, -1, 0).copy())
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            return from_fractions(value, path, wanted)
        value = value.cpu().numpy() if value.ndim == 2 else np.moveaxis(value.cpu().numpy(), 0, -1)
    if isinstance(value, np.ndarray):
        return from_array(value, path, wanted)
    raise UsageError(
        f"the decoder {handler} gave a {type(value).__name__} for {path}, which is no picture",
        "Return an array (H, W, channels), a tensor (channels, H, W), a Pillow image, or None to leave it to others.",
    )


def resolve(decoder: Iterable[str]) -> tuple[Handler, ...]:
    """The user's handlers among the names in `Preprocessing.decoder`, imported.

    Raises:
        UsageError: a name is no way of decoding and no function, both ways are named, or a file names a function that
            the user does not.
    """
    names = tuple(decoder)
    if len([name for name in names if name in WAYS]) > 1:
        raise UsageError(f"decoder {', '.join(names)}: 'reference' and 'fast' exclude each other")
    return tuple(_find(name) for name in names if name not in WAYS)


def identified(decoder: Iterable[str]) -> tuple[str, ...]:
    """The names with what tells one version of a handler's code from another, so that features are never stale.

    'my_pkg.read.dicom' becomes 'my_pkg.read.dicom@3f2a9c01'; `resolve` takes either. One of the two ways is always
    named.

    Raises:
        UsageError: as for `resolve`.
    """
    names = tuple(decoder)
    resolve(names)
    named = tuple(name if name in WAYS else _with_version(name.partition("@")[0]) for name in names)
    return named if any(name in WAYS for name in named) else (*named, "reference")


def name_of(handler: Handler) -> str:
    """'my_pkg.read.dicom'."""
    thing = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{thing.__module__}.{thing.__qualname__}"


def _find(name: str) -> Handler:
    refuse_named_by_file(name)
    plain = name.partition("@")[0]
    module, colon, attribute = plain.partition(":") if ":" in plain else plain.rpartition(".")
    if not colon or not module:
        raise UsageError(
            f"there is no decoder '{name}'",
            f"{did_you_mean(name, WAYS)} A function of yours is named with its module: my_module.my_function.",
        )
    handler = find_object(f"{module}:{attribute}")
    if not callable(handler):
        raise UsageError(f"decoder '{plain}' is no function", "It should be one of (path, file).")
    return handler  # type: ignore[no-any-return]


def versioned_name(handler: Handler) -> str:
    """Return the name of a handler, for a user's own with a digest of its code: 'my_pkg.read.dicom@3f2a9c01'."""
    code = user_code.sha256([handler])
    return f"{name_of(handler)}@{code[:8]}" if code else name_of(handler)


def _with_version(name: str) -> str:
    code = user_code.sha256([_find(name)])
    return f"{name}@{code[:8]}" if code else name


def _from_its_start(buffer: bytes | BinaryIO) -> BinaryIO:
    """A file of its own for every handler, or the given one, rewound: what the last one read of it does not matter."""
    if isinstance(buffer, bytes):
        return io.BytesIO(buffer)
    buffer.seek(0)
    return buffer


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
