"""Printing with control characters escaped, since messages contain names from files."""

import os
from typing import Any

import click

from sslbench.text import visible


def echo(message: Any = "", *, err: bool = False, before: str = "", after: str = "") -> None:
    """Print one message."""
    try:
        # Names of files and tensors may hold escape sequences, which would move the cursor or hide lines.
        click.echo(before + visible(str(message)) + after, err=err)
    except BrokenPipeError:
        # `main` ends a command whose output has no reader any more.
        if not err:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the reader of stderr has gone; continue without it


LEVEL = "sslbench.level"
"""Key of the context's `meta` with the words of `--quiet` or `--verbose`."""


def is_quiet() -> bool:
    """Return whether the running command has --quiet."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(LEVEL) == "quiet"


def is_verbose() -> bool:
    """Return whether the running command has --verbose."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(LEVEL) == "verbose"


def note(message: Any = "") -> None:
    """Print information on stderr, unless the command has --quiet."""
    if not is_quiet():
        echo(message, err=True)
