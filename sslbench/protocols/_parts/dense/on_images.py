"""Protocols that train dense heads: their functions on images, made of the class of their task."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sslbench.backbones.views import OWN_SIZES
from sslbench.data.source import Source
from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.protocols._parts.dense.task import DenseTask, S
from sslbench.protocols.protocol import Cost, OnImages, Shapes
from sslbench.results import Outcome

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.features.array import ExtractSettings


def heads_cost(settings: HeadSettings, shapes: Shapes) -> Cost:
    """Return the crops of training and the test images, counted as one window each."""
    crops = float(settings.steps * settings.batch_size)
    if settings.max_epochs is not None:
        crops = min(crops, settings.max_epochs * shapes.train)
    return Cost(images=crops + shapes.test * len(settings.scales), rest="heads, windows and metrics")


def rows_of(
    task: type[DenseTask[S]],
    backbone: "Backbone",
    layers: "Sequence[Layer]",
    train: Source,
    settings: S,
    *,
    seed: int,
) -> tuple[str, ...]:
    """Refuse what does not go together before any image is decoded; return the rows of results."""
    from sslbench.protocols._parts.dense.run import checked_rows

    return checked_rows(backbone, layers, train, settings, protocol=task.name, seed=seed)


def run(  # noqa: PLR0913  the signature of every protocol on images
    task: type[DenseTask[S]],
    backbone: "Backbone",
    layers: "Sequence[Layer]",
    train: Source,
    test: Source,
    settings: S,
    *,
    seed: int,
    engine: "ExtractSettings",
    folder: Path,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Outcome]:
    """Train heads on train, choose one per row on a held-out part of it, score test; see `train_and_score`."""
    from sslbench.protocols._parts.dense.run import train_and_score

    task.check(settings, train.target)
    own = task.of(settings, train, backbone.preprocessing, seed)
    return train_and_score(
        backbone, layers, train, test, own, seed=seed, engine=engine, folder=folder, progress=progress
    )


def trained_heads(task: type[DenseTask[S]]) -> OnImages[S]:
    """Return the kind of a protocol that trains heads on frozen maps for a task."""
    return OnImages(
        task.check,
        functools.partial(rows_of, task),
        functools.partial(run, task),
        cost=heads_cost,
        takes=(task.takes,),
        view=OWN_SIZES,
        reads_trained_side=lambda settings: settings.enlarge == "trained",
    )
