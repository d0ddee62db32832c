"""Options of `sslbench eval`, and the cases in which each has an effect."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click

from sslbench import protocols
from sslbench.cli import options
from sslbench.protocols import OnFeatures, OnImages

TestClasses = Literal["same", "subset", "numbers"]
Backend = Literal["torchvision", "detectron2"]


@dataclasses.dataclass(frozen=True)
class EvalOptions:
    """Values of the command line: a field for each parameter of the command, under its name."""

    words: tuple[str, ...]
    benchmarks: tuple[str, ...]
    presets: tuple[str, ...]
    suite: str | None
    weights: tuple[str, ...]
    backbone: str | None
    format: str | None
    allow_partial: bool
    stem: str | None
    trust_pickle: bool
    layers: str | None
    data: str | None
    test_data: str | None
    image_column: str | None
    label_column: str | None
    limit: int | None
    test_classes: TestClasses | None
    value_columns: str | None
    groups: tuple[str, ...]
    features: str | None
    labels: str | None
    test_features: str | None
    test_labels: str | None
    resize: str | None
    crop: str | None
    interpolation: str | None
    mean: str | None
    std: str | None
    device: str | None
    precision: str | None
    feature_dtype: str | None
    batch_size: int | None
    workers: int | None
    seed: int | None
    on_error: str | None
    decoder: list[str] | None
    max_pixels: int | None
    start_method: str | None
    store: str | None
    max_memory: str | None
    no_floors: bool
    no_overlaps: bool
    limit_iters: int | None
    baselines: tuple[str, ...]
    backend: Backend | None
    out: str
    dry_run: bool

    @classmethod
    def of(cls, ctx: click.Context) -> "EvalOptions":
        """Return the options of a parsed command; --weights may have had several values."""
        return cls(**{**ctx.params, "weights": tuple(ctx.meta["weights"])})

    def numbers(self) -> tuple[str, ...]:
        """Return the columns in --value-col."""
        return tuple(name.strip() for name in (self.value_columns or "").split(",") if name.strip())

    def named(self, names: Sequence[str]) -> dict[str, Any]:
        """Return some of the options, name -> value."""
        return {name: getattr(self, name) for name in names}

    def run_settings(self, names: Sequence[str] = options.RUN_KEYS) -> dict[str, Any]:
        """Return the settings of the run among the options that were given."""
        found = {name: value for name, value in self.named(names).items() if value is not None}
        found |= {"floors": False} if self.no_floors else {}
        return found | ({"overlaps": False} if self.no_overlaps else {})


_OF_A_FILE = frozenset({"format", "allow_partial", "trust_pickle"})
"""Options about a file of weights."""
_ALWAYS = frozenset({"seed", "device", "no_floors", "out"})
_NETWORK = _ALWAYS | {
    *("benchmarks", "suite", "weights", "backbone", "format", "allow_partial", "stem", "trust_pickle"),
    *("data", "test_data", "workers", "decoder", "max_pixels", "start_method", "dry_run"),
}
ON_OBJECTS = _NETWORK | {"limit_iters", "baselines", "backend"}
"""Options with an effect on a protocol on objects."""
ON_IMAGES = _NETWORK | {
    *("presets", "layers", "image_column", "label_column", "limit", "test_classes", "value_columns", "groups"),
    *("resize", "crop", "interpolation", "mean", "std", "precision", "batch_size", "on_error"),
}
"""Options with an effect on a protocol on images."""
ON_FEATURES = ON_IMAGES | {"feature_dtype", "store", "no_overlaps"}
"""Options with an effect on a protocol on features."""
EMBEDDINGS = _ALWAYS | {"presets", "features", "no_overlaps"}
"""Options with an effect on embeddings made elsewhere."""
LABELLED_EMBEDDINGS = EMBEDDINGS | {
    *("labels", "test_features", "test_labels", "label_column", "value_columns", "groups")
}
"""The same where the embeddings have labels."""

_REASONS = {
    "limit_iters": "--limit-iters is for detection.",
    "baselines": "--baseline is for detection.",
    "backend": "--backend is for detection.",
    **dict.fromkeys(("labels", "test_features", "test_labels"), "It belongs to --features."),
    **dict.fromkeys(("feature_dtype", "store"), "Protocols on images store no features."),
    "no_overlaps": "Protocols on images do not look for overlaps.",
    "max_memory": "It limits the search of neighbours: knn, retrieval.",
}
_UNLABELLED = "It needs --labels: a .csv with a column 'label', one line per row of the features."
_EMBEDDING_REASONS = {
    **{
        name: f"--features and --{name} exclude each other: features made elsewhere need no {name}."
        for name in ("weights", "data", "backbone", "layers")
    },
    **dict.fromkeys(("labels", "test_features", "test_labels", "groups", "label_column", "value_columns"), _UNLABELLED),
    **dict.fromkeys(("store", "feature_dtype"), "The features are used as they are."),
    "benchmarks": "A benchmark is a data set; name the protocol, or a --preset.",
    "suite": "A suite is a list of data sets; name the protocols, or a --preset.",
}


def refuse_unused(ctx: click.Context, chosen: EvalOptions, names: Sequence[str]) -> None:
    """Refuse options that have no effect on protocols on samples.

    Args:
        ctx: the context of the command.
        chosen: its options.
        names: the protocols that will run.

    Raises:
        UsageError: an option was typed that none of them uses.
    """
    found = [protocols.find(name) for name in names]
    searches = any("max_memory" in {f.name for f in dataclasses.fields(each.settings)} for each in found)
    memory = {"max_memory"} if searches else set()
    if chosen.features is not None:
        used, what = (
            (LABELLED_EMBEDDINGS, "--features") if chosen.labels else (EMBEDDINGS, "--features without --labels")
        )
        options.refuse(ctx, used=used | memory, what=what, reasons={**_REASONS, **_EMBEDDING_REASONS})
        return
    used = frozenset(memory)
    used = used.union(*(ON_FEATURES for each in found if isinstance(each.kind, OnFeatures)))
    used = used.union(*(ON_IMAGES for each in found if isinstance(each.kind, OnImages)))
    options.refuse(ctx, used=used, what=" ".join(dict.fromkeys(names)), reasons=_REASONS)
    refuse_unused_of_weights(ctx, chosen)


def refuse_unused_of_weights(ctx: click.Context, chosen: EvalOptions) -> None:
    """Refuse options about a file of weights where there is none.

    Raises:
        UsageError: such an option was typed beside --weights random or pixels.
    """
    files = [word for word in (*chosen.weights, *chosen.baselines) if word != "random" and not _is_pixels(word)]
    if chosen.weights and not files:
        used = {str(parameter.name) for parameter in ctx.command.params} - _OF_A_FILE
        options.refuse(ctx, used=used, what=f"--weights {chosen.weights[0]}", reasons=_REASONS)


def _is_pixels(word: str) -> bool:
    return word.partition(":")[0] == "pixels" and not Path(word).exists()
