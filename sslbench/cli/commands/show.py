"""`sslbench show`: pictures of features and predictions, and printed definitions."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
import yaml

from sslbench import evaluation, protocols
from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo
from sslbench.cli.flags import argument_options, flag, take_flags
from sslbench.cli.help import GroupedCommand
from sslbench.cli.tables import show_value
from sslbench.config import describe
from sslbench.data.decode.reading import Reading
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.library.benchmarks import load_benchmark, source_text
from sslbench.names import FileKind, did_you_mean, find_file, list_names, plugin_remedy
from sslbench.results import plain
from sslbench.results.records import read
from sslbench.show.choices import DEFAULT_OBJECTS, AsTyped, Projection, check_projection, parse_point, parse_views

_IMAGES = {"points", "views", "foreground"}
_SCATTER = {"features_path", "labels_path", "projection"}


@click.command("show", cls=GroupedCommand)
@click.argument("words", nargs=-1, metavar="[NAME | features | [PROTOCOL] RECORD.json]")
@argument_options
@take_flags(flags=options.EncodingFlags)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    flags: options.EncodingFlags,
    out: Path = flag("Folder of the page.", "--out", "-o", default="show", show_default=True),
    points: tuple[str, ...] = flag("Point whose nearest patches are drawn; repeat.", "--point", metavar="IMAGE:X,Y"),
    views: str | None = flag("Pictures of patches: pca,attention,nearest. Default: all that the network has."),
    foreground: bool = flag("Colour the foreground only, found by the first principal component.", default=False),
    projection: Projection | None = flag("Projection of features. Default: tsne."),
    features_path: Path | None = flag("Features made elsewhere, .npy of one row each.", "--features"),
    labels_path: Path | None = flag("CSV of their labels, in the same order.", "--labels"),
) -> None:
    """Draw features or predictions, or print the definition of NAME.

    \b
    sslbench show --weights w.torch --data photos/          patches: PCA, attention, nearest
    sslbench show features --weights w.torch --data photos/ scatter of features by t-SNE
    sslbench show results/knn/w-0123.json                   best, median and worst test images
    sslbench show simclr                                    a recipe, benchmark, preset, format

    Pictures go to --out: PNG sheets, index.html (needs no network) and show.json. KIND/NAME selects one of several
    definitions with the same name: augment/simclr.
    """  # noqa: D301
    if this_process().world > 1:
        raise UsageError("show runs in one process", "Start it without torchrun or srun.")
    names = {str(parameter.name) for parameter in ctx.command.params}
    if out.suffix.lower() in (".html", ".png", ".json"):
        raise UsageError(f"--out {out}: show writes a page with pictures into a folder", f"Give --out {out.stem}.")
    if words == ("features",):
        options.refuse(ctx, used=names - _IMAGES, what="show features")
        files = draw_features(ctx, out, projection, features_path, labels_path, flags)
    elif words and words[-1].endswith(".json"):
        options.refuse(ctx, used=USED_WITH_A_RECORD, what="a record", reasons=RECORD_REASONS)
        files = draw_record(ctx, words, out, flags)
    elif words:
        options.refuse(ctx, used={"words"}, what=f"show {words[0]}, which prints a definition")
        if len(words) > 1:
            raise UsageError(f"'{words[-1]}' is not a record", "Give RECORD.json, or one NAME.")
        print_definition(words[0])
        return
    elif not flags.weights.weights:
        raise UsageError(
            "there is nothing to show",
            "Give --weights and --data, `features`, a RECORD.json, or a NAME (see: sslbench list).",
        )
    else:
        options.refuse(ctx, used=names - _SCATTER - UNUSED_OF_IMAGES, what="show of patches", reasons=IMAGE_REASONS)
        files = draw_images(ctx, out, points, views, foreground, flags)
    for file in files:
        echo(str(file.resolve()))


def print_definition(name: str) -> None:
    """Print the definition of a name, or of KIND/NAME."""
    if name in list_names("protocol"):
        _show_protocol(name)
        return
    kinds: tuple[FileKind, ...] = get_args(FileKind)
    for kind in kinds:
        if name.removeprefix(f"{kind}/") in list_names(kind):
            own = name.removeprefix(f"{kind}/")
            if kind == "benchmark":
                path, text = source_text(own)
            else:
                path = find_file(kind, own)
                text = path.read_bytes().decode("utf-8", "backslashreplace")
            echo(f"# {path}")
            echo(text.rstrip())
            if kind == "benchmark" and "\nextends:" in f"\n{text}":
                values = plain(load_benchmark(own))
                content = {key: value for key, value in values.items() if value not in (None, "", 0, [], {}, False)}
                echo("\n# merged with the file that it extends:")
                echo(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110).rstrip())
            return
    valid = {*list_names("protocol"), *(n for kind in kinds for n in list_names(kind))}
    if Path(name).exists():
        words = shlex.quote(name)
        raise UsageError(
            f"{name} is no result record, and nothing has this name",
            f"Pictures of weights: sslbench show --weights {words}; what a path holds: sslbench inspect {words}",
        )
    raise UsageError(f"there is nothing called '{name}'", plugin_remedy(name) or did_you_mean(name, valid))


def _show_protocol(name: str) -> None:
    protocol = protocols.find(name)
    echo(f"{name}, version {protocol.version}: {protocol.summary}\n")
    formatter = click.HelpFormatter(width=110)
    rows = describe(protocol.settings)
    formatter.write_dl(
        [
            (f"{r.name}={show_value(r.default)}", f"{r.meaning}{f', in {r.unit}' if r.unit else ''} [{r.type}]")
            for r in rows
        ]
    )
    echo(formatter.getvalue().rstrip())


_DEFAULT_FEATURES = 1000


def draw_features(
    ctx: click.Context,
    out: Path,
    projection: Projection | None,
    features: Path | None,
    labels: Path | None,
    flags: options.EncodingFlags,
) -> list[Path]:
    """Draw features in the plane; return the files."""
    terminal.show_messages()
    check_projection(projection or "tsne")
    if features is not None:
        used = ("words", "out", "projection", "features_path", "labels_path", "label_column", "limit", "seed")
        options.refuse(ctx, used=used, what="--features, which are already computed")
        early.refuse_missing_files(str(features), None if labels is None else str(labels))
    else:
        if labels is not None:
            raise UsageError("--labels belongs to --features", "Labels of images are in --data.")
        options.require_weights(ctx, flags.weights.weights, "Give weights and --data, or --features FILE.npy.")
        used_here = {str(p.name) for p in ctx.command.params} - {"test_data"}
        reasons = {"test_data": "Give the images as --data."}
        options.refuse(ctx, used=used_here, what="show features", reasons=reasons)
    settings = early.checked_run(flags)

    from sslbench.show.scatter import points_of_files, points_of_images, show_scatter

    most = flags.data.limit or _DEFAULT_FEATURES
    if features is not None:
        points = points_of_files(features, labels, flags.data.label_column, most, settings.seed)
    else:
        request = early.request_of(flags, limit=most)
        store = flags.run.store_folder()
        evaluation.check_writable(store)
        with terminal.progress() as progress:
            points = points_of_images(request, settings, store=store, progress=progress)
    reading = Reading(settings.decoder, settings.max_pixels)
    return show_scatter(points, projection or "tsne", settings.seed, out, command=str(ctx.obj), reading=reading)


UNUSED_OF_IMAGES = {"test_data", "feature_dtype", "store", "batch_size", "crop", "scales"}
IMAGE_REASONS = {
    "test_data": "Give the images as --data.",
    "feature_dtype": "No features are stored.",
    "store": "No features are stored.",
    "batch_size": "Few images are encoded.",
    "crop": "Whole images are shown; --resize sets their size.",
    "scales": "Patches of other scales are other patches; --resize sets the size.",
}
_DEFAULT_IMAGES = 12


def draw_images(
    ctx: click.Context,
    out: Path,
    points: Sequence[str],
    views: str | None,
    foreground: bool,
    flags: options.EncodingFlags,
) -> list[Path]:
    """Draw the patches of a sample of images; return the files."""
    terminal.show_messages()
    options.require_weights(ctx, flags.weights.weights)
    drawn, marked = parse_views(views), tuple(parse_point(text) for text in points)
    settings = early.checked_run(flags)

    from sslbench.show.images import Pictures, show_images

    chosen = Pictures(drawn, marked, foreground)
    images = flags.data.data or options.default_data(DEFAULT_OBJECTS, "kwcoco's toy shapes")
    limit = flags.data.limit or _DEFAULT_IMAGES
    request = early.request_of(flags, data=images, limit=limit)
    with terminal.progress() as progress:
        return show_images(request, settings, chosen, out, command=str(ctx.obj), progress=progress)


USED_WITH_A_RECORD = {
    *("words", "out", "data", "test_data", "image_column", "label_column", "limit"),
    *("device", "workers", "batch_size", "start_method", "store", "decoder", "backbone"),
}
RECORD_REASONS = dict.fromkeys(("weights", "layers", "resize", "crop", "seed", "precision"), "The record has its own.")
_DEFAULT_EACH = 6


def draw_record(
    ctx: click.Context,
    words: Sequence[str],
    out: Path,
    flags: options.EncodingFlags,
) -> list[Path]:
    """Draw the best, median and worst test images of a record; return the files."""
    if len(words) > 2:
        raise UsageError(
            f"show takes one record, not {len(words) - 1} words before it", "sslbench show knn RECORD.json"
        )
    terminal.show_messages()
    early.refuse_mistyped(backbone=flags.weights.backbone, device=flags.run.device)
    settings, _ = early.resolve_run({}, flags.run.settings)
    read(Path(words[-1]))

    from sslbench.show.results import RecordPictures, show_record

    typed = AsTyped(
        flags.data.data,
        flags.data.test_data,
        flags.data.image_column,
        flags.data.label_column,
        backbone=flags.weights.backbone,
        protocol=words[0] if len(words) == 2 else None,
        decoder=tuple(flags.run.settings["decoder"]) if "decoder" in flags.run.settings else None,
    )
    chosen = RecordPictures(typed, flags.data.limit or _DEFAULT_EACH, flags.run.store_folder())
    with terminal.progress() as progress:
        return show_record(Path(words[-1]), chosen, settings, out, command=str(ctx.obj), progress=progress)
