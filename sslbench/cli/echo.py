"""Printing: whatever is printed may hold names from files, so control characters are escaped."""

import os
from typing import Any

import click

from sslbench.text import visible


def echo(message: Any = "", *, err: bool = False, before: str = "", after: str = "") -> None:
    """Print one message.

    Args:
        message: text that may come from files; control characters in it are escaped.
        err: on stderr.
        before: text in front of it that is printed as it is (colours).
        after: the same behind it.
    """
    try:
        click.echo(before + visible(str(message)) + after, err=err)
    except BrokenPipeError:
        if not err:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # nobody reads messages any more: the work goes on
