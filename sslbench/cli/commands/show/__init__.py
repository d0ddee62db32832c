"""`sslbench show`: pictures of features and predictions, and printed definitions."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.cli import early, options
from sslbench.cli.commands.show import features, images, record
from sslbench.cli.commands.show.definitions import print_definition
from sslbench.cli.echo import echo
from sslbench.cli.help import GroupedCommand
from sslbench.cli.options import LocalPath
from sslbench.distributed import this_process
from sslbench.errors import UsageError

if TYPE_CHECKING:
    from sslbench.show.choices import Projection

_IMAGES = {"points", "views", "foreground"}
_SCATTER = {"features_path", "labels_path", "projection"}


@click.command("show", cls=GroupedCommand)
@click.argument("words", nargs=-1, metavar="[NAME | features | [PROTOCOL] RECORD.json]")
@click.option("--out", "-o", default="show", show_default=True, type=LocalPath(), help="Folder of the page.")
@click.option(
    "--point", "points", multiple=True, metavar="IMAGE:X,Y", help="Point whose nearest patches are drawn; repeat."
)
@click.option("--views", help="Pictures of patches: pca,attention,nearest. Default: all that the network has.")
@click.option("--foreground", is_flag=True, help="Colour the foreground only, found by the first principal component.")
@click.option("--projection", type=click.Choice(["pca", "tsne", "umap"]), help="Projection of features. Default: tsne.")
@click.option(
    "--features",
    "features_path",
    type=LocalPath(),
    help="Features made elsewhere, .npy of one row each.",
)
@click.option("--labels", "labels_path", type=LocalPath(), help="CSV of their labels, in the same order.")
@options.weights_options
@options.data_options
@options.preprocessing_options
@options.run_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    out: Path,
    points: tuple[str, ...],
    views: str | None,
    foreground: bool,
    projection: "Projection | None",
    features_path: Path | None,
    labels_path: Path | None,
    weights: options.WeightsFlags,
    data: options.DataFlags,
    preprocessing: options.PreprocessingFlags,
    run: options.RunFlags,
) -> None:
    """Draw features or predictions, or print the definition of NAME.

    \b
    sslbench show --weights w.torch --data photos/          patches: PCA, attention, nearest
    sslbench show features --weights w.torch --data photos/ scatter of features by t-SNE
    sslbench show results/knn/w-0123.json                   best, median and worst test images
    sslbench show simclr                                    a recipe, benchmark, preset, format

    Pictures go to --out: PNG sheets, index.html (needs no network) and show.json. KIND/NAME selects one of several
    definitions with the same name: augment/simclr.
    """  # noqa: D301
    if this_process().world > 1:
        raise UsageError("show runs in one process", "Start it without torchrun or srun.")
    names = {str(parameter.name) for parameter in ctx.command.params}
    if out.suffix.lower() in (".html", ".png", ".json"):
        raise UsageError(f"--out {out}: show writes a page with pictures into a folder", f"Give --out {out.stem}.")
    places = (data.data, data.test_data) if weights.weights else ()  # with a record, its own reader refuses them
    early.refuse_mistyped([weights.weights], places, backbone=weights.backbone, device=run.device)
    if words == ("features",):
        options.refuse(ctx, used=names - _IMAGES, what="show features")
        files = features.draw(ctx, out, projection, features_path, labels_path, weights, data, preprocessing, run)
    elif words and words[-1].endswith(".json"):
        options.refuse(ctx, used=record.USED, what="a record", reasons=record.REASONS)
        files = record.draw(ctx, words, out, weights, data, run)
    elif words:
        options.refuse(ctx, used={"words"}, what=f"show {words[0]}, which prints a definition")
        if len(words) > 1:
            raise UsageError(f"'{words[-1]}' is not a record", "Give RECORD.json, or one NAME.")
        print_definition(words[0])
        return
    elif not weights.weights:
        raise UsageError(
            "there is nothing to show",
            "Give --weights and --data, `features`, a RECORD.json, or a NAME (see: sslbench list).",
        )
    else:
        options.refuse(ctx, used=names - _SCATTER - images.UNUSED, what="show of patches", reasons=images.REASONS)
        files = images.draw(ctx, out, points, views, foreground, weights, data, preprocessing, run)
    for file in files:
        echo(str(file.resolve()))
