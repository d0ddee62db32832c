"""Flags that several commands share, as frozen dataclasses, and the refusal of flags that a command does not use."""

import dataclasses
import functools
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from sslbench import config, paths
from sslbench.backbones.layer_spec import SIZED_BY_THE_IMAGE, parse_layer, split_layers
from sslbench.backbones.named import is_pixels
from sslbench.cli.echo import LEVEL, echo, note
from sslbench.cli.words import AS_TYPED
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.names import list_names
from sslbench.preprocessing import IMAGENET_MEAN, Preprocessing
from sslbench.runtime.folders import refuse_address
from sslbench.text import visible

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class LocalPath(click.Path):
    """Type of an option that names a file or folder of this machine; an address or URL is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        refuse_address(value)
        return super().convert(value, param, ctx)


@dataclasses.dataclass(frozen=True)
class WeightsFlags:
    """Values of the flags that choose a backbone, its weights and layers; named as the fields of a `Request`."""

    weights: str | None
    backbone: str | None
    format: str | None
    allow_partial: bool
    stem: str | None
    trust_pickle: bool
    layers: str | None

    def loading(self) -> dict[str, Any]:
        """Return the arguments of `load_backbone`: all fields but `layers`."""
        return {key: value for key, value in dataclasses.asdict(self).items() if key != "layers"}

    def layer_names(self) -> tuple[str, ...]:
        """Return the layers in --layers; () without the flag."""
        return listed_layers(self.layers)


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """Values of the flags that choose the images and labels."""

    data: str | None
    test_data: str | None
    image_column: str | None
    label_column: str | None
    limit: int | None


@dataclasses.dataclass(frozen=True)
class PreprocessingFlags:
    """Values of the flags that replace parts of a backbone's preprocessing, as typed."""

    resize: str | None
    crop: str | None
    interpolation: str | None
    scales: str | None
    mean: str | None
    std: str | None

    def values(self) -> dict[str, Any]:
        """Return the given flags as fields of a `Preprocessing`."""
        values: dict[str, Any] = {}
        if self.resize is not None:
            # A prefix of the size, since two flags for one resize could contradict each other.
            longer = self.resize.startswith("longer:")
            size = self.resize.removeprefix("longer:")
            resize = None if self.resize == "none" else _pixels("--resize", size)
            values["resize"] = resize[0] if resize is not None and len(resize) == 1 else resize
            if longer:
                values["resized_side"] = "longer"
        if self.crop is not None:
            crop = None if self.crop == "none" else _pixels("--crop", self.crop)
            values["crop"] = crop * 2 if crop is not None and len(crop) == 1 else crop
        if self.interpolation is not None:
            values["interpolation"] = self.interpolation
        for key, text, of in (
            ("mean", self.mean, "one per channel: 0.1,0.2,0.15"),
            ("std", self.std, "one per channel: 0.1,0.2,0.15"),
            ("scales", self.scales, "1 for the image's own size: 1,0.7071,0.5"),
        ):
            if text is not None:
                values[key] = _numbers(f"--{key}", text, of)
        return values

    def check(self) -> None:
        """Refuse values that no backbone can have; those that are not given may be any."""
        values = config.build_partial(Preprocessing, self.values(), "preprocessing")
        # The number of channels is the backbone's and not known yet: any that fits the given values does for the
        # check.
        channels = len(values.get("mean") or values.get("std") or IMAGENET_MEAN)
        Preprocessing(**{"mean": (0.5,) * channels, "std": (0.5,) * channels, **values}).check()


def _pixels(flag: str, text: str) -> list[int]:
    parts = text.lower().split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise UsageError(f"{flag} {text}: should be a number of pixels, or HEIGHTxWIDTH such as 224x224")
    return [int(part) for part in parts]


