"""Messages of the public functions in Python's words: arguments in place of flags."""

import contextlib
import functools
import inspect
import logging
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, ParamSpec, TypeVar

from sslbench.errors import SslbenchError, UsageError
from sslbench.names import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_ARGUMENTS = {"weights": ("model", "weights"), "data": ("train", "data", "images"), "test_data": ("test",)}
"""Name of a flag -> arguments of public functions that have its meaning."""
_COLUMNS = {"image_col": "image_column", "label_col": "label_column", "value_col": "value_columns"}
_FLAG = re.compile(
    r"--([a-z][a-z0-9-]*)(?:[ =](random|pixels|cuda|cpu|'[^']*'|[A-Z]{3,}|[\w./]*[0-9:@][\w./:@]*(?<=\w)))?(?![\w-])"
)
_COMMAND = re.compile(r"sslbench [a-z-]+ .*")


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Return a public function that names arguments in messages and answers wrong ones with the right call.

    Arguments may also be named as the flags of the command line are: `weights`, `data`, `test_data`.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    takes_others = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # Before the call: Python's own TypeError does not tell the nearest name.
        named = dict[str, Any]()
        for name, value in kwargs.items():
            own = name if name in parameters else next((o for o in _ARGUMENTS.get(name, ()) if o in parameters), name)
            if own not in parameters and not takes_others:
                raise UsageError(f"{function.__name__} has no argument '{name}'", did_you_mean(name, parameters))
            if own in named:
                raise UsageError(f"{function.__name__}: '{name}' and '{own}' are the same argument", "Leave one out.")
            named[own] = value
        try:
            signature.bind(*args, **named)
        except TypeError as error:
            first = [name for name, each in parameters.items() if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
            remedy = f"Call {function.__name__}({', '.join(first)}); further arguments are named."
            raise UsageError(f"{function.__name__}: {error}", remedy) from None
        try:
            with _logged_in_python(parameters):
                return function(*args, **named)
        except SslbenchError as error:
            error.rephrase(lambda text: in_python(text, parameters))
            raise

    return call


@contextlib.contextmanager
def _logged_in_python(arguments: Collection[str]) -> Iterator[None]:
    """Name arguments in what sslbench logs meanwhile."""
    # Not a filter: that of a logger does not see what its children log.
    make = logging.getLogRecordFactory()

    def rephrased(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(*args, **kwargs)
        if record.name.partition(".")[0] == "sslbench":
            # Formatted first, as a flag may stand in an argument of the message.
            record.msg, record.args = in_python(record.getMessage(), arguments), ()
        return record

    logging.setLogRecordFactory(rephrased)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)


def in_python(text: str, arguments: Collection[str] = ()) -> str:
    """Return a message with the flags in it as arguments; those of whole commands stay.

    Args:
        text: message or remedy.
        arguments: of the function that was called.

    Examples:
        >>> in_python("--weights random needs --backbone: --backbone resnet50 or --batch-size 8", ["model"])
        "model='random' needs backbone=: backbone='resnet50' or batch_size=8"
        >>> in_python("Results are written by: sslbench eval --out FOLDER")
        'Results are written by: sslbench eval --out FOLDER'
    """

    def argument(found: re.Match[str]) -> str:
        name = found[1].replace("-", "_")
        name = next((own for own in _ARGUMENTS.get(name, ()) if own in arguments), _COLUMNS.get(name, name))
        value = (found[2] or "").strip("'")
        return f"{name}={value if value.isdigit() or not value else repr(value)}"

    # A whole command is typed in a shell and stays as it is.
    command = _COMMAND.search(text)
    before, rest = (text[: command.start()], text[command.start() :]) if command else (text, "")
    return _FLAG.sub(argument, before).replace("command line: ", "settings: ") + rest
