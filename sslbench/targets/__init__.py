"""Targets of samples: one file per kind, found by its place in this package; nothing else lists the kinds."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from sslbench.targets.target import Target


@functools.cache
def kinds() -> Mapping[str, type[Target]]:
    """Return every kind of target by its name in records: each class of this package that has a name of its own."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    classes = (value for module in modules for value in vars(module).values() if isinstance(value, type))
    return {kind.name: kind for kind in classes if issubclass(kind, Target) and "name" in vars(kind)}
