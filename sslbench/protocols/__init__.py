"""Evaluation protocols: one module or package each; `protocol.py` holds their interface."""

from typing import Any

from sslbench import names
from sslbench.errors import UsageError
from sslbench.protocols.protocol import (
    MAPS,
    FileClassifier,
    FileClassifierChoice,
    ImageSet,
    ImageWork,
    NotEstimated,
    OnFeatures,
    OnImages,
    OnObjects,
    OnSets,
    Protocol,
    Shapes,
    any_targets,
)

__all__ = [
    "MAPS",
    "FileClassifier",
    "FileClassifierChoice",
    "ImageSet",
    "ImageWork",
    "NotEstimated",
    "OnFeatures",
    "OnImages",
    "OnObjects",
    "OnSets",
    "Protocol",
    "Shapes",
    "any_targets",
    "find",
]


def find(name: str) -> Protocol[Any]:
    """Return the protocol in the module of that name: a built-in one, or a dotted path of the user's own.

    >>> find("knn").settings().temperature
    0.07

    Raises:
        UsageError: no such module, or it has no protocol.
    """
    module = names.find_module("protocol", name)
    protocol = vars(module).get("PROTOCOL")
    if not isinstance(protocol, Protocol):
        raise UsageError(
            f"'{name}' ({module.__file__}) is not a protocol",
            "Add a line PROTOCOL = Protocol(...); see CONTRIBUTING.md.",
        )
    return protocol
