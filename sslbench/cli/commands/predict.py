"""`sslbench predict`."""

from pathlib import Path

import click

from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo, note
from sslbench.cli.flags import argument_options, flag, take_flags
from sslbench.cli.help import GroupedCommand, hide
from sslbench.data.regular import read_class_names, refuse_missing_file
from sslbench.runtime.folders import refuse_filled_folder, refuse_missing_folder

_UNUSED = {
    "layers": "The classifier takes the layer that it was trained on.",
    "label_column": "Labels are not read.",
    "test_data": "Give the images as --data; all splits are predicted.",
    "feature_dtype": "No features are stored.",
    "store": "No features are stored.",
    "on_error": "Unreadable images get a row with the reason.",
}


@click.command("predict", cls=GroupedCommand)
@argument_options
@take_flags(flags=options.EncodingFlags)
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    flags: options.EncodingFlags,
    csv_path: Path = flag("CSV file to write.", "--csv", required=True),
    classes_path: Path | None = flag(
        "Text file with one class name per line, for weights that do not name them. Default: numbers.", "--classes"
    ),
    probe: Path | None = flag(
        "NAME-ID.probe.torch beside a record: the classifier, or head for maps, that a protocol trained on features "
        "of --weights."
    ),
    maps: Path | None = flag(
        "Folder to write, for a probe of segmentation, depth and the like: a map per image, PNG of classes or .npy."
    ),
    top_k: int = flag("Most probable classes per image.", default=1, within="[1, inf)", show_default=True),
    threshold: float | None = flag(
        "Smallest probability of the predicted classes, for several labels per image. Default: 0.5.", within="[0, 1]"
    ),
) -> None:
    """Write the classes and probabilities of images to a CSV file, one row per image.

    The weights file has a classifier: of 'sslbench eval finetune', or the last layer of a supervised network of
    torchvision, timm or VISSL; or the probe of linear or linear-online is given with --probe. Unreadable images get a
    row with the reason. The probe of a dense protocol predicts a map per image, for which --maps names a folder.

    \b
    sslbench predict --weights finetuned.torch --data photos/ --csv out.csv
    sslbench predict -w moco.pth --probe results/linear/moco-ID.probe.torch -d photos/ --csv out.csv
    sslbench predict -w w.pth --probe results/depth/w-ID.probe.torch -d rooms/ --csv a.csv --maps a/
    sslbench predict -w resnet50.pth --classes imagenet.txt --top-k 5 -d photos/ --csv out.csv
    """  # noqa: D301
    terminal.show_messages()
    names = {str(parameter.name) for parameter in ctx.command.params}
    options.refuse(ctx, used=names - set(_UNUSED), what="predict", reasons=_UNUSED)
    remedy = "Give a weights file with a classifier, or that of the --probe."
    options.require_weights(ctx, flags.weights.weights, remedy)
    refuse_missing_folder(csv_path)
    settings = early.checked_run(flags)
    if probe is not None:
        refuse_missing_file(probe)
    if maps is not None:
        refuse_filled_folder(maps)

    classes = None if classes_path is None else read_class_names(classes_path)

    from sslbench.evaluation.prediction import predict

    request = early.request_of(flags)
    with terminal.progress() as progress:
        counts = predict(
            request,
            settings,
            csv_path,
            probe=probe,
            maps=maps,
            classes=classes,
            top_k=top_k,
            threshold=threshold,
            progress=progress,
        )
    unread = f"; {counts.unreadable} cannot be read, see the column error" if counts.unreadable else ""
    note(f"{counts.predicted} images{unread}")
    for written in (csv_path, *([] if maps is None else [maps])):
        echo(str(written.resolve()))


hide(command, _UNUSED)
