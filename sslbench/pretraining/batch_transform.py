"""Function of the user's own that changes every batch on the training device."""

import functools
from collections.abc import Callable

import torch

from sslbench.errors import UsageError
from sslbench.names import find_object
from sslbench.runtime.seeds import preserved_random_states
from sslbench.train.method import Batch, Setup


def make_batch_transform(name: str, setup: Setup) -> Callable[[Batch], Batch]:
    """Return the function called `name` after a trial on a small grey batch.

    Args:
        name: my_module:my_function, a function that takes a batch and returns one.
        setup: facts about the run: sizes, channels and classes of the batch.

    Raises:
        UsageError: there is no such function, or it fails on the batch.
    """
    function = find_object(name)
    if not callable(function):
        raise UsageError(f"batch_transform: {name} is a {type(function).__name__}, not a function")
    views = tuple(torch.zeros(4, setup.channels, size, size) for size in setup.sizes)
    labels = torch.arange(4) % setup.classes if setup.classes else None
    checked = functools.partial(_checked, function, name)
    with preserved_random_states():
        checked(Batch(views, labels, torch.arange(4)))
    return checked


def _checked(function: Callable[[Batch], Batch], name: str, batch: Batch) -> Batch:
    """Return a changed batch."""
    try:
        changed = function(batch)
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(f"batch_transform: {name} fails: {type(error).__name__}: {error}") from error
    if not isinstance(changed, Batch):
        raise UsageError(f"batch_transform: {name} gives a {type(changed).__name__}, not a Batch")
    given, found = ([tuple(view.shape) for view in each.views] for each in (batch, changed))
    if given != found:
        raise UsageError(f"batch_transform: {name} gives views of {found} for views of {given}", "Keep the shapes.")
    return changed
