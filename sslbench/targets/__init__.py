"""Targets of samples: a file per kind, in this package, a plug-in or a module of the user; nothing else lists them."""

import functools
import importlib
import pkgutil
from collections.abc import Iterator, Mapping

from sslbench.names import installed
from sslbench.targets.target import Target


def kinds() -> Mapping[str, type[Target]]:
    """Return every kind of target by its name in records: each imported class of targets that has a name of its own."""
    # Not cached: a protocol of the user may be imported, with its kinds, after the first call.
    _import_all()
    return {kind.name: kind for kind in _below(Target) if "name" in vars(kind)}


@functools.cache
def _import_all() -> None:
    """Import the kinds of this package and of installed plug-ins; a protocol of the user's imports its own."""
    names = [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    for name in [*names, *(entry.value for entry in installed("target").values())]:
        importlib.import_module(name)


def _below(kind: type[Target]) -> Iterator[type[Target]]:
    for below in kind.__subclasses__():
        yield below
        yield from _below(below)
