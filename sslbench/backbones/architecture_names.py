"""Names of all backbones, read without torch and timm, which take seconds to import, so that a typo is told at once."""

import functools
import importlib.util
import re
from pathlib import Path

from sslbench.backbones import alexnet_spec, resnet_spec
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, refuse_missing_module

VJEPA2_NAMES = ("vjepa2_large", "vjepa2_huge", "vjepa2_giant")
_REGISTERED = re.compile(r"^@register_model\s+def (\w+)\(", re.MULTILINE)
_QUOTED = re.compile(r"""["'](\w+)["']""")


def no_backbone(name: str) -> UsageError:
    """Return the error for a name that no family of backbones has."""
    known = {*resnet_spec.NAMES, *alexnet_spec.NAMES, *VJEPA2_NAMES, "pixels", *timm_names()}
    return UsageError(f"there is no backbone '{name}'", did_you_mean(name, known))


def refuse_unknown_backbone(name: str | None) -> None:
    """Refuse a name that no family of backbones has; others may still turn out wrong when they are built.

    Example:
        >>> refuse_unknown_backbone("resnet50w2")
        >>> refuse_unknown_backbone("resnt50")
        Traceback (most recent call last):
            ...
        sslbench.errors.UsageError: there is no backbone 'resnt50'
        Did you mean 'resnet50' or 'resnet50...?

    Raises:
        UsageError: the message gives the nearest names; or the module of a user's own backbone is missing.
    """
    if name is None or name.startswith("pixels:"):
        return
    if ":" in name and not name.startswith("timm:"):
        refuse_missing_module(name)
        return
    architecture = name.removeprefix("timm:").partition(",")[0].partition(".")[0]
    if name in ("pixels", "pixels:native") or architecture in _of_timm()[1]:
        return
    base = name.partition(",")[0]
    if name.startswith("timm:"):
        raise UsageError(f"timm has no model '{architecture}'", did_you_mean(architecture, timm_names()))
    if base not in (*alexnet_spec.NAMES, *VJEPA2_NAMES) and resnet_spec.parse(base) is None:
        raise no_backbone(name)


def timm_names() -> frozenset[str]:
    """Return the names of timm's models, those of `timm.list_models()`; none where timm is not installed."""
    return _of_timm()[0]


@functools.cache
def _of_timm() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of timm's models, and all words that may be one: old names are keys of its tables."""
    spec = importlib.util.find_spec("timm")
    if spec is None or spec.origin is None:
        return frozenset(), frozenset()
    texts = [file.read_text(encoding="utf-8") for file in Path(spec.origin).parent.glob("models/*.py")]
    registered = frozenset(name for text in texts for name in _REGISTERED.findall(text))
    return registered, registered | {word for text in texts for word in _QUOTED.findall(text)}
