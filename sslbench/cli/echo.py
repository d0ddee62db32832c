"""Printing with control characters escaped, since messages contain names from files."""

import os
from typing import Any

import click

from sslbench.text import visible


def echo(message: Any = "", *, err: bool = False, before: str = "", after: str = "") -> None:
    """Print one message.

    Args:
        message: text that may come from files; control characters in it are escaped.
        err: print on stderr.
        before: text printed unescaped before the message (colours).
        after: text printed unescaped after the message.
    """
    try:
        click.echo(before + visible(str(message)) + after, err=err)
    except BrokenPipeError:
        if not err:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the reader of stderr has gone; continue without it
