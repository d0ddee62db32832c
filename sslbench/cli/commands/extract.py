"""`sslbench extract`."""

from pathlib import Path
from typing import Any

import click

from sslbench.cli import options
from sslbench.cli.echo import echo


@click.command("extract")
@options.weights_flags
@options.data_flags
@options.preprocessing_flags
@options.run_flags
@click.option("--groups", multiple=True, metavar="COLUMN", help="Also write this column of the data into index.csv.")
def command(**given: Any) -> None:
    """Write a backbone's features of a data set to disk: one .npy per layer, index.csv and meta.json beside it.

    They go into the feature store, where `eval` finds them; --store puts them into a folder of yours.
    """
    from sslbench import evaluation
    from sslbench.backbones.layers import split_layers
    from sslbench.cli import terminal
    from sslbench.cli.words import compose_run
    from sslbench.config import resolve
    from sslbench.errors import UsageError
    from sslbench.features.presence import announced

    terminal.show_messages()
    if not given["weights"]:
        raise UsageError("which weights? --weights is missing")
    run, _ = resolve(evaluation.RunSettings, compose_run({}, options.given(given, options.RUN_KEYS)))
    keys = (*options.WEIGHTS_KEYS, "test_data", "image_column", "label_column", "limit")
    request = evaluation.Request(
        **{key: given[key] for key in keys},
        data=given["data"] or options.default_data(),
        tasks=(),
        layers=tuple(split_layers(given["layers"])) if given["layers"] else (),
        preprocessing=options.preprocessing_values(given),
        groups=given["groups"],
    )
    store = options.store_folder(given["store"])
    evaluation.check_writable(store)
    with announced(store), terminal.progress() as progress:
        for split, extraction in evaluation.extract_only(request, run, store=store, progress=progress).items():
            for layer, features in extraction.features.items():
                path = extraction.entry.layer_file(layer)
                echo(f"{split}\t{layer}\t{features.x.shape[0]} x {features.x.shape[1]}\t{_shown(path)}")


def _shown(path: Path) -> str:
    return str(path.resolve())
