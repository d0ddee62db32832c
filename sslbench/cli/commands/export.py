"""`sslbench export`."""

from pathlib import Path

import click

from sslbench import evaluation
from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo
from sslbench.cli.flags import argument_options, flag, take_flags
from sslbench.cli.help import GroupedCommand
from sslbench.data.regular import refuse_missing_file
from sslbench.weights.format_name import check_export


@click.command("export", cls=GroupedCommand)
@argument_options
@take_flags(weights=options.WeightsFlags, preprocessing=options.PreprocessingFlags)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    weights: options.WeightsFlags,
    preprocessing: options.PreprocessingFlags,
    out: Path = flag("File to write: net.onnx, or net.pt2 of torch.export.", required=True),
    probe: Path | None = flag(
        "NAME-ID.probe.torch beside a record: the classifier, or head for maps, that a protocol trained on features "
        "of --weights."
    ),
    force: bool = flag("Replace --out if it exists.", default=False),
) -> None:
    """Write a network for other programs: ONNX or torch.export, for any number of images at a time.

    The output is the scores of the file's classifier, or of --probe; without one, or with --layers, the features of
    one layer; the maps of a dense protocol's --probe. The input is normalised images of the evaluation's size (maps:
    of its window or crop). The outputs of the file are compared with the network's.

    \b
    sslbench export --weights finetuned.torch --out net.onnx
    sslbench export --weights moco_v2.pth.tar --layers res5avg --out net.pt2
    """  # noqa: D301
    terminal.show_messages()
    options.require_weights(ctx, weights.weights, "Give a weights file.")
    check_export(out, overwrite=force)
    early.check_network(weights, preprocessing)
    if probe is not None:
        refuse_missing_file(probe)

    from sslbench.evaluation.prediction import export_network

    request = evaluation.Request(
        **weights.loading(), data="", tasks=(), layers=weights.layer_names(), preprocessing=preprocessing.values()
    )
    report = export_network(request, out, probe=probe, overwrite=force)
    channels, height, width = report.shape
    used = report.preprocessing
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (used.mean, used.std))
    echo(str(out.resolve()))
    echo(
        f"input images: float32 (batch, {channels}, {height}, {width}), 0 to 1, minus mean ({mean}), divided by ({std})"
    )
    echo(f"output {report.output}: float32 (batch, {', '.join(map(str, report.output_shape))})")
    echo(f"largest difference from the network: {report.difference:.1e} of the largest output, batches of 1, 2 and 5")
