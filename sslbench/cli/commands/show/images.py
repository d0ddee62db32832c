"""Pictures of the patches of images."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.cli import options
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

if TYPE_CHECKING:
    from sslbench.show.images import View

UNUSED = {"test_data", "feature_dtype", "store", "batch_size", "crop", "scales"}
REASONS = {
    "test_data": "Give the images as --data.",
    "feature_dtype": "No features are stored.",
    "store": "No features are stored.",
    "batch_size": "Few images are encoded.",
    "crop": "Whole images are shown; --resize sets their size.",
    "scales": "Patches of other scales are other patches; --resize sets the size.",
}
_DEFAULT_LIMIT = 12


def draw(
    ctx: click.Context,
    out: Path,
    points: Sequence[str],
    views: str | None,
    foreground: bool,
    weights: options.WeightsFlags,
    data: options.DataFlags,
    preprocessing: options.PreprocessingFlags,
    run: options.RunFlags,
) -> list[Path]:
    """Draw the patches of a sample of images; return the files."""
    from sslbench import evaluation
    from sslbench.backbones.layer_spec import split_layers
    from sslbench.cli import terminal
    from sslbench.cli.words import compose_run
    from sslbench.config import resolve
    from sslbench.data.open import DEFAULT_OBJECTS
    from sslbench.show.images import Pictures, parse_point, show_images

    terminal.show_messages()
    options.refuse_loading_flags(ctx, weights.weights)
    chosen = Pictures(_views(views), tuple(parse_point(text) for text in points), foreground)
    settings, _ = resolve(evaluation.RunSettings, compose_run({}, run.settings()))
    request = evaluation.Request(
        **weights.loading(),
        data=data.data or options.default_data(DEFAULT_OBJECTS, "kwcoco's toy shapes"),
        image_column=data.image_column,
        label_column=data.label_column,
        limit=data.limit or _DEFAULT_LIMIT,
        tasks=(),
        layers=tuple(split_layers(weights.layers)) if weights.layers else (),
        preprocessing=preprocessing.values(),
    )
    with terminal.progress() as progress:
        return show_images(request, settings, chosen, out, command=str(ctx.obj), progress=progress)


def _views(text: str | None) -> "tuple[View, ...] | None":
    from sslbench.show.images import VIEWS

    if text is None:
        return None
    named = text.split(",")
    for name in named:
        if name not in VIEWS:
            raise UsageError(f"--views {text}: there is no view '{name}'", did_you_mean(name, VIEWS))
    return tuple(view for view in VIEWS if view in named)