def _numbers(flag: str, text: str, of: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag} {text}: should be numbers, {of}") from None


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Values of the flags that set how features are computed; named as the fields of `RunSettings`, and the store."""

    device: str | None
    precision: str | None
    feature_dtype: str | None
    batch_size: int | None
    workers: int | None
    seed: int | None
    on_error: str | None
    decoder: list[str] | None
    max_pixels: int | None
    start_method: str | None
    store: str | None

    def settings(self) -> dict[str, Any]:
        """Return the given flags as fields of `RunSettings`."""
        values = dataclasses.asdict(self)
        return {key: value for key, value in values.items() if key != "store" and value is not None}

    def store_folder(self) -> Path:
        """Return the folder of the feature store."""
        return store_folder(self.store)


def _warn_in_red(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        message = "--trust-pickle: a weights file may run any program on this machine with your rights."
        echo(before=click.style(f"warning: {visible(message)}", fg="red", bold=True), err=True)
    return value


def _split_names(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str] | None:
    return [name.strip() for name in value.split(",")] if value else None


def _set_level(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and ctx.meta.setdefault(LEVEL, param.name) != param.name:
        raise UsageError("--quiet and --verbose exclude each other", "Leave one out.")


def message_options(function: F) -> F:
    """Add --quiet and --verbose, on which `terminal.show_messages`, `terminal.progress` and `echo.note` depend."""
    quiet = click.option(
        "--quiet", "-q", is_flag=True, expose_value=False, callback=_set_level, help="Print results and warnings only."
    )
    verbose = click.option(
        "--verbose",
        "-v",
        is_flag=True,
        expose_value=False,
        callback=_set_level,
        help="Print details too, with time and module.",
    )
    return quiet(verbose(function))


trust_pickle = click.option(
    "--trust-pickle",
    is_flag=True,
    callback=_warn_in_red,
    help="Allow code in a weights file to run. Only for files from a source that you trust.",
)
image_column = click.option(
    "--image-col", "--image-column", "image_column", help="Column of image paths in a table. Default: recognised."
)
label_column = click.option(
    "--label-col", "--label-column", "label_column", help="Column of labels in a table. Default: recognised."
)
_weights = functools.partial(
    click.option,
    "--weights",
    "-w",
    help="Weights file; hf:OWNER/MODEL, timm:MODEL, vissl:NAME or https://...#sha256=... (downloaded); "
    "'random' (untrained, needs --backbone); 'pixels'.",
)
_WEIGHTS = [
    click.option(
        "--backbone",
        "-b",
        help="Architecture: resnet50, a timm name or my_module:callable. Default: read from the weights.",
    ),
    click.option("--format", help="Format of the weights (sslbench list formats). Default: recognised."),
    click.option(
        "--allow-partial", is_flag=True, help="Accept weights that fill only part of the backbone; marks results."
    ),
    click.option(
        "--stem",
        help="Rule that adapts the first convolution to the number of channels: average, repeat, sum, bands=3,2,1, "
        "random.",
    ),
    trust_pickle,
    click.option("--layers", help="Layers and pooling, e.g. res4:avg(8,3),res5avg. Default: the backbone's own."),
]
_DATA = [
    click.option(
        "--data", "-d", help="Folder, table (.csv .tsv .parquet), COCO/kwcoco manifest, torchvision:NAME, ..."
    ),
    click.option("--test-data", help="Test split, in the same forms. Default: found in --data, or split off."),
    image_column,
    label_column,
    click.option("--limit", type=click.IntRange(1), help="Largest number of samples per split, for a quick look."),
]
_PREPROCESSING = [
    click.option(
        "--resize", help="Shorter side in pixels, longer:PIXELS, or HEIGHTxWIDTH. Default: the backbone's own."
    ),
    click.option("--crop", help="Centre crop in pixels, HEIGHTxWIDTH, or 'none'. Default: the backbone's own."),
    click.option(
        "--interpolation",
        help="Filter of the resize: nearest, bilinear, bicubic, lanczos. Default: the backbone's own.",
    ),
    click.option("--scales", help="Image scales whose features are averaged: 1,0.7071,0.5. Default: 1."),
    click.option("--mean", help="Mean per channel, pixels from 0 to 1: 0.1,0.2,0.15. Default: the backbone's own."),
    click.option("--std", help="Standard deviation per channel, in the same way as --mean."),
]
_RUN = [
    click.option("--device", help="Device: auto, cpu, cuda, cuda:1, mps. Default: auto."),
    click.option(
        "--precision",
        help="Precision of the forward pass: fp32, bf16, fp16, int8 (features, on a processor). Default: fp32.",
    ),
    click.option("--feature-dtype", help="Dtype of stored features: float32, float16. Default: float32."),
    click.option("--batch-size", type=int, help="Number of images per forward pass. Default: 64."),
    click.option(
        "--workers", type=int, help="Processes that decode images; 0: the main process does. Default: by the cores."
    ),
    click.option(
        "--seed",
        type=click.IntRange(0, 2**32 - 1),
        help="Seed of splits, hold-outs, untrained weights and bootstrap. Default: 0.",
    ),
    click.option("--on-error", help="Unreadable images: stop (list them all) or skip (leave them out). Default: stop."),
    click.option(
        "--decoder",
        callback=_split_names,
        help="Decoder: reference; fast (large JPEGs at reduced size); my_module.my_function (tried first). Default: "
        "reference.",
    ),
    click.option("--max-pixels", type=int, help="Largest image that is decoded, in pixels. Default: 178956970."),
    click.option(
        "--start-method", help="Start of the decoding processes: auto, fork, spawn, forkserver. Default: auto."
    ),
    click.option("--store", help="Folder of the feature store. Default: in the user's cache folder."),
]


def take(flags: type[T], values: dict[str, Any]) -> T:
    """Remove the fields of the dataclass `flags` from the values of a command line; return them as an instance."""
    return flags(**{field.name: values.pop(field.name) for field in dataclasses.fields(flags)})  # type: ignore[arg-type]


def _as_one(name: str, flags: type[Any], options: list[Callable[[F], F]]) -> Callable[[F], F]:
    """Add options to a command that receives them as one argument `name`, an instance of the dataclass `flags`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def command(*args: Any, **values: Any) -> Any:
            own = take(flags, values)
            return function(*args, **values, **{name: own})

        # Decorators apply from the inside out: help lists the last one first.
        for option in reversed(options):
            command = option(command)
        return command  # type: ignore[return-value]

    return decorate


