"""Changes of a view beside the built-in ones: transforms of torchvision.transforms.v2, and the user's own functions."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sslbench.data.views import OF_TORCHVISION, View, code_names, entry_name
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, find_object
from sslbench.runtime.seeds import preserved_random_states

Transform = Callable[[Tensor], Tensor]


def make_transform(entry: str | Mapping[str, Any], *, size: int, channels: int) -> Transform:
    """Return a transform after a trial on a grey picture.

    >>> invert = make_transform({"name": "v2.RandomInvert", "p": 1.0}, size=4, channels=3)
    >>> int(invert(torch.full((3, 4, 4), 200, dtype=torch.uint8))[0, 0, 0])
    55

    Args:
        entry: entry of `View.order`: a name, or a mapping with name and arguments.
        size: side of the view.
        channels: number of channels of the view.

    Returns:
        A picklable function of pictures (C, H, W), uint8 or float32 from 0 to 255. The transform itself gets uint8, or
        float32 from 0 to 1, and keeps shape and type.

    Raises:
        UsageError: there is no such transform, it does not take the arguments, or it fails on the picture.
    """
    checked = functools.partial(_checked, _built(entry), entry_name(entry))
    with preserved_random_states():
        checked(torch.full((channels, size, size), 128, dtype=torch.uint8))
    return checked


def own_functions(views: tuple[View, ...]) -> list[Any]:
    """Return the user's own functions in the views."""
    return [find_object(name) for view in views for name in code_names(view.order)]


def _checked(transform: Transform, name: str, picture: Tensor) -> Tensor:
    """Return a changed picture."""
    is_float = picture.is_floating_point()
    given = picture / 255 if is_float else picture
    try:
        changed = transform(given)
    except Exception as error:  # the user's own code may raise anything
        raise UsageError(
            f"augment: {name} fails on a picture of shape {tuple(given.shape)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(changed, Tensor) or changed.shape != given.shape or changed.dtype != given.dtype:
        found = f"{tuple(changed.shape)} {changed.dtype}" if isinstance(changed, Tensor) else type(changed).__name__
        raise UsageError(
            f"augment: {name} gives {found} for a picture {tuple(given.shape)} {given.dtype}",
            "A transform in `order` keeps shape and type; size, crop and normalisation are settings of the view.",
        )
    return changed * 255 if is_float else changed


def _built(entry: str | Mapping[str, Any]) -> Transform:
    """Return a transform of torchvision or the user's own function with its arguments."""
    name = entry_name(entry)
    arguments = {key: value for key, value in entry.items() if key != "name"} if isinstance(entry, Mapping) else {}
    if not name.startswith(OF_TORCHVISION):
        function = find_object(name)
        if not callable(function):
            raise UsageError(f"augment: {name} is a {type(function).__name__}, not a function")
        return functools.partial(function, **arguments)
    from torchvision.transforms import v2

    kinds = {key: kind for key, kind in vars(v2).items() if isinstance(kind, type) and issubclass(kind, v2.Transform)}
    own = name.removeprefix(OF_TORCHVISION)
    if own not in kinds:
        raise UsageError(f"augment: torchvision.transforms.v2 has no transform '{own}'", did_you_mean(own, kinds))
    if isinstance(arguments.get("transforms"), list | tuple):  # RandomApply, RandomChoice, RandomOrder, Compose
        arguments["transforms"] = [_built(inner) for inner in arguments["transforms"]]
    try:
        transform: Transform = kinds[own](**arguments)
    except (TypeError, ValueError) as error:
        raise UsageError(f"augment: {name} does not take {arguments}: {error}") from error
    return transform
