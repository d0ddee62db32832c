"""Routed decoder: handlers that each decode some kinds of files, asked in turn; the first result wins.

The design is that of torchvision's request for comments on decoding (torchvision issue 5075). The user's handlers come
first, then the source's own (`HasHandlers`), then the default one, which reads every picture.
"""

import dataclasses
import io
from collections.abc import Iterable, Mapping
from typing import Any, BinaryIO, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench import user_code
from sslbench.data.decode.files import decode, from_pillow, jpeg_decoder
from sslbench.data.decode.picture import RGB, Decoded, UnreadableImage, Wanted, as_wanted, from_array, from_fractions
from sslbench.data.decode.reading import DEFAULT as DEFAULT
from sslbench.data.decode.reading import WAYS, find_handler, is_object
from sslbench.data.decode.reading import Handler as Handler
from sslbench.data.decode.reading import Reading as Reading
from sslbench.data.decode.reading import resolve as resolve
from sslbench.data.decode.videos import ClipHandler
from sslbench.data.joined import JoinedImages
from sslbench.errors import SslbenchError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.targets.target import Images


class Decoder:
    """Handlers asked in turn; stateless, and picklable if its handlers are (functions of a module are).

    Attributes:
        handlers: in the order of asking.
        must_decode: a file that no handler takes is an error; otherwise it stays undecoded.

    Examples:
        >>> def text(path, file):
        ...     return file.read().decode() if path.endswith(".txt") else None
        >>> Decoder(text)("label.txt", b"cat")
        {'data': 'cat', 'path': 'label.txt'}
        >>> Decoder(text, must_decode=False)("mask.png", b"...", prefix="mask", include_path=False)
        {'mask_buffer': b'...'}
    """

    def __init__(self, *handlers: Handler, must_decode: bool = True) -> None:
        self.handlers = handlers
        self.must_decode = must_decode

    def __call__(
        self, path: str, buffer: bytes | BinaryIO, *, prefix: str = "", include_path: bool = True
    ) -> dict[str, Any]:
        """Decode one file into entries of a sample's dictionary.

        Args:
            path: of the file; handlers may use its suffix.
            buffer: its content.
            prefix: of the keys, for samples of several files: 'image', 'mask'.
            include_path: add the path.

        Returns:
            A handler's dictionary unchanged; any other value under the prefix, or 'data' without one; an undecoded
            content under 'buffer' ('mask_buffer'); and the path under 'path' ('mask_path').
        """
        before = f"{prefix}_" if prefix else ""
        handler, value = self.route(path, buffer)
        if handler is None:
            sample = {f"{before}buffer": buffer}
        else:
            sample = dict(value) if isinstance(value, Mapping) else {prefix or "data": value}
        return {**sample, f"{before}path": path} if include_path else sample

    def route(self, path: str, buffer: bytes | BinaryIO) -> tuple[Handler | None, Any]:
        """Return the first handler that takes a file, and its result; (None, None) without one if not `must_decode`."""
        for handler in self.handlers:
            try:
                file = io.BytesIO(buffer) if isinstance(buffer, bytes) else buffer
                file.seek(0)  # whatever an earlier handler has read
                value = handler(path, file)
            except (UnreadableImage, SslbenchError):
                raise
            except Exception as error:  # a handler raises what its library does on a damaged file
                message = " ".join(f"{type(error).__name__}: {error}".split())
                raise UnreadableImage(path, f"{name_of(handler)}: {message[:200]}") from error
            if value is not None:
                return handler, value
        if self.must_decode:
            asked = ", ".join(name_of(handler) for handler in self.handlers) or "no handler is installed"
            raise UnreadableImage(path, f"no handler takes it ({asked})")
        return None, None


class PictureHandler:
    """Default handler: decodes any picture file to the wanted channels, depth and size."""

    def __init__(self, wanted: Wanted = RGB) -> None:
        self.wanted = wanted
        jpeg_decoder()  # imported before workers are forked, once for all of them

    def __call__(self, path: str, buffer: BinaryIO) -> Decoded:
        """Decode a picture; never returns None."""
        return decode(buffer.read(), path, self.wanted)

    def wanting(self, wanted: Wanted) -> "PictureHandler":
        """Return the handler for other pictures."""
        return PictureHandler(wanted)


class PictureDecoder:
    """Decoder of a source's images to pictures: arrays directly, files through a `Decoder`.

    Attributes:
        decoder: of files.
        wanted: channels, depth and maximum size of the pictures.
        parts: for joined sources, the decoder of each.
    """

    def __init__(self, decoder: Decoder, wanted: Wanted = RGB, parts: tuple["PictureDecoder", ...] = ()) -> None:
        self.decoder, self.wanted, self.parts = decoder, wanted, parts

    def __call__(self, path: str, data: bytes | npt.NDArray[np.uint8]) -> Decoded:
        """Decode one image; a handler other than the default one is listed among the conversions."""
        if isinstance(data, np.ndarray):  # decoded already
            return decode(data, path, self.wanted)
        handler, value = self.decoder.route(path, data)
        if handler is None:
            raise UnreadableImage(path, "left undecoded, but a backbone needs images")
        if isinstance(handler, PictureHandler | ClipHandler):
            return value  # type: ignore[no-any-return]
        name = name_of(handler)
        decoded = as_picture(value, path, self.wanted, name)
        asked = next((h.options.total for h in self.decoder.handlers if isinstance(h, ClipHandler)), 1)
        if decoded.frames != asked:
            raise UsageError(
                f"the decoder {name} returned {decoded.frames} frames of {path}, and {asked} were asked for",
                "Return an array (T, H, W, 3) for a video with ?frames=T, and (H, W, 3) for an image.",
            )
        return dataclasses.replace(decoded, conversions=(f"decoded by {name}", *decoded.conversions))

    def wanting(self, wanted: Wanted) -> "PictureDecoder":
        """Return a decoder with the same handlers for other wanted pictures."""
        handlers = _wanting(self.decoder.handlers, wanted)
        parts = tuple(part.wanting(wanted) for part in self.parts)
        return PictureDecoder(Decoder(*handlers, must_decode=self.decoder.must_decode), wanted, parts)

    def same_as(self, other: "PictureDecoder") -> bool:
        """Return whether both decode to the same pictures."""
        # Default handlers differ by what is wanted alone, which is compared beside.
        own, others = ([h for h in d.decoder.handlers if not isinstance(h, PictureHandler)] for d in (self, other))
        return self.wanted == other.wanted and own == others


