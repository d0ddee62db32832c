"""Pictures of the patches of images."""

from collections.abc import Sequence
from pathlib import Path

import click

from sslbench import evaluation
from sslbench.cli import early, options, terminal
from sslbench.show.choices import parse_point, parse_views

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
    terminal.show_messages()
    options.refuse_loading_flags(ctx, weights.weights)
    drawn, marked = parse_views(views), tuple(parse_point(text) for text in points)
    settings = early.checked_run(run, weights, preprocessing)
    early.refuse_other_files([weights.weights])

    from sslbench.data.open import DEFAULT_OBJECTS
    from sslbench.show.images import Pictures, show_images

    chosen = Pictures(drawn, marked, foreground)
    request = evaluation.Request(
        **weights.loading(),
        data=data.data or options.default_data(DEFAULT_OBJECTS, "kwcoco's toy shapes"),
        image_column=data.image_column,
        label_column=data.label_column,
        limit=data.limit or _DEFAULT_LIMIT,
        tasks=(),
        layers=weights.layer_names(),
        preprocessing=preprocessing.values(),
    )
    with terminal.progress() as progress:
        return show_images(request, settings, chosen, out, command=str(ctx.obj), progress=progress)
