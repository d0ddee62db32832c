"""Heads that are trained on a layer, without torch: their settings, and their files beside the record."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.protocols._parts.rates import ViewSettings
from sslbench.results import NetworkWeights
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

# Settings that each kind of head uses; it ignores the others.
_USED = {
    "linear": (),
    "attentive": ("tokens", "queries", "attention_heads"),
    "map": ("tokens", "queries", "attention_heads", "mlp_ratio"),
    "block": ("tokens", "queries", "attention_heads", "mlp_ratio", "depth"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadedSettings(ViewSettings):
    """Settings of protocols that train a head on views, which is linear or attends to the tokens of the layer."""

    head: Literal["linear", "attentive", "map", "block"] = setting(
        "linear",
        "linear: on pooled features; over the tokens of the layer: attentive (learnt queries, as AIM and CAPI), map "
        "(with a projection and an MLP, as SigLIP and PE), block (a transformer block, as V-JEPA 2)",
        added_later=True,
    )
    tokens: Literal["patches", "all"] = setting(
        "patches", "tokens that the queries attend to: all includes class and register tokens", added_later=True
    )
    queries: int = setting(
        1, "learnt queries of the head; their outputs are averaged", within="[1, inf)", added_later=True
    )
    attention_heads: int | None = setting(
        None, "heads of its attention; null: one per 64 features", within="[1, inf)", added_later=True
    )
    mlp_ratio: float = setting(
        4.0, "hidden features of its MLP, relative to the layer's (map, block)", within="(0, inf)", added_later=True
    )
    depth: int = setting(
        1,
        "blocks of head=block: depth - 1 of self-attention over the tokens, then that of the queries",
        within="[1, inf)",
        added_later=True,
    )

    def __post_init__(self) -> None:
        """Refuse settings that the kind of head does not use."""
        super().__post_init__()
        fields = {name: field for name, field in self.__dataclass_fields__.items() if name in _USED["block"]}
        for name, field in fields.items():
            if name not in _USED[self.head] and getattr(self, name) != field.default:
                able = " or ".join(f"head={kind}" for kind, used in _USED.items() if name in used)
                raise UsageError(f"{self.protocol()}: {name} has no effect with head={self.head}", f"Give {able}.")


def built_in_kind(labels: Target) -> str | None:
    """Return the name of the kind that weights files give to labels: the built-in one that theirs is or extends."""
    return next((kind.name for kind in (Classes, MultiLabel, Numbers) if isinstance(labels, kind)), None)


def probe(heads: Mapping[str, Any], labels: Target, **facts: Any) -> NetworkWeights | None:
    """Return a trained head of a frozen backbone for its file; None for labels that no weights file has.

    `heads`: name -> tensor or array of a `ClassifierHead`; `facts`: of its `ClassifierInfo`, where they differ.
    """
    kind = built_in_kind(labels)
    if kind is None:
        return None
    return NetworkWeights(heads, {"norm": "none", "labels": kind, "classes": labels.classes, **facts})