@runtime_checkable
class HasHandlers(Protocol):
    """Additional interface of `Images` in a format of their own: the handlers that decode it."""

    @property
    def handlers(self) -> Iterable[Handler]:
        """Handlers asked after the user's."""
        ...


@runtime_checkable
class Composite(Protocol):
    """Additional interface of `Images` whose pictures are made of others: crops, channels in several files."""

    def decoded(self, index: int, decoder: PictureDecoder) -> Decoded:
        """Return the picture at `index`, made of pictures that `decoder` reads."""
        ...


def picture_decoder(preprocessing: Preprocessing | None, images: Images) -> PictureDecoder:
    """Return the decoder of a source's images: the user's handlers, the source's, the default one.

    `preprocessing`: its `decoder` names the user's handlers; None: 8-bit RGB without any.
    """
    if preprocessing is None:
        return make_decoder((), RGB, images)
    return make_decoder(preprocessing.decoder, Wanted.by(preprocessing), images)


def make_decoder(names: Iterable[str], wanted: Wanted, images: Images) -> PictureDecoder:
    """Return the decoder of a source's images for given handlers and wanted pictures.

    `names`: of the user's handlers; 'reference' and 'fast' are ignored.
    """
    names = tuple(names)
    parts = (
        tuple(make_decoder(names, wanted, part) for part in images.parts) if isinstance(images, JoinedImages) else ()
    )
    handlers = _wanting((*resolve(names), *handlers_of(images), PictureHandler()), wanted)
    return PictureDecoder(Decoder(*handlers), wanted, parts)


def _wanting(handlers: Iterable[Handler], wanted: Wanted) -> list[Handler]:
    """Return the handlers, those of sslbench for the wanted pictures."""
    return [h.wanting(wanted) if isinstance(h, PictureHandler | ClipHandler) else h for h in handlers]


def handlers_of(images: Images) -> tuple[Handler, ...]:
    """Return the source's own handlers; empty without any."""
    return tuple(images.handlers) if isinstance(images, HasHandlers) else ()


def as_picture(value: Any, path: str, wanted: Wanted, handler: str) -> Decoded:
    """Convert a handler's result to a picture."""
    import torch

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
    if isinstance(value, np.ndarray) and value.ndim == 4 and value.dtype == np.uint8 and value.size:
        frames = torch.from_numpy(np.concatenate(value, axis=2)).permute(2, 0, 1)
        return as_wanted(Decoded(frames, (), frames=len(value)), path, wanted)
    if isinstance(value, np.ndarray):
        return from_array(value, path, wanted)
    raise UsageError(
        f"the decoder {handler} returned a {type(value).__name__} for {path}, which is not an image",
        "Return an array (H, W, channels), a tensor (channels, H, W), a Pillow image, or None for the next handler.",
    )


def identified(decoder: Iterable[str]) -> tuple[str, ...]:
    """Return the names with a digest of each handler's code, so that stored features are never stale.

    'my_pkg.read.dicom' becomes 'my_pkg.read.dicom@3f2a9c01'; `resolve` takes either. The result always names one of
    the two modes.
    """
    names = tuple(decoder)
    resolve(names)
    named = []
    for name in names:
        plain = name.partition("@")[0]
        code = "" if name in WAYS else user_code.sha256([find_handler(plain)])
        # The code of an object does not tell its state.
        code = user_code.of_process(plain) if is_object(plain) else code
        named.append(f"{plain}@{code[:8]}" if code else plain)
    return tuple(named) if any(name in WAYS for name in named) else (*named, "reference")


def name_of(handler: Handler) -> str:
    """Return a handler's dotted name: 'my_pkg.read.dicom'."""
    thing = handler if hasattr(handler, "__qualname__") else type(handler)
    return f"{thing.__module__}.{thing.__qualname__}"


def versioned_name(handler: Handler) -> str:
    """Return the name of a handler, for a user's own with a digest of its code: 'my_pkg.read.dicom@3f2a9c01'."""
    code = user_code.sha256([handler])
    return f"{name_of(handler)}@{code[:8]}" if code else name_of(handler)


def picture_of(images: Images, index: int, decoder: PictureDecoder) -> Decoded:
    """Decode one image of a source; composite ones (`Composite`: crops, several files) decode themselves.

    An image of joined sources is decoded as its own source does it.
    """
    if isinstance(images, JoinedImages):
        part, row = images.located(index)
        return picture_of(images.parts[part], row, decoder.parts[part] if decoder.parts else decoder)
    if isinstance(images, Composite):
        return images.decoded(index, decoder)
    return decoder(images.path(index), images.read(index))
