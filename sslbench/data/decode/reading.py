"""Settings of image reading and names of decoders, apart from the decoder: listing images does not load torch."""

import dataclasses
from collections.abc import Iterable

from sslbench.errors import UsageError
from sslbench.names import did_you_mean, refuse_missing_module, refuse_named_by_file
from sslbench.preprocessing import MAX_PIXELS
from sslbench.runtime.resources import StartMethod

WAYS = ("reference", "fast")
"""Names of the default handler's modes; see `Preprocessing.decoder`."""


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


def check_decoder(decoder: Iterable[str]) -> None:
    """Refuse names that are neither a mode nor a function with its module; nothing is imported."""
    names = tuple(decoder)
    if len([name for name in names if name in WAYS]) > 1:
        raise UsageError(f"decoder {', '.join(names)}: 'reference' and 'fast' exclude each other")
    for name in names:
        if name not in WAYS:
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
            f"{did_you_mean(name, WAYS)} Name your own function with its module: my_module.my_function.",
        )
    return f"{module}:{attribute}"
