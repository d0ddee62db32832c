"""Settings of image reading and the user's decoders, apart from the decoder: listing images does not load torch."""

import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, BinaryIO

from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, find_object, refuse_missing_module, refuse_named_by_file
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.resources import StartMethod

Handler = Callable[[str, BinaryIO], Any]
"""(path, file) -> the decoded content, or None to leave the file to the next handler.

A picture is an array (H, W) or (H, W, channels) or a tensor (channels, H, W), of uint8, uint16 or floating
point values from 0 to 1; a Pillow image; or a `Decoded`. The frames of a video are an array (T, H, W, 3) of uint8.
An attribute `suffixes` of a handler, such as ('.dcm',), says which files of a folder are samples for it.
"""

WAYS = ("reference", "fast")
"""Names of the default handler's modes; see `Preprocessing.decoder`."""

ENCODED = "none"
"""Name in place of a decoder: files are not decoded."""


@dataclasses.dataclass(frozen=True)
class Reading:
    """Settings of image reading without a backbone's preprocessing: in training and in data checks.

    Attributes:
        decoder: names of the user's decoding functions; see `sslbench.data.decode.handlers`.
        max_pixels: size limit; larger pictures are unreadable.
        start_method: of the worker processes.
    """

    decoder: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS
    start_method: StartMethod = "auto"


DEFAULT = Reading()
_SUFFIX = re.compile(r"\.[^./\\\s]+")


def check_decoder(decoder: Iterable[str]) -> None:
    """Refuse names that are neither a mode nor a function with its module; nothing is imported."""
    names = tuple(decoder)
    if ENCODED in names:
        raise UsageError(
            f"decoder {ENCODED} leaves files encoded, and networks take images",
            "Decode them by a function of your own: decoder my_module.my_function. check-data takes "
            f"{ENCODED}; in Python, source.images.read(i) gives the bytes.",
        )
    if len([name for name in names if name in WAYS]) > 1:
        raise UsageError(f"decoder {', '.join(names)}: 'reference' and 'fast' exclude each other")
    for name in names:
        if name not in WAYS and not name.startswith(_GIVEN):
            refuse_named_by_file(name)
            refuse_missing_module(object_of(name))


def object_of(name: str) -> str:
    """Return a user's decoder as `module:function`; a digest of its code behind '@' is left out.

    >>> object_of("my_pkg.read.dicom@3f2a9c01")
    'my_pkg.read:dicom'
    """
    plain = name.partition("@")[0]
    module, colon, attribute = plain.partition(":") if ":" in plain else plain.rpartition(".")
    if not colon or not module:
        raise UsageError(
            f"there is no decoder '{name}'",
            f"{did_you_mean(name, (*WAYS, ENCODED))} Name your own function with its module: my_module.my_function.",
        )
    return f"{module}:{attribute}"


_GIVEN = "object "
_objects: dict[str, Handler] = {}
_count = itertools.count(1)


def names_of_handlers(handlers: Handler | str | Sequence[Handler | str] | None) -> tuple[str, ...]:
    """Return handlers given in Python as names, by which settings, records and keys know them.

    A function of a module has its own name. Other objects (instances, lambdas) have a new one at every call, valid in
    this process: their state may have changed since the last, and features are not reused.

    Raises:
        UsageError: one is neither a name nor callable, or such an object where there are several processes.

    Examples:
        >>> names_of_handlers([names_of_handlers, "fast"])
        ('sslbench.data.decode.reading:names_of_handlers', 'fast')
        >>> names_of_handlers(lambda path, file: None)[0].split(": ")[1]
        'sslbench.data.decode.reading.<lambda>'
    """
    handlers = ENCODED if handlers is None else handlers
    listed = [handlers] if isinstance(handlers, str) or callable(handlers) else handlers
    if not isinstance(listed, Sequence):
        raise UsageError(f"decoder is of the type {type(handlers).__name__}", "Give functions of (path, file).")
    return tuple(handler if isinstance(handler, str) else _named(handler) for handler in listed)


def _named(handler: Handler) -> str:
    if not callable(handler):
        raise UsageError(f"a decoder is of the type {type(handler).__name__}", "Give functions of (path, file).")
    own = _importable(handler)
    if own is not None:
        return own
    thing: Any = handler if getattr(handler, "__qualname__", "") else type(handler)
    if this_process().world > 1:
        raise UsageError(
            f"the decoder {thing.__module__}.{thing.__qualname__} is an object, which several processes do not share",
            "Name a function of a module: decoder='my_pkg.my_module:read'.",
        )
    given = f"{_GIVEN}{next(_count)}: {thing.__module__}.{thing.__qualname__}"
    _objects[given] = handler
    return given


def _importable(handler: Handler) -> str | None:
    """Return the name by which other processes find a function; None if its module has no such function."""
    module, name = getattr(handler, "__module__", ""), getattr(handler, "__qualname__", "")
    if not module or not name or "<" in name:
        return None
    try:
        return f"{module}:{name}" if find_object(f"{module}:{name}") is handler else None
    except UsageError:  # deleted, or defined under a name that the module has not
        return None


def resolve(decoder: Iterable[str]) -> tuple[Handler, ...]:
    """Return the user's handlers among the names in `Preprocessing.decoder`, imported."""
    names = tuple(decoder)
    check_decoder(names)
    return tuple(find_handler(name) for name in names if name not in WAYS)


def find_handler(name: str) -> Handler:
    """Return the handler of a name, with a digest or without one."""
    refuse_named_by_file(name)
    plain = name.partition("@")[0]
    if plain.startswith(_GIVEN):
        if plain not in _objects:
            raise UsageError(f"the decoder '{plain}' was an object of another process", "Give it again, in Python.")
        return _objects[plain]
    handler = find_object(object_of(name))
    if not callable(handler):
        raise UsageError(f"decoder '{plain}' is not a function", "It should be one of (path, file).")
    return handler  # type: ignore[no-any-return]


def is_object(name: str) -> bool:
    """Return whether a name stands for an object of this process, whose code does not tell its state."""
    return name.startswith(_GIVEN)


def suffixes_of(decoder: Iterable[str]) -> frozenset[str]:
    """Return the suffixes of files that the user's handlers declare, in lower case.

    Raises:
        UsageError: `suffixes` of a handler is no list of suffixes.
    """
    found = set[str]()
    for handler in resolve(decoder):
        declared = getattr(handler, "suffixes", ())
        listed = isinstance(declared, Collection) and not isinstance(declared, str)
        if not listed or not all(isinstance(s, str) and _SUFFIX.fullmatch(s) for s in declared):
            raise UsageError(f"suffixes of a decoder are {declared!r:.80}", "Write suffixes = ('.dcm', '.ima').")
        found |= {suffix.lower() for suffix in declared}
    return frozenset(found)
