"""`sslbench score`."""

from pathlib import Path
from typing import Literal

import click

from sslbench import evaluation
from sslbench.cli import early, options, terminal
from sslbench.cli.flags import LocalPath
from sslbench.data.regular import refuse_missing_file
from sslbench.errors import UsageError
from sslbench.runtime.folders import refuse_unwritable


@click.command("score")
@click.argument("files", nargs=-1, required=True, type=LocalPath())
@click.option("-d", "--data", help="COCO or kwcoco manifest, or Pascal VOC tree: its test split, else val, else all.")
@click.option("--test-data", help="Test images elsewhere; --data then gives the training boxes of the floor.")
@click.option(
    "--metric",
    type=click.Choice(["coco", "voc07", "voc12"]),
    default="coco",
    show_default=True,
    help="Average precision: COCO's, or Pascal VOC's of 2007 (11 points) or 2012 (area).",
)
@click.option(
    "--oks-sigma",
    type=click.FloatRange(0, min_open=True),
    help="Sigma of every keypoint in the similarity of poses, where neither the category nor COCO's names give them.",
)
@click.option("--name", default="", help="Name of the detector in tables. Default: that of the file.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--no-floors", is_flag=True, help="Leave out the constant box.")
@click.option("-o", "--out", default="results", show_default=True, help="Folder of the records.")
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    data: str | None,
    test_data: str | None,
    metric: Literal["coco", "voc07", "voc12"],
    oks_sigma: float | None,
    name: str,
    seed: int,
    no_floors: bool,
    out: str,
) -> None:
    """Score detections made elsewhere: files in COCO's result format, of mmdet, DETR, YOLO or any other program.

    image_id may be the manifest's number or a file name, category_id its number or a class name. Several files are
    trainings of one detector with different seeds: their mean is reported, with an interval over trainings and images.
    The records stand on leaderboards; sslbench compare tests two of them against each other.

    \b
    sslbench score results.bbox.json --data instances_val2017.json --name detr
    sslbench score seed0.json seed1.json seed2.json --data VOCdevkit/VOC2007 --metric voc07
    """  # noqa: D301
    terminal.show_messages()
    if data is None:
        raise UsageError("--data is missing", "Give the manifest whose images the detections are of.")
    early.refuse_mistyped(data=(data, test_data))
    for file in files:
        refuse_missing_file(file)
    refuse_unwritable(Path(out))

    from sslbench.cli.commands.eval import table
    from sslbench.evaluation.scored import ScoreRequest, score_files

    evaluation.check_writable(Path(out))
    request = ScoreRequest(files, data, test_data, metric, name, oks_sigma or 0.0)
    run = evaluation.RunSettings(device="cpu", seed=seed, floors=not no_floors)
    results = [score_files(request, run, out=Path(out), command=str(ctx.obj))]
    table.print_results(results)
    table.print_verdict(results, Path(out))
