"""Families of architectures: modules of `sslbench.backbones.families`, found by their files."""

import dataclasses
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping

from sslbench.backbones.architecture_names import no_backbone
from sslbench.backbones.backbone import Backbone
from sslbench.weights.reading.model_config import ModelConfig

_PACKAGE = "sslbench.backbones.families"


def _accept(name: str, where: str) -> None:
    """Accept any name read from a file."""


def _recognise_none(
    shapes: Mapping[str, tuple[int, ...]], format: str, weights: str, config: ModelConfig
) -> str | None:
    """Recognise no architecture."""
    return None


@dataclasses.dataclass(frozen=True)
class Family:
    """Architectures that share naming, layers and defaults; a module of `families` defines one as FAMILY.

    Attributes:
        takes: name of a backbone -> True if it is of this family.
        build: name -> backbone with random weights, layers, preprocessing and the names of its heads.
        check_recorded: (name, where) -> None; refuses a name from a file, as a BackboneError or UsageError.
        recognise: (canonical name -> shape, format, file for messages, configuration beside it) -> name of the backbone
            with these tensors.
        last_resort: asked after the other families.
    """

    takes: Callable[[str], bool]
    build: Callable[[str], Backbone]
    check_recorded: Callable[[str, str], None] = _accept
    recognise: Callable[[Mapping[str, tuple[int, ...]], str, str, ModelConfig], str | None] = _recognise_none
    last_resort: bool = False


@functools.cache
def families() -> tuple[Family, ...]:
    """Return all families, those of last resort at the end."""
    package = importlib.import_module(_PACKAGE)
    modules = [
        importlib.import_module(f"{_PACKAGE}.{module.name}") for module in pkgutil.iter_modules(package.__path__)
    ]
    found: list[Family] = [module.FAMILY for module in modules]
    return tuple(sorted(found, key=lambda family: family.last_resort))


def family_of(name: str) -> Family:
    """Return the family of a backbone's name.

    Raises:
        UsageError: no family has it; the message gives the nearest names.
    """
    for family in families():
        if family.takes(name):
            return family
    raise no_backbone(name)
