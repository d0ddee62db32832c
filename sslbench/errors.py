"""Errors that a user can cause. Each message states the problem, its place and the remedy."""

import contextlib
from collections.abc import Callable, Iterator

from sslbench.text import without_secrets


class SslbenchError(Exception):
    """Base of all errors that a user can correct; the command line prints them without a traceback.

    Attributes:
        message: problem and place (file, key, name).
        remedy: one line of advice, or None.
    """

    exit_code = 1
    printed_by_rank_0 = False
    """True if another process prints the error, or the one that caused it: the first one if all raise it."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        self.message = without_secrets(message)
        self.remedy = None if remedy is None else without_secrets(remedy)
        super().__init__(self.message if remedy is None else f"{self.message}\n{self.remedy}")

    def rephrase(self, change: Callable[[str], str]) -> None:
        """Change the words of message and remedy, such as flags into arguments of Python."""
        self.message = change(self.message)
        self.remedy = None if self.remedy is None else change(self.remedy)
        self.args = (self.message if self.remedy is None else f"{self.message}\n{self.remedy}",)


class UsageError(SslbenchError):
    """Wrong usage: an unknown flag, key, name or path, or contradictory settings."""

    exit_code = 2


class DataError(SslbenchError):
    """Data that cannot be evaluated: unreadable images, one class, labels that do not fit."""


class UnreachableError(DataError):
    """Remote file whose server cannot be reached."""


class WeightsError(SslbenchError):
    """Weights that cannot be read, are not recognised, or do not fit the backbone."""


class BackboneError(SslbenchError):
    """Backbone that cannot be built, or lacks a requested layer."""


class StoreError(SslbenchError):
    """Feature store that is incomplete, inconsistent or being written by another process."""


class ResourceError(SslbenchError):
    """Evaluation that is estimated not to fit into memory or on disk."""


class ResultError(SslbenchError):
    """Result record that cannot be read, or results that cannot be compared."""


@contextlib.contextmanager
def told_on_interrupt(kept: str) -> Iterator[None]:
    """Add to a KeyboardInterrupt of the block the words about what is kept, unless it has some."""
    try:
        yield
    except KeyboardInterrupt as error:
        if error.args:
            raise
        raise KeyboardInterrupt(kept) from error
