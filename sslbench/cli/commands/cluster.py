"""`sslbench cluster`."""

from pathlib import Path

import click

from sslbench import evaluation
from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo
from sslbench.cli.flags import argument_options, flag, take_flags
from sslbench.cli.help import GroupedCommand
from sslbench.errors import UsageError
from sslbench.features.presence import announced
from sslbench.runtime.folders import refuse_output_file


@click.command("cluster", cls=GroupedCommand)
@take_flags(flags=options.EncodingFlags)
@argument_options
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    flags: options.EncodingFlags,
    k: int = flag("Number of clusters.", default=16000, within="[2, inf)", show_default=True),
    iterations: int = flag("Iterations of k-means.", default=50, within="[1, inf)", show_default=True),
    out: str = flag("Table to write: path, label[, split].", default="assignments.csv", show_default=True),
) -> None:
    """Cluster a data set's features by k-means, and write the clusters as labels to train on (ClusterFit).

    The clusters are found on the part train, or on all images. --layers names one layer.

    \b
    sslbench cluster --weights w.torch --data photos/ --k 16000 --out assignments.csv
    sslbench pretrain clusterfit --data assignments.csv
    """  # noqa: D301
    terminal.show_messages()
    options.require_weights(ctx, flags.weights.weights)
    if len(layers := flags.weights.layer_names()) > 1:
        raise UsageError(f"--layers {flags.weights.layers} names {len(layers)} layers", "Name the one to cluster.")
    refuse_output_file(Path(out))
    settings = early.checked_run(flags)

    from sslbench.evaluation.cluster import cluster, write_assignments

    request = early.request_of(flags)
    store = flags.run.store_folder()
    evaluation.check_writable(store)
    evaluation.check_writable(Path(out).parent)
    with announced(store), terminal.progress() as progress:
        extractions = evaluation.extract_only(request, settings, store=store, progress=progress)
        parts = {name: next(iter(each.features.values())).x for name, each in extractions.items()}
        found = cluster(parts, k, iterations=iterations, seed=settings.seed)
        rows = write_assignments(Path(out), extractions, found.clusters)
    used = int((found.sizes > 0).sum())
    echo(
        f"{out}: {rows:,} images in {used:,} clusters of {int(found.sizes[found.sizes > 0].min()):,} to "
        f"{int(found.sizes.max()):,} images"
    )