class _Several(click.Option):
    """Option that takes all words up to the next flag, protocol or KEY=VALUE: --weights a.pth b.pth."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Let the parser hand over the further words."""
        super().add_to_parser(parser, ctx)
        option = parser._long_opt[self.opts[0]]
        # click's options take a fixed number of words; its parser hands each word to `process`.
        take_one = option.process

        def process(value: str, state: Any) -> None:
            take_one(value, state)
            while state.rargs and not _ends_values(state.rargs[0]):
                take_one(state.rargs.pop(0), state)

        option.process = process


def _ends_values(word: str) -> bool:
    # Protocols may follow the weights: sslbench eval --weights a.pth b.pth knn.
    known = word.startswith("-") or word in list_names("protocol")
    # The '=' of an address belongs to its query.
    return known or ("=" in word and not re.match(r"[A-Za-z][\w+.-]*://", word) and not Path(word).exists())


weights_options = _as_one("weights", WeightsFlags, [_weights(), *_WEIGHTS])
several_weights_options = _as_one("weights", WeightsFlags, [_weights(cls=_Several, multiple=True), *_WEIGHTS])
data_options = _as_one("data", DataFlags, _DATA)
preprocessing_options = _as_one("preprocessing", PreprocessingFlags, _PREPROCESSING)
run_options = _as_one("run", RunFlags, _RUN)


def refuse(ctx: click.Context, *, used: Collection[str], what: str, reasons: Mapping[str, str] | None = None) -> None:
    """Refuse flags typed on the command line that would have no effect."""
    for parameter in ctx.command.params:
        name = parameter.name
        if name is None or name in used or not isinstance(parameter, click.Option) or not parameter.expose_value:
            continue  # --quiet and --verbose have an effect in every case
        if is_typed(ctx, name):
            off = ctx.params.get(name) is False and parameter.secondary_opts  # --no-copies
            flag = (parameter.secondary_opts if off else parameter.opts)[0]
            raise UsageError(f"{flag} does not go with {what}", (reasons or {}).get(name))


def as_flags(ctx: click.Context, settings: dict[str, Any]) -> dict[str, Any]:
    """Remove data=, test_data=, weights= and out= from key=value, and return them as values of their flags."""
    found: dict[str, Any] = {}
    for parameter in ctx.command.params:
        name = str(parameter.name)
        if name not in AS_TYPED or name not in settings:
            continue
        if is_typed(ctx, name):
            raise UsageError(f"{name}= and {parameter.opts[0]} are the same flag", "Leave one out.")
        value = settings.pop(name)
        value = value[0] if isinstance(value, list) else value  # of a sweep
        found[name] = (value,) if parameter.multiple else value
        ctx.set_parameter_source(name, ParameterSource.COMMANDLINE)  # `refuse` treats both forms alike
    return found


def is_typed(ctx: click.Context, name: str) -> bool:
    """Return whether a parameter was typed on the command line, by its Python name; defaults do not count."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def refuse_loading_flags(ctx: click.Context, weights: str | None) -> None:
    """Refuse flags about a weights file for an untrained network and for pixels."""
    if weights == "random" or is_pixels(weights or ""):
        unused = {"format", "allow_partial", "trust_pickle"}
        refuse(ctx, used={str(p.name) for p in ctx.command.params} - unused, what=f"--weights {weights}")


def listed_layers(text: str | None) -> tuple[str, ...]:
    """Return the layers in a flag; () without it.

    Example:
        >>> listed_layers("res4:avg(8,3),res5avg")
        ('res4:avg(8,3)', 'res5avg')
    """
    layers = tuple(split_layers(text)) if text else ()
    for layer in layers:
        # Pools whose size follows from the image are no words of the grammar of layers.
        if layer.partition(":")[2] not in SIZED_BY_THE_IMAGE:
            parse_layer(layer)
    return layers


def gigabytes(text: str) -> float:
    """Return the size given as --max-memory in GB (10^9 bytes).

    Example:
        >>> gigabytes("8"), gigabytes("8GB"), gigabytes("500MB")
        (8.0, 8.0, 0.5)
    """
    number = text.upper().replace(" ", "").removesuffix("B")
    # Decimal units, as disks and SLURM count: 8GB are 8 * 10^9 bytes.
    scale = {"M": 1e-3, "G": 1.0, "T": 1e3}.get(number[-1:])
    try:
        size = float(number if scale is None else number[:-1]) * (scale or 1.0)
    except ValueError:
        size = 0.0
    if not 0 < size < float("inf"):
        raise UsageError(f"--max-memory {text}: should be a size such as 8GB or 500MB")
    return size


def default_data(data: str = "sklearn:digits", title: str = "the handwritten digits bundled with scikit-learn") -> str:
    """Return the data set used without --data, and tell the user."""
    if this_process().rank == 0:
        note(f"no --data: using {title} ({data})")
    return data


def store_folder(folder: str | None) -> Path:
    """Return the folder of the feature store: --store, by default in the user's cache."""
    # A feature store is memory-mapped and locked, which no bucket can do.
    refuse_address(folder or "")
    return Path(folder) if folder else paths.cache_dir() / "features"
