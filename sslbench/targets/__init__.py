"""Targets of samples: one file per kind, found in this package and in installed plug-ins; nothing else lists them."""

import functools
import importlib
import pkgutil
from collections.abc import Mapping

from sslbench.names import installed
from sslbench.targets.target import Target


@functools.cache
def kinds() -> Mapping[str, type[Target]]:
    """Return every kind of target by its name in records: each class of these modules that has a name of its own."""
    names = [*(entry.value for entry in installed("target").values())]
    names += [f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__)]
    modules = map(importlib.import_module, names)
    classes = (value for module in modules for value in vars(module).values() if isinstance(value, type))
    return {kind.name: kind for kind in classes if issubclass(kind, Target) and "name" in vars(kind)}
