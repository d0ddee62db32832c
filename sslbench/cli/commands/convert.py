"""`sslbench convert`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo
from sslbench.cli.flags import LocalPath, argument_options, flag, same
from sslbench.errors import UsageError
from sslbench.weights.format_name import check_conversion, check_format

if TYPE_CHECKING:
    from sslbench.weights.convert import ConversionReport


@click.command("convert")
@click.argument("in_", metavar="IN", type=LocalPath())
@click.argument("out", metavar="OUT", type=LocalPath())
@argument_options
def command(
    in_: Path,
    out: Path,
    to: str = flag("Format of OUT (sslbench list formats).", required=True),
    format: str | None = flag("Format of IN. Default: recognised."),
    backbone: str | None = flag("Architecture: timm:NAME, module:callable. Default: read from IN."),
    stem: str | None = flag("Rule that adapts the first convolution to --in-chans: average, repeat, sum, bands=3,2,1."),
    in_chans: int | None = flag("Number of input channels of OUT, with --stem. Default for sum: 1.", within="[1, inf)"),
    keep_heads: bool = flag("Keep classifiers and projection heads that the target format can name.", default=False),
    force: bool = flag("Replace OUT if it exists.", default=False),
    trust_pickle: bool = same(options.NetworkFlags, "trust_pickle"),
) -> None:
    """Write the weights in IN to OUT under the key names of another format; values stay bit for bit the same.

    --stem adapts the first convolution to another number of channels. The suffix of OUT chooses the container:
    .safetensors, .pkl (numpy arrays, for Detectron2 and Caffe2), otherwise torch.

    \b
    sslbench convert moco_v2.pth.tar r50.safetensors --to torchvision
    sslbench convert resnet50.pth r50_for_detectron2.pth --to detectron2
    """  # noqa: D301
    terminal.show_messages()
    if in_chans is not None and stem is None:
        raise UsageError(
            "--in-chans needs --stem, the rule that adapts the first convolution", "For example --stem average."
        )
    early.refuse_mistyped([str(in_)], backbone=backbone)
    early.refuse_wrong_network(format, stem)
    check_format(to)
    check_conversion(in_, out, overwrite=force)
    early.refuse_other_files([str(in_)])

    from sslbench.backbones.convert import convert

    report = convert(
        in_,
        out,
        to=to,
        format=format,
        backbone=backbone,
        stem=stem,
        channels=in_chans,
        keep_heads=keep_heads,
        overwrite=force,
        trust_pickle=trust_pickle,
    )
    echo("\n".join(_lines(report)))


def _lines(report: "ConversionReport") -> list[str]:
    """Return the report as at most fifteen lines."""
    place = f" at '{report.where}'" if report.where else ""
    prefix = f", keys start with '{report.prefix}'" if report.prefix else ""
    network = f" ({report.network})" if report.network else ""
    lines = [
        f"read     {report.source}: format {report.format}{network}{place}{prefix}",
        f"wrote    {report.target}: format {report.to}, {report.tensors} tensors, {report.renamed} of them renamed; "
        "read back and compared bit for bit",
    ]
    if report.elsewhere:
        lines.append(
            f"not read other networks of the file: {', '.join(f'--format {other}' for other in report.elsewhere)}"
        )
    if report.dropped:
        lines.append(f"left out {', '.join(report.dropped)} ({report.dropped_count} tensors, not part of the backbone)")
    if report.heads:
        lines.append(f"kept     heads: {', '.join(report.heads[:6])}{' ...' if len(report.heads) > 6 else ''}")
    for name, count in report.operations.items():
        lines.append(f"changed  {count} tensors by {name}")
    if report.counters_dropped:
        lines.append(f"missing  {report.counters_dropped} num_batches_tracked counters: {report.to} has none")
    if report.counters_restored:
        lines.append(
            f"added    {report.counters_restored} num_batches_tracked counters, as 0: {report.format} has none"
        )
    lines += [f"changed  {change}" for change in report.changes]
    lines += [f"note     {report.note}"] if report.note else []
    lines.append(f"sha256   of {report.source.name}: {report.source_sha256}")
    both = "as written" if report.changes else "the same in both"
    lines.append(f"sha256   of the backbone's tensors, {both}: {report.tensors_sha256}")
    return lines
