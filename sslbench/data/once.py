"""Warnings that are logged once per process."""

import functools
import logging

_log = logging.getLogger("sslbench")


@functools.cache
def warn_once(message: str) -> None:
    """Log a warning unless this process has logged the same one before."""
    _log.warning(message)
