"""Detectron2 as it is found on this machine: what is missing and how it is installed; importing it without noise.

It is on no package index, so sslbench does not depend on it. Only the modules `detectron2_*` import it, through here.
"""

import contextlib
import dataclasses
import importlib
import logging
import re
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sslbench.errors import UsageError

OLDEST = (0, 6)
"""The version whose classes and configuration keys are used here."""

_NEEDED = {
    "fvcore": "fvcore",
    "iopath": "iopath",
    "omegaconf": "omegaconf",
    "yacs": "yacs",
    "pycocotools": "pycocotools",
    "termcolor": "termcolor",
    "tabulate": "tabulate",
    "cloudpickle": "cloudpickle",
    "packaging": "packaging",
    "tqdm": "tqdm",
}
"""Module -> package: what Detectron2 imports at once. The compiled part of it (detectron2._C) is not needed here."""

INSTALL = "pip install --no-build-isolation 'git+https://github.com/facebookresearch/detectron2.git'"
_WITHOUT_COMPILER = (
    f"git clone https://github.com/facebookresearch/detectron2 && pip install {' '.join(_NEEDED.values())} && "
    "export PYTHONPATH=$PWD/detectron2"
)
_LOGGERS = ("detectron2", "fvcore", "iopath", "torch.fx")


@dataclasses.dataclass(frozen=True)
class Probe:
    """What is there.

    Attributes:
        version: of Detectron2; None when it is not there.
        folder: where it lies.
        missing: packages that it needs and that are not there.
    """

    version: str | None
    folder: Path | None
    missing: tuple[str, ...]

    @property
    def problem(self) -> tuple[str, str] | None:
        """What keeps it from being used and what to do about it; None if nothing does."""
        if self.version is None:
            return (
                "Detectron2 is not installed, and no package index has it",
                f"Install it with: {INSTALL}\n"
                f"It needs a C++ compiler; without one: {_WITHOUT_COMPILER}\n"
                "Or take --backend torchvision, which needs nothing else.",
            )
        found = re.match(r"(\d+)\.(\d+)", self.version)
        if found is None or (int(found[1]), int(found[2])) < OLDEST:
            return (
                f"Detectron2 {self.version} in {self.folder} is too old: {OLDEST[0]}.{OLDEST[1]} or newer is needed",
                f"Install it with: {INSTALL}",
            )
        if self.missing:
            return (
                f"Detectron2 {self.version} lies in {self.folder}, but what it needs is missing: "
                f"{', '.join(self.missing)}",
                f"Install it with: pip install {' '.join(self.missing)}",
            )
        return None


def probe() -> Probe:
    """Looks for Detectron2 and what it needs; nothing is imported."""
    spec = find_spec("detectron2")
    if spec is None or spec.origin is None:
        return Probe(None, None, ())
    file = Path(spec.origin)
    # Read, not imported: the import fails where something that it needs is missing, and takes seconds.
    found = re.search(r"^__version__ = [\"'](.+?)[\"']", file.read_text(encoding="utf-8"), re.MULTILINE)
    missing = tuple(package for name, package in _NEEDED.items() if find_spec(name) is None)
    return Probe(found[1] if found else "of unknown version", file.parent, missing)


def require() -> Probe:
    """The same, when it can be used.

    Raises:
        UsageError: it cannot; the message says how it is installed.
    """
    found = probe()
    if found.problem is not None:
        raise UsageError(*found.problem)
    load("modeling")
    return found


def load(name: str) -> Any:
    """A module of Detectron2 (`load("config")`), or Detectron2 itself ("").

    Raises:
        UsageError: it cannot be imported; the message says why.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit and meshgrid, which are not the user's to mend
        try:
            return importlib.import_module(f"detectron2.{name}" if name else "detectron2")
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"Detectron2 is there, but cannot be imported: {error}", f"Install it anew with: {INSTALL}"
            ) from error


@contextlib.contextmanager
def own_log(path: Path | None) -> Iterator[None]:
    """What Detectron2 logs goes to a file in place of the terminal, for the time of the block.

    It logs every error with a traceback before it raises it; sslbench says what there is to say.

    Args:
        path: appended to; None throws the messages away.
    """
    if path is None:
        handler: logging.Handler = logging.NullHandler()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8", delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [(logger.level, logger.propagate, list(logger.handlers)) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        handler.close()
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
