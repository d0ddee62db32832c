"""Printing with control characters escaped, since messages contain names from files."""

import os
import re
import shutil
import sys
import textwrap
from typing import Any

import click

from sslbench.text import visible


def echo(message: Any = "", *, err: bool = False, before: str = "", after: str = "") -> None:
    """Print one message."""
    try:
        # Names of files and tensors may hold escape sequences, which would move the cursor or hide lines.
        # `click` would write past the stream of a bar, into the bar's line.
        stream = sys.stderr if err else None
        # `click` does not know the variable that people set against colours (no-color.org).
        plain = False if os.environ.get("NO_COLOR") else None
        click.echo(before + visible(str(message)) + after, file=stream, err=err, color=plain)
    except BrokenPipeError:
        # `main` ends a command whose output has no reader any more.
        if not err:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the reader of stderr has gone; continue without it


def echo_text(message: Any, *, err: bool = False, before: str = "", after: str = "", indent: int = 4) -> None:
    """Print lines of text; on a terminal those that are too long are wrapped at words, their rest indented.

    What stands between backticks, mostly a command to be copied, stays in one piece.
    """
    text = visible(str(message))
    if (sys.stderr if err else sys.stdout).isatty():
        width, first = shutil.get_terminal_size().columns, " " * len(click.unstyle(before))
        fill = textwrap.TextWrapper(
            width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
        ).fill
        last = click.unstyle(after)
        whole = re.sub(r"`[^`\n]+`", lambda command: command[0].replace(" ", "\0"), first + text + last)
        text = "\n".join(map(fill, whole.splitlines())).replace("\0", " ").removeprefix(first)
        # What is wrapped itself loses its style.
        text, after = (text.removesuffix(last), after) if text.endswith(last) else (text, "")
    echo(text, err=err, before=before, after=after)


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
