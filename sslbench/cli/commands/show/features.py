"""Scatter of features."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench import evaluation
from sslbench.cli import early, options, terminal
from sslbench.data.decode.reading import Reading
from sslbench.errors import UsageError
from sslbench.show.choices import check_projection

if TYPE_CHECKING:
    from sslbench.features.external import FeaturePair
    from sslbench.show.choices import Projection

_DEFAULT_LIMIT = 1000


def draw(
    ctx: click.Context,
    out: Path,
    projection: "Projection | None",
    features: Path | None,
    labels: Path | None,
    weights: options.WeightsFlags,
    data: options.DataFlags,
    preprocessing: options.PreprocessingFlags,
    run: options.RunFlags,
) -> list[Path]:
    """Draw features in the plane; return the files."""
    terminal.show_messages()
    check_projection(projection or "tsne")
    if features is not None:
        used = ("words", "out", "projection", "features_path", "labels_path", "label_column", "limit", "seed")
        options.refuse(ctx, used=used, what="--features, which are already computed")
        early.refuse_missing_files(str(features), None if labels is None else str(labels))
    else:
        _refuse_wrong_flags(ctx, labels, weights)
    settings = early.checked_run(run, weights, preprocessing)
    early.refuse_other_files([weights.weights])

    from sslbench.show.scatter import points_of_features, points_of_images, show_scatter

    most = data.limit or _DEFAULT_LIMIT
    if features is not None:
        points = points_of_features(_read(features, labels, data.label_column, settings.seed), most, settings.seed)
    else:
        request = evaluation.Request(
            **weights.loading(),
            data=data.data or options.default_data(),
            image_column=data.image_column,
            label_column=data.label_column,
            limit=most,
            tasks=(),
            layers=weights.layer_names(),
            preprocessing=preprocessing.values(),
        )
        store = run.store_folder()
        evaluation.check_writable(store)
        with terminal.progress() as progress:
            points = points_of_images(request, settings, store=store, progress=progress)
    reading = Reading(settings.decoder, settings.max_pixels)
    return show_scatter(points, projection or "tsne", settings.seed, out, command=str(ctx.obj), reading=reading)


_REASONS = {"test_data": "Give the images as --data."}


def _refuse_wrong_flags(ctx: click.Context, labels: Path | None, weights: options.WeightsFlags) -> None:
    """Refuse flags that do not go with features of images."""
    if labels is not None:
        raise UsageError("--labels belongs to --features", "Labels of images are in --data.")
    if not weights.weights:
        raise UsageError("--weights is missing", "Give weights and --data, or --features FILE.npy.")
    used = {str(p.name) for p in ctx.command.params} - {"test_data"}
    options.refuse(ctx, used=used, what="show features", reasons=_REASONS)
    options.refuse_loading_flags(ctx, weights.weights)


def _read(features: Path, labels: Path | None, label_column: str | None, seed: int) -> "FeaturePair":
    from sslbench.features.external import read_train_test, read_unlabelled

    if labels is None:
        return read_unlabelled(features)
    return read_train_test(
        features, labels, None, None, label_column=label_column, test_fraction=0.5, seed=seed, own_classes=True
    )
