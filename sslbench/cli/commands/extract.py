"""`sslbench extract`."""

from pathlib import Path

import click

from sslbench.cli import options
from sslbench.cli.echo import echo
from sslbench.cli.help import GroupedCommand
from sslbench.errors import UsageError


@click.command("extract", cls=GroupedCommand)
@options.weights_options
@options.data_options
@options.preprocessing_options
@options.run_options
@click.option(
    "-o", "--output", help="Also write one layer with names, labels and image sizes to a .parquet, .npz or .h5 file."
)
@click.option("--groups", multiple=True, metavar="COLUMN", help="Column of the data to copy into index.csv; repeat.")
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    weights: options.WeightsFlags,
    data: options.DataFlags,
    preprocessing: options.PreprocessingFlags,
    run: options.RunFlags,
    output: str | None,
    groups: tuple[str, ...],
) -> None:
    """Write a backbone's features of a data set to disk: one .npy per layer, index.csv and meta.json beside it.

    They go into the feature store, where `eval` finds them. --store names another folder. With -o FILE they are also
    written to one file, which `eval --features FILE --labels FILE` reads.
    """
    from sslbench import evaluation
    from sslbench.backbones.layers import split_layers
    from sslbench.cli import terminal
    from sslbench.cli.words import compose_run
    from sslbench.config import resolve
    from sslbench.distributed import this_process
    from sslbench.features import one_file
    from sslbench.features.presence import announced

    terminal.show_messages()
    if not weights.weights:
        raise UsageError("--weights is missing", "Give a weights file, 'random' (with --backbone) or 'pixels'.")
    options.refuse_loading_flags(ctx, weights.weights)
    settings, _ = resolve(evaluation.RunSettings, compose_run({}, run.settings()))
    request = evaluation.Request(
        **weights.loading(),
        data=data.data or options.default_data(),
        test_data=data.test_data,
        image_column=data.image_column,
        label_column=data.label_column,
        limit=data.limit,
        tasks=(),
        layers=tuple(split_layers(weights.layers)) if weights.layers else (),
        preprocessing=preprocessing.values(),
        groups=groups,
    )
    if output is not None:
        one_file.check_path(Path(output))
        if len(request.layers) > 1:
            raise UsageError(f"-o writes one layer, and --layers names {len(request.layers)}")
    store = run.store_folder()
    evaluation.check_writable(store)
    with announced(store), terminal.progress() as progress:
        found = evaluation.extract_only(request, settings, store=store, progress=progress)
        for split, extraction in found.items():
            for layer, features in extraction.features.items():
                path = extraction.entry.layer_file(layer).resolve()
                echo(f"{split}\t{layer}\t{features.x.shape[0]} x {features.x.shape[1]}\t{path}")
    if output is not None and this_process().rank == 0:
        one_file.write_one_file(found, Path(output))
        echo(f"features, names, labels and sizes of the images: {output}")
