"""Steps of long computations: counted in the solver, shown by a terminal or notebook, if one listens.

As with log messages, the code that counts does not know the listener: solvers and protocols need no argument for it.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

Advance = Callable[[int], None]
"""Function to call with the number of steps done since the last call."""

Listener = Callable[[str, str, int], AbstractContextManager[Advance]]
"""Function of (title, unit, number of steps) that shows one computation while its context is open."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def shown_by(listener: Listener | None) -> Iterator[None]:
    """Show the computations inside this context by a listener; None shows none."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def counted(title: str, unit: str, total: int, *, alone: bool = True) -> Iterator[Advance]:
    """Provide the function that counts the steps of one computation; `alone`: those inside it are not shown.

    >>> with counted("linear", "fits", 2) as advance:
    ...     advance(1)
    """
    listener = _listener.get()
    if listener is None:
        yield lambda steps: None
        return
    with shown_by(None if alone else listener), listener(title, unit, total) as advance:
        yield advance
