"""Detection of an installed Detectron2, missing packages and their remedy; imports without warnings.

It is on no package index, so sslbench does not depend on it. Only this package imports it, through here.
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
"""Supported version of Detectron2."""

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
"""Modules that Detectron2 imports at start -> package; its compiled part (detectron2._C) is not needed."""

INSTALL = "pip install --no-build-isolation 'git+https://github.com/facebookresearch/detectron2.git'"
_WITHOUT_COMPILER = (
    f"git clone https://github.com/facebookresearch/detectron2 && pip install {' '.join(_NEEDED.values())} && "
    "export PYTHONPATH=$PWD/detectron2"
)
_LOGGERS = ("detectron2", "fvcore", "iopath", "torch.fx")


@dataclasses.dataclass(frozen=True)
class Probe:
    """Installed Detectron2.

    Attributes:
        version: of Detectron2; None if not installed.
        folder: folder of the package.
        missing: required packages that are not installed.
    """

    version: str | None
    folder: Path | None
    missing: tuple[str, ...]

    @property
    def problem(self) -> tuple[str, str] | None:
        """Return the problem with the installed Detectron2 and the remedy; None if it is usable."""
        if self.version is None:
            return (
                "Detectron2 is not installed; it is on no package index",
                f"Install it with: {INSTALL}\n"
                f"It needs a C++ compiler; without one: {_WITHOUT_COMPILER}\n"
                "Or use --backend torchvision, which needs nothing else.",
            )
        found = re.match(r"(\d+)\.(\d+)", self.version)
        if found is None or (int(found[1]), int(found[2])) < OLDEST:
            return (
                f"Detectron2 {self.version} in {self.folder} is too old: {OLDEST[0]}.{OLDEST[1]} or newer is needed",
                f"Install it with: {INSTALL}",
            )
        if self.missing:
            return (
                f"Detectron2 {self.version} in {self.folder} lacks required packages: {', '.join(self.missing)}",
                f"Install it with: pip install {' '.join(self.missing)}",
            )
        return None


def probe() -> Probe:
    """Find Detectron2 and its required packages, without importing them."""
    spec = find_spec("detectron2")
    if spec is None or spec.origin is None:
        return Probe(None, None, ())
    file = Path(spec.origin)
    # Read, not imported: the import takes seconds, and fails where a required package is missing.
    found = re.search(r"^__version__ = [\"'](.+?)[\"']", file.read_text(encoding="utf-8"), re.MULTILINE)
    missing = tuple(package for name, package in _NEEDED.items() if find_spec(name) is None)
    return Probe(found[1] if found else "of unknown version", file.parent, missing)


def require() -> Probe:
    """Return the installed Detectron2 if it is usable.

    Raises:
        UsageError: it is not; the message has the commands of its installation.
    """
    found = probe()
    if found.problem is not None:
        raise UsageError(*found.problem)
    load("modeling")
    return found


def load(name: str) -> Any:
    """Import a module of Detectron2 (`load("config")`), or Detectron2 itself ("")."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit and meshgrid, which the user cannot fix
        try:
            return importlib.import_module(f"detectron2.{name}" if name else "detectron2")
        except (ImportError, AttributeError) as error:
            raise UsageError(
                f"Detectron2 is installed, but cannot be imported: {error}", f"Reinstall it with: {INSTALL}"
            ) from error


@contextlib.contextmanager
def own_log(path: Path | None) -> Iterator[None]:
    """Redirect Detectron2's log from the terminal to a file during the block.

    `path`: file to append to; None drops the messages.
    """
    # Detectron2 logs every error with a traceback before it raises it; sslbench prints its own message.
    if path is None:
        handler: logging.Handler = logging.NullHandler()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        # With delay, a run that logs nothing leaves no empty file.
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
