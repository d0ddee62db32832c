"""`sslbench score`."""

from pathlib import Path
from typing import Literal

import click

from sslbench import evaluation
from sslbench.cli import early, options, terminal
from sslbench.cli.flags import LocalPath, argument_options, flag
from sslbench.data.regular import refuse_missing_file
from sslbench.errors import UsageError
from sslbench.runtime.folders import refuse_unwritable


@click.command("score")
@click.argument("files", nargs=-1, required=True, type=LocalPath())
@argument_options
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    data: str | None = flag(
        "COCO or kwcoco manifest, or Pascal VOC tree: its test split, else val, else all.", "-d", "--data"
    ),
    test_data: str | None = flag("Test images elsewhere; --data then gives the training boxes of the floor."),
    metric: Literal["coco", "voc07", "voc12"] = flag(
        "Average precision: COCO's, or Pascal VOC's of 2007 (11 points) or 2012 (area).",
        default="coco",
        show_default=True,
    ),
    oks_sigma: float | None = flag(
        "Sigma of every keypoint in the similarity of poses, where neither the category nor COCO's names give them.",
        within="(0, inf)",
    ),
    name: str = flag("Name of the detector in tables. Default: that of the file.", default=""),
    seed: int = flag("Seed of the bootstrap.", default=0, within="[0, 4294967295]", show_default=True),
    no_floors: bool = flag("Leave out the constant box.", default=False),
    out: str = flag("Folder of the records.", "-o", "--out", default="results", show_default=True),
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
