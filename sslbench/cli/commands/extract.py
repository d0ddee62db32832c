"""`sslbench extract`."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sslbench import evaluation
from sslbench.cli import early, options, slurm, terminal
from sslbench.cli.commands.eval.check import expand
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.echo import echo
from sslbench.cli.flags import argument_options, flag, same, take_flags
from sslbench.cli.help import GroupedCommand
from sslbench.cli.words import split_words
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.evaluation.request import Request, read_request, written
from sslbench.evaluation.settings import RunSettings
from sslbench.features import external_files
from sslbench.features.presence import announced


@dataclasses.dataclass(frozen=True)
class SeveralWeights(options.NetworkFlags):
    """Flags that choose a backbone and its layers, and several files of weights for it."""

    weights: tuple[str, ...] = flag(options.WEIGHTS, "--weights", "-w", default=(), cls=options.Several)


@click.command("extract", cls=GroupedCommand)
@click.argument("words", nargs=-1, metavar="[launcher.KEY=VALUE]...")
@take_flags(
    weights=SeveralWeights, data=options.DataFlags, preprocessing=options.PreprocessingFlags, run=options.RunFlags
)
@argument_options
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    weights: SeveralWeights,
    data: options.DataFlags,
    preprocessing: options.PreprocessingFlags,
    run: options.RunFlags,
    output: str | None = flag(
        "Also write one layer with names, labels and image sizes to a .parquet, .npz or .h5 file.", "-o", "--output"
    ),
    groups: tuple[str, ...] = flag("Column of the data to copy into index.csv; repeat.", metavar="COLUMN"),
    launcher: str | None = same(EvalOptions, "launcher"),
) -> int | None:
    """Write a backbone's features of a data set to disk: one .npy per layer, index.csv and meta.json beside it.

    They go into the feature store, where `eval` finds them. --store names another folder. With -o FILE they are also
    written to one file, which `eval --features FILE --labels FILE` reads. Several --weights are encoded in one pass
    over the images where these are decoded alike; with --launcher slurm each is a job.
    """
    terminal.show_messages()
    names, values = split_words(words)
    resources, others = slurm.take_launcher(values, launcher)
    if unknown := [*names, *others]:
        raise UsageError(f"extract takes no '{unknown[0]}'", "Images follow --data, and weights --weights.")
    every = expand(weights.weights)
    for word in every or [""]:
        options.require_weights(ctx, word)
    if output is not None:
        external_files.check_path(Path(output))
        if len(every) > 1:
            raise UsageError(f"-o writes the features of one network, and --weights names {len(every)}")
        if len(layers := weights.layer_names()) > 1:
            raise UsageError(f"-o writes one layer, and --layers names {len(layers)}")
    for word in every:
        network = options.WeightsFlags(**{**vars(weights), "weights": word})
        flags = options.EncodingFlags(network, data, preprocessing, run)
        settings = early.checked_run(flags)
    request, store = early.request_of(flags, groups=groups), run.store_folder()
    requests = [dataclasses.replace(request, weights=word) for word in every]
    if resources is None:
        _extract(requests, settings, store, output)
        return None
    of_file = {} if output is None else {"output": output}
    jobs = [[written(one, settings) | of_file] for one in requests]
    return slurm.exit_code(slurm.submit(jobs, ["--store", str(store)], resources, store))


def run_written(content: Mapping[str, Any], where: str, store: Path) -> None:
    """Extract the features of a written request without tasks."""
    request, settings, _ = read_request({key: value for key, value in content.items() if key != "output"}, where)
    if not isinstance(request, Request):
        raise UsageError(f"{where} has no tasks", "Name the protocols: tasks: [{protocol: knn}].")
    _extract([request], settings, store, content.get("output"))


def _extract(requests: Sequence[Request], settings: RunSettings, store: Path, output: str | None) -> None:
    evaluation.check_writable(store)
    with announced(store), terminal.progress() as progress:
        for word, found in evaluation.extract_several(requests, settings, store=store, progress=progress):
            for split, extraction in found.items():
                for layer, features in extraction.features.items():
                    path = extraction.entry.layer_file(layer).resolve()
                    own = f"{word}\t" if len(requests) > 1 else ""
                    echo(f"{own}{split}\t{layer}\t{features.x.shape[0]} x {features.x.shape[1]}\t{path}")
    if output is not None and this_process().rank == 0:
        # Features of the only network: with several -o was refused.
        external_files.write_one_file(found, Path(output))
        echo(f"features, names, labels and sizes of the images: {output}")
