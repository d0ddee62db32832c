"""Flags that several commands share, as frozen dataclasses, and the refusal of flags that a command does not use."""

import dataclasses
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
from sslbench.cli.flags import flag, flags_of
from sslbench.cli.words import AS_TYPED
from sslbench.distributed import this_process
from sslbench.errors import UsageError
from sslbench.evaluation.settings import RunSettings
from sslbench.names import list_names
from sslbench.preprocessing import IMAGENET_MEAN, Preprocessing
from sslbench.runtime.folders import refuse_address
from sslbench.text import visible

F = TypeVar("F", bound=Callable[..., Any])


class Several(click.Option):
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
    if word.startswith("-") or word in list_names("protocol"):
        return True
    # The '=' of an address belongs to its query.
    return "=" in word and not re.match(r"[A-Za-z][\w+.-]*://", word) and not Path(word).exists()


def _warn_in_red(ctx: click.Context, param: click.Parameter, value: bool) -> bool:
    if value:
        message = "--trust-pickle: a weights file may run any program on this machine with your rights."
        echo(before=click.style(f"warning: {visible(message)}", fg="red", bold=True), err=True)
    return value


@dataclasses.dataclass(frozen=True)
class NetworkFlags:
    """Flags that choose a backbone and its layers; named as the fields of a `Request`."""

    backbone: str | None = flag(
        "Architecture: resnet50, a timm name or my_module:callable. Default: read from the weights.",
        *("--backbone", "-b"),
    )
    format: str | None = flag("Format of the weights (sslbench list formats). Default: recognised.")
    allow_partial: bool = flag("Accept weights that fill only part of the backbone; marks results.", default=False)
    stem: str | None = flag(
        "Rule that adapts the first convolution to the number of channels: average, repeat, sum, bands=3,2,1, random."
    )
    trust_pickle: bool = flag(
        "Allow code in a weights file to run. Only for files from a source that you trust.",
        default=False,
        callback=_warn_in_red,
    )
    layers: str | None = flag("Layers and pooling, e.g. res4:avg(8,3),res5avg. Default: the backbone's own.")

    def loading(self) -> dict[str, Any]:
        """Return the arguments of `load_backbone`: all fields but `layers`."""
        return {key: value for key, value in vars(self).items() if key != "layers"}

    def layer_names(self) -> tuple[str, ...]:
        """Return the layers in --layers; () without the flag.

        Example:
            >>> NetworkFlags(layers="res4:avg(8,3),res5avg").layer_names()
            ('res4:avg(8,3)', 'res5avg')
        """
        layers = tuple(split_layers(self.layers)) if self.layers else ()
        for layer in layers:
            # Pools whose size follows from the image are no words of the grammar of layers.
            if layer.partition(":")[2] not in SIZED_BY_THE_IMAGE:
                parse_layer(layer)
        return layers


WEIGHTS = (
    "Weights file; hf:OWNER/MODEL, timm:MODEL, vissl:NAME or https://...#sha256=... (downloaded); 'random' (untrained, "
    "needs --backbone); 'pixels'."
)
"""Help of --weights."""
WEIGHTS_REMEDY = "Give a weights file, 'random' (with --backbone) or 'pixels'."
"""Remedy where it is missing."""


@dataclasses.dataclass(frozen=True)
class WeightsFlags(NetworkFlags):
    """Flags that choose a backbone, its weights and layers."""

    weights: str | None = flag(WEIGHTS, "--weights", "-w")


@dataclasses.dataclass(frozen=True)
class DataFlags:
    """Flags that choose the images and labels."""

    data: str | None = flag(
        "Folder, table (.csv .tsv .parquet), COCO/kwcoco manifest, torchvision:NAME, ...", "--data", "-d"
    )
    test_data: str | None = flag("Test split, in the same forms. Default: found in --data, or split off.")
    image_column: str | None = flag(
        "Column of image paths in a table. Default: recognised.", "--image-col", "--image-column"
    )
    label_column: str | None = flag(
        "Column of labels in a table. Default: recognised.", "--label-col", "--label-column"
    )
    limit: int | None = flag("Largest number of samples per split, for a quick look.", within="[1, inf)")


@dataclasses.dataclass(frozen=True)
class PreprocessingFlags:
    """Flags that replace parts of a backbone's preprocessing, as typed."""

    resize: str | None = flag("Shorter side in pixels, longer:PIXELS, or HEIGHTxWIDTH. Default: the backbone's own.")
    crop: str | None = flag("Centre crop in pixels, HEIGHTxWIDTH, or 'none'. Default: the backbone's own.")
    interpolation: str | None = flag(
        "Filter of the resize: nearest, bilinear, bicubic, lanczos. Default: the backbone's own."
    )
    scales: str | None = flag("Image scales whose features are averaged: 1,0.7071,0.5. Default: 1.")
    mean: str | None = flag("Mean per channel, pixels from 0 to 1: 0.1,0.2,0.15. Default: the backbone's own.")
    std: str | None = flag("Standard deviation per channel, in the same way as --mean.")

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
            if text is None:
                continue
            try:
                values[key] = [float(part) for part in text.split(",")]
            except ValueError:
                raise UsageError(f"--{key} {text}: should be numbers, {of}") from None
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


@dataclasses.dataclass(frozen=True)
class RunFlags:
    """Flags that set how features are computed, as fields of `RunSettings`, and the store."""

    settings: Mapping[str, Any] = flags_of(RunSettings)
    store: str | None = flag("Folder of the feature store. Default: in the user's cache folder.")

    @property
    def device(self) -> str | None:
        """Device in --device."""
        return self.settings.get("device")

    def store_folder(self) -> Path:
        """Return the folder of the feature store."""
        return store_folder(self.store)


@dataclasses.dataclass(frozen=True)
class EncodingFlags:
    """Flags of a command that encodes images with one network."""

    weights: WeightsFlags
    data: DataFlags
    preprocessing: PreprocessingFlags
    run: RunFlags


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


def require_weights(ctx: click.Context, weights: str | None, remedy: str = WEIGHTS_REMEDY) -> None:
    """Refuse a command without --weights, and flags about a weights file for an untrained network and for pixels."""
    if not weights:
        raise UsageError("--weights is missing", remedy)
    if weights == "random" or is_pixels(weights):
        unused = {"format", "allow_partial", "trust_pickle"}
        refuse(ctx, used={str(p.name) for p in ctx.command.params} - unused, what=f"--weights {weights}")


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
