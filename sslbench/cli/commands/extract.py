"""`sslbench extract`."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.cli import launch, options
from sslbench.cli.commands.eval.suite import expand, take_weights
from sslbench.cli.echo import echo
from sslbench.cli.help import GroupedCommand
from sslbench.errors import UsageError

if TYPE_CHECKING:
    from sslbench.features.extract import Extraction


class ExtractCommand(GroupedCommand):
    """Command whose --weights takes several values."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep all values of --weights, and the words about the launcher."""
        ctx.meta["weights"], rest = take_weights(launch.take_launcher(ctx, args))
        ctx.meta["rest"] = launch.without_option(rest, "--weights")
        return super().parse_args(ctx, rest)


@click.command("extract", cls=ExtractCommand)
@options.weights_options
@options.data_options
@options.preprocessing_options
@options.run_options
@click.option(
    "-o", "--output", help="Also write one layer with names, labels and image sizes to a .parquet, .npz or .h5 file."
)
@click.option("--groups", multiple=True, metavar="COLUMN", help="Column of the data to copy into index.csv; repeat.")
@launch.launcher_option
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
) -> int | None:
    """Write a backbone's features of a data set to disk: one .npy per layer, index.csv and meta.json beside it.

    They go into the feature store, where `eval` finds them. --store names another folder. With -o FILE they are also
    written to one file, which `eval --features FILE --labels FILE` reads. Several --weights are encoded in one pass
    over the images where these are decoded alike; with --launcher slurm each is a job.
    """
    from sslbench.cli import early, terminal

    terminal.show_messages()
    every = _refuse_mistyped(ctx, weights, data, run, output)
    settings, slurm = early.checked_run(run, weights, preprocessing), launch.chosen(ctx)
    layers = weights.layer_names()
    if output is not None and len(layers) > 1:
        raise UsageError(f"-o writes one layer, and --layers names {len(layers)}")
    early.refuse_other_files(every)

    from sslbench import evaluation
    from sslbench.distributed import this_process
    from sslbench.features import external_files
    from sslbench.features.presence import announced

    request = evaluation.Request(
        **weights.loading(),
        data=data.data or options.default_data(),
        test_data=data.test_data,
        image_column=data.image_column,
        label_column=data.label_column,
        limit=data.limit,
        tasks=(),
        layers=layers,
        preprocessing=preprocessing.values(),
        groups=groups,
    )
    store = run.store_folder()
    if slurm is not None:
        jobs = [["extract", *ctx.meta["rest"], "--weights", word] for word in every]
        return launch.exit_code(launch.submit(jobs, slurm, store))
    evaluation.check_writable(store)
    requests = [dataclasses.replace(request, weights=word) for word in every]
    with announced(store), terminal.progress() as progress:
        found: dict[str, Extraction] = {}
        for word, found in evaluation.extract_several(requests, settings, store=store, progress=progress):
            for split, extraction in found.items():
                for layer, features in extraction.features.items():
                    path = extraction.entry.layer_file(layer).resolve()
                    own = f"{word}\t" if len(every) > 1 else ""
                    echo(f"{own}{split}\t{layer}\t{features.x.shape[0]} x {features.x.shape[1]}\t{path}")
    if output is not None and this_process().rank == 0:
        external_files.write_one_file(found, Path(output))
        echo(f"features, names, labels and sizes of the images: {output}")
    return None


def _refuse_mistyped(
    ctx: click.Context,
    weights: options.WeightsFlags,
    data: options.DataFlags,
    run: options.RunFlags,
    output: str | None,
) -> list[str]:
    """Refuse paths and names that do not exist before anything heavy is imported; return all weights."""
    from sslbench.backbones.named import is_pixels, pixels_backbone, random_backbone
    from sslbench.cli import early

    if not weights.weights:
        raise UsageError("--weights is missing", "Give a weights file, 'random' (with --backbone) or 'pixels'.")
    every = expand(ctx.meta["weights"])
    for word in every:
        options.refuse_loading_flags(ctx, word)
        if word == "random":
            random_backbone(weights.backbone)
        if is_pixels(word):
            pixels_backbone(word, weights.backbone)
    early.refuse_mistyped(every, (data.data, data.test_data), backbone=weights.backbone, device=run.device)
    if output is not None:
        from sslbench.features import external_files

        external_files.check_path(Path(output))
        if len(every) > 1:
            raise UsageError(f"-o writes the features of one network, and --weights names {len(every)}")
    return every
