"""Flags that several commands share."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from sslbench import paths
from sslbench.cli.echo import echo
from sslbench.distributed import this_process
from sslbench.text import visible

F = TypeVar("F", bound=Callable[..., Any])


def _warn_in_red(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        message = "--trust-pickle: a weights file that asks for it may run any program on this machine, as you."
        echo(before=click.style(f"warning: {visible(message)}", fg="red", bold=True), err=True)
    return value


trust_pickle = click.option(
    "--trust-pickle",
    is_flag=True,
    callback=_warn_in_red,
    help="Run code that a weights file holds, if it asks for it. Only for files whose maker you trust.",
)
_WEIGHTS = [
    click.option("--weights", help="A checkpoint file; 'random' (untrained, needs --backbone); 'pixels'."),
    click.option("--backbone", help="resnet50, a timm name, or my_module:callable; needed when it is not recognised."),
    click.option(
        "--format", help="Whose key names the weights have; recognised when left out (sslbench list formats)."
    ),
    click.option(
        "--allow-partial", is_flag=True, help="Evaluate weights that do not fill the backbone; marks results."
    ),
    click.option(
        "--stem", help="Map a stem made for another number of channels: average, repeat, sum, bands=3,2,1, random."
    ),
    trust_pickle,
    click.option("--layers", help="Layers and pooling, e.g. res4:avg(8,3),res5avg. Default: the backbone's own."),
]
_DATA = [
    click.option("--data", help="Folder, table (.csv .tsv .parquet), COCO/kwcoco manifest, torchvision:NAME, ..."),
    click.option("--test-data", help="The same for the test part, when it lies elsewhere."),
    click.option("--image-col", "--image-column", "image_column", help="Column of a table that holds the image paths."),
    click.option("--label-col", "--label-column", "label_column", help="Column of a table that holds the labels."),
    click.option("--limit", type=click.IntRange(1), help="At most this many samples per part: a first look."),
]
_PREPROCESSING = [
    click.option("--resize", help="Shorter side in pixels, or HEIGHTxWIDTH. Default: the backbone's own."),
    click.option("--crop", help="Centre crop in pixels, HEIGHTxWIDTH, or 'none'."),
    click.option("--interpolation", help="Filter of the resize: nearest, bilinear, bicubic, lanczos."),
    click.option("--mean", help="Per channel, of values from 0 to 1: 0.1,0.2,0.15,0.3. Default: the backbone's own."),
    click.option("--std", help="The same for the standard deviation that is divided by."),
]
_RUN = [
    click.option("--device", help="auto, cpu, cuda, cuda:1, mps."),
    click.option("--precision", help="fp32, bf16, fp16: of the backbone's computation."),
    click.option("--feature-dtype", help="float32, float16: of the stored features."),
    click.option("--batch-size", type=int, help="Images per forward pass."),
    click.option("--workers", type=int, help="Processes that decode images; 0: none."),
    click.option("--seed", type=int, help="Of splits, held-out parts, untrained weights and bootstrap."),
    click.option("--on-error", help="stop, skip: what to do about images that cannot be read."),
    click.option(
        "--decoder",
        callback=lambda _, __, value: value and [name.strip() for name in value.split(",")],
        help="reference; fast: large JPEGs at a reduced size; my_module.my_function: yours, asked first.",
    ),
    click.option("--max-pixels", type=int, help="Larger pictures count as unreadable. Default: 178956970."),
    click.option("--start-method", help="Of the processes that decode: auto, fork, spawn, forkserver."),
    click.option("--store", help="Folder of the feature store. Default: in the user's cache folder."),
]


def _add(options: list[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


weights_flags = _add(_WEIGHTS)
data_flags = _add(_DATA)
preprocessing_flags = _add(_PREPROCESSING)
run_flags = _add(_RUN)

WEIGHTS_KEYS = ("weights", "backbone", "format", "allow_partial", "trust_pickle", "stem")
RUN_KEYS = (
    *("device", "precision", "feature_dtype", "batch_size", "workers", "seed", "on_error"),
    *("decoder", "max_pixels", "start_method"),
)


def refuse(ctx: click.Context, *, used: Collection[str], what: str, reasons: Mapping[str, str] | None = None) -> None:
    """Refuse flags typed on the command line that would have no effect.

    Args:
        ctx: the context of the command.
        used: names of the parameters that have an effect.
        what: the case at hand, for the message: 'detection', '--features', 'label maps'.
        reasons: parameter -> sentence about the alternative.

    Raises:
        UsageError: such a flag was typed; the message names it.
    """
    from sslbench.errors import UsageError

    for parameter in ctx.command.params:
        name = parameter.name
        if name is None or name in used or not isinstance(parameter, click.Option):
            continue
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[0]} does not go with {what}", (reasons or {}).get(name))


def given(flags: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The flags among `keys` that were given."""
    return {key: flags[key] for key in keys if flags.get(key) is not None}


def preprocessing_values(flags: dict[str, Any]) -> dict[str, Any]:
    """What --resize, --crop, --interpolation, --mean and --std ask for, as values of a Preprocessing.

    Raises:
        UsageError: a size that is no size, or a number that is none.
    """
    from sslbench.errors import UsageError

    def size(text: str, flag: str) -> list[int]:
        parts = text.lower().split("x")
        if not 1 <= len(parts) <= 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
            raise UsageError(f"{flag} {text}: should be a number of pixels, or HEIGHTxWIDTH such as 224x224")
        return [int(part) for part in parts]

    values: dict[str, Any] = {}
    if flags.get("resize") is not None:
        resize = None if flags["resize"] == "none" else size(flags["resize"], "--resize")
        values["resize"] = resize[0] if resize is not None and len(resize) == 1 else resize
    if flags.get("crop") is not None:
        crop = None if flags["crop"] == "none" else size(flags["crop"], "--crop")
        values["crop"] = crop * 2 if crop is not None and len(crop) == 1 else crop
    if flags.get("interpolation") is not None:
        values["interpolation"] = flags["interpolation"]
    for key in ("mean", "std"):
        if flags.get(key) is not None:
            try:
                values[key] = [float(part) for part in flags[key].split(",")]
            except ValueError:
                raise UsageError(f"--{key} {flags[key]}: should be numbers, one per channel: 0.1,0.2,0.15") from None
    return values


def gigabytes(text: str) -> float:
    """What --max-memory asks for, in GB (10^9 bytes): '8', '8GB', '500MB'.

    Raises:
        UsageError: it is no size.
    """
    from sslbench.errors import UsageError

    number = text.upper().replace(" ", "").removesuffix("B")
    scale = {"M": 1e-3, "G": 1.0, "T": 1e3}.get(number[-1:])
    try:
        size = float(number if scale is None else number[:-1]) * (scale or 1.0)
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise UsageError(f"--max-memory {text}: should be a size such as 8GB or 500MB")
    return size


def default_data() -> str:
    """What is evaluated without --data; the user is told."""
    if this_process().rank == 0:
        echo("no --data: using the handwritten digits bundled with scikit-learn (sklearn:digits)", err=True)
    return "sklearn:digits"


def store_folder(given: str | None) -> Path:
    """The feature store: --store, else the one in the user's cache."""
    return Path(given) if given else paths.cache_dir() / "features"
