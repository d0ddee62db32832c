"""The protocols by name: those on features, which are modules, and detection, which trains a network of its own."""

from typing import Any

from sslbench.names import find_module, list_names

DETECTION = "detection"


def all_protocols() -> list[str]:
    """Names of what `sslbench eval` takes, sorted."""
    return sorted([*list_names("protocol"), DETECTION])


def about(name: str) -> tuple[int, str, type[Any]]:
    """Version of a protocol, what it is in one line, and the class of its settings.

    Raises:
        UsageError: no such protocol.
    """
    if name == DETECTION:
        from sslbench import detection
        from sslbench.detection.recipe import DetectionRecipe

        return detection.VERSION, "A detector around the backbone: average precision of its boxes.", DetectionRecipe
    module = find_module("protocol", name)
    return module.VERSION, (module.__doc__ or "").strip().splitlines()[0], module.Settings
