"""`sslbench inspect`."""

import dataclasses
import json
import shlex
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.backbones import named
from sslbench.backbones.named import is_named
from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo, echo_text
from sslbench.cli.flags import argument_options, flag, same
from sslbench.data.wording import some
from sslbench.errors import DataError, SslbenchError
from sslbench.features import external_files
from sslbench.features.store import StoreEntry
from sslbench.names import list_names
from sslbench.paths import file_url_path
from sslbench.results import plain, records
from sslbench.results.records import is_record
from sslbench.targets.target import OfClasses
from sslbench.weights.reading.folders import is_distributed, is_model, is_unfinished, newest_checkpoint
from sslbench.weights.reading.sniff import SUFFIXES

if TYPE_CHECKING:
    from sslbench.backbones.describe import Description
    from sslbench.weights.reading.files import WeightsFile

_DATA_SUFFIXES = (".csv", ".tsv", ".parquet", ".json", ".zip", ".jsonl")
_SHARD_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_OLD_TORCH = ("sys_info", "pickle", "storages", "tensors")
"""Names of members of the tar files that torch.save wrote before version 0.4."""


@click.command("inspect")
@click.argument("what")
@argument_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    what: str,
    backbone: str | None = flag("Architecture to check the weights against. Default: read from the file."),
    format_: str | None = flag("Format of the weights (sslbench list formats). Default: recognised.", "--format"),
    as_json: bool = flag("Print the description of a weights file as JSON.", "--json", default=False),
    trust_pickle: bool = same(options.NetworkFlags, "trust_pickle"),
) -> int:
    """Describe WHAT: a weights file, a detector, a pretraining run, a data set, a result record, or stored features.

    Weights are also the folder of a model (save_pretrained), hf:OWNER/MODEL, timm:MODEL and vissl:NAME.
    Format, sub-network, architecture, heads, input, and whether they load. Exit code 1 if they do not.
    A trained detector, or a checkpoint of its training: architecture, classes, iterations, recipe.
    """
    terminal.show_messages()
    what = str(file_url_path(what) or what)
    if _is_model(what):
        early.refuse_mistyped([what], backbone=backbone)
        early.refuse_wrong_network(format_, None)
        return _model(what, backbone, format_, as_json, trust_pickle)
    path = _weights_of_run(Path(what))
    remote_or_shard = "://" in what or _is_shard(path)
    likely = path.suffix.lower() in SUFFIXES or is_unfinished(path) or is_distributed(path)
    # Published checkpoints have all kinds of names: what has the suffix of no known data may be one.
    likely = likely or (path.is_file() and path.suffix.lower() not in _DATA_SUFFIXES)
    if not (backbone or format_) and _features_in_one_file(path):
        return 0
    if not remote_or_shard and (likely or backbone or format_):
        early.refuse_mistyped([str(path)], backbone=backbone)
        early.refuse_wrong_network(format_, None)
        early.refuse_other_files([str(path)])
        return _weights(str(path), backbone, format_, as_json, trust_pickle)
    options.refuse(ctx, used=(), what=f"{what}, which is not a weights file")
    protocols = (path / name for name in list_names("protocol"))
    if not remote_or_shard and path.is_dir() and (path / "meta.json").is_file() and list(path.glob("*.npy*")):
        _features(path)
    elif path.is_file() and is_record(path):
        _record(path)
    elif number := sum(is_record(file) for folder in (path, *protocols) for file in folder.glob("*.json")):
        echo(f"{path}: {number} result record{'s' if number > 1 else ''} of sslbench")
        echo(f"  sslbench leaderboard {shlex.quote(str(path))}  prints one table of them")
    else:
        early.refuse_mistyped(data=[what])
        _data(what)
    return 0


def _weights_of_run(path: Path) -> Path:
    """Return the weights of a run's folder, or its newest checkpoint before its end; else the path itself.

    Of the folder of checkpoints it is the newest one.
    """
    weights, checkpoints = path / "weights.torch", path / "checkpoints"
    is_run = (path / "config.yaml").is_file() and (weights.is_file() or checkpoints.is_dir())
    has_checkpoints = path.is_dir() and any(path.glob("step_*.ckpt"))
    if not is_run and not has_checkpoints:
        return path
    if is_run and weights.is_file():
        return weights
    found = newest_checkpoint(path if has_checkpoints else checkpoints)
    if found is None:
        raise DataError(f"{path} is a pretraining run without weights and checkpoints yet")
    return found


def _is_shard(path: Path) -> bool:
    """Return whether a name with .tar means image shards; most checkpoints named so (.pth.tar) are no tar files."""
    name = path.name.lower()
    if not name.endswith(_SHARD_SUFFIXES):
        return False
    if not path.is_file():
        return any(sign in name for sign in "{*?[")
    if not name.endswith(".tar"):
        return True
    try:
        with tarfile.open(path) as archive:
            # Only the first: a shard may have gigabytes.
            first = archive.next()
    except (tarfile.TarError, OSError):
        return False
    # torch.save wrote tar files before version 0.4, which are weights and no images.
    return first is None or first.name not in _OLD_TORCH


def _is_model(what: str) -> bool:
    """Return whether the argument means weights by name, or the folder of a model; hf: is also that of data sets."""
    scheme, _, place = what.partition(":")
    if scheme == "hf" and place and is_named(what):
        folder = Path(place).expanduser()
        if folder.is_dir():
            return is_model(folder)
        from huggingface_hub import constants

        cached = "--".join(["datasets", *place.partition("@")[0].split("/")[:2]])
        return "?" not in place and not (Path(constants.HF_HUB_CACHE) / cached).is_dir()
    return (scheme in ("timm", "vissl") and is_named(what)) or (Path(what).is_dir() and is_model(Path(what)))


def _model(what: str, backbone: str | None, format_: str | None, as_json: bool, trust_pickle: bool) -> int:
    """Describe weights by name, or a folder of them."""
    try:
        return _weights(what, backbone, format_, as_json, trust_pickle)
    except SslbenchError as error:
        if not what.startswith("hf:") or Path(what.removeprefix("hf:")).exists():
            raise
        remedy = f"{error.remedy}\n" if error.remedy else ""
        # hf: names models and data sets alike, and only the Hub knows which.
        raise type(error)(error.message, f"{remedy}For a data set, write {what}?download=1.") from error


def _weights(what: str, backbone: str | None, format_: str | None, as_json: bool, trust_pickle: bool) -> int:
    from sslbench.backbones import describe, load

    file, path = load.read_weights(what, trust_pickle=trust_pickle), Path(what)
    backbone = named.backbone_of(what, backbone)
    # Top-level tensors of a detector file are its backbone; a detector's training checkpoint has no loadable ones.
    if file.content.keys() & {"detector", "about"} and not _detector(file, path, as_json) and not (backbone or format_):
        return 0
    description = describe.describe(file, backbone=backbone, format=format_)
    if as_json:
        echo(description_json(path, description))
    else:
        echo_text(page(path, description), indent=15)
    return 1 if description.problem else 0


def _detector(file: "WeightsFile", path: Path, as_json: bool) -> bool:
    """Print the detector in a file; return whether the file also holds a backbone to describe."""
    from sslbench.detection import saved

    about = saved.about_of(file)
    if about is None:
        return True
    rows = saved.rows(file, about)
    if as_json:
        described = dict(rows) | {"path": str(path), "settings": json.loads(about.text())}
        echo(json.dumps(described, indent=1, allow_nan=False))
        return False
    echo("\n".join([str(path), *(f"  {label:<13}{value}" for label, value in rows)]))
    return "state_dict" in file.content


def _features_in_one_file(path: Path) -> bool:
    """Print the features in a file that `extract -o` wrote; return whether it is one."""
    found = external_files.read_summary(path)
    if found is None:
        return False
    name = shlex.quote(str(path))
    echo(f"{path}: features of {found.images:,} images, {found.dimensions} {found.dtype} each (sslbench extract -o)")
    echo(f"  splits       {', '.join(f'{split} {count:,}' for split, count in found.splits.items())}")
    echo(f"  columns      {', '.join(found.columns)}")
    if "label" in found.columns:
        echo(f"  evaluate     sslbench eval knn --features {name} --labels {name}")
    return True


def _data(what: str) -> None:
    from sslbench.data.open import open_data

    for split, source in open_data(what).items():
        echo(f"{split}: {len(source)} images, {source.target.name} label, {len(source.target.classes)} classes")
        if isinstance(source.target, OfClasses):
            counts = source.target.counts()
            shown = [f"{name} {count}" for name, count in zip(source.target.classes, counts, strict=True)]
            echo("  " + ", ".join(shown[:20]) + (f", ... {len(shown) - 20} more" if len(shown) > 20 else ""))
        for note in source.notes:
            echo(f"  {note}")
    echo(f"data: sslbench check-data {shlex.quote(what)} checks it")


def _record(path: Path) -> None:
    """Print the measurement of a result record, and the commands that take it."""
    result = records.read(path)
    metric, name = result.metrics[result.headline], shlex.quote(str(path))
    value = "n/a" if metric.value is None else f"{metric.value:.2f}"
    if metric.low is not None and metric.high is not None:
        value += f" (95 % interval {metric.low:.2f} .. {metric.high:.2f})"
    test = result.data.test
    rows = [
        ("record", f"result of `sslbench eval {result.protocol.name}`, {result.created}"),
        ("weights", f"{result.weights.name}, layer {result.layer}"),
        (result.headline, value),
        ("data", f"{test.n_used:,} of {test.n:,} test samples of {test.name}"),
        ("command", result.command),
        ("see", f"sslbench show {name}  draws its best and worst test images"),
        ("", f"sslbench compare {name} OTHER.json  tests whether two records differ"),
        ("", f"sslbench leaderboard {shlex.quote(str(path.parent))}  prints one table of all records there"),
    ]
    echo("\n".join([str(path), *(f"  {label:<13}{value}" for label, value in rows)]))


def _features(path: Path) -> None:
    entry = StoreEntry(path)
    meta = entry.meta()
    echo(f"{path}: features of {meta.get('rows')} images of {meta.get('data')}")
    for layer in entry.layers():
        array = entry.read(layer)
        echo(f"  {layer}: {array.shape[0]} x {array.shape[1]} {array.dtype}")
    if list(path.glob("*.partial")):
        echo("  unfinished extraction: run the same command again to continue it")
    echo(json.dumps(meta.get("key"), indent=1))


_SHOWN = 12


def description_json(path: Path, description: "Description") -> str:
    """Return the description of a weights file as JSON."""
    return json.dumps(plain({"path": str(path), **dataclasses.asdict(description)}), indent=1, allow_nan=False)


def page(path: Path, description: "Description") -> str:
    """Return the description of a weights file, one label and value per line."""
    rows = [*_file_rows(description), *_format_rows(description), *_backbone_rows(description)]
    if description.problem:
        message, *remedies = description.problem.splitlines()
        rows += [("problem", message), *(("", remedy) for remedy in remedies)]
    text = [str(path), *(f"  {label:<13}{value}" for label, value in rows)]
    if not description.format:
        keys = list(description.tensors.items())
        width = max((len(name) for name, _ in keys[:_SHOWN]), default=0)
        text += [f"    {name:<{width}}  {_shape(shape)}" for name, shape in keys[:_SHOWN]]
        text += [f"    ... and {len(keys) - _SHOWN} more (--json lists all)"] if len(keys) > _SHOWN else []
    return "\n".join(text)


def _file_rows(description: "Description") -> list[tuple[str, str]]:
    count = description.size
    size = f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count:,} bytes"
    rows = [("file", f"{description.container}, {size}, sha256 {description.sha256}")]
    if description.beside:
        texts = [(key, " ".join(str(value).split())) for key, value in list(description.beside.items())[:6]]
        shown = [f"{key}: {text if len(text) <= 40 else text[:37] + '...'}" for key, text in texts]
        rows.append(("beside", ", ".join(shown) + (", ..." if len(description.beside) > 6 else "")))
    if description.stubbed:
        rows.append(("not run", f"code of {some(description.stubbed)}; their tensors are read as data"))
    if description.suspicious:
        rows.append(("suspicious", "names functions that weights do not need: " + ", ".join(description.suspicious)))
    return rows


def _format_rows(description: "Description") -> list[tuple[str, str]]:
    place = f"at '{description.where}'" if description.where else "at the top of the file"
    tensors = f"{len(description.tensors)} {place}"
    if not description.format:
        return [("format", "not recognised"), ("tensors", tensors)]
    variant = f":{description.variant}" if description.variant else ""
    rows = [
        ("format", f"{description.format}{variant}: {description.title}"),
        ("because", description.why),
        ("tensors", tensors),
    ]
    others = [f"{description.format}:{name}" for name in description.other_networks] + [*description.elsewhere]
    if description.prefix or others:
        network = description.network + (", " if description.network and description.prefix else "")
        network += f"keys start with '{description.prefix}'" if description.prefix else ""
        network = network or f"the one {place}"
        also = ", ".join(f"--format {other}" for other in others)
        rows.append(("sub-network", network + (f" (the file also has: {also})" if others else "")))
    if description.heads:
        shown = [f"{name} {_shape(shape)}" for name, shape in list(description.heads.items())[:4]]
        rows.append(
            (
                "heads",
                ", ".join(shown) + (f", ... {len(description.heads)} tensors" if len(description.heads) > 4 else ""),
            )
        )
    if description.ignored:
        rows.append(("ignored", ", ".join(description.ignored)))
    return rows


def _backbone_rows(description: "Description") -> list[tuple[str, str]]:
    if not description.format:
        return []
    rows = []
    described = [description.backbone] * bool(description.backbone) + _architecture(description)
    rows += [("" if number else "backbone", line) for number, line in enumerate(described)]
    dtypes = ", ".join(f"{count} {dtype}" for dtype, count in description.dtypes.items())
    rows.append(("parameters", f"{description.parameters:,} ({dtypes} tensors)"))
    if description.preprocessing is not None:
        rows += [("" if number else "input", line) for number, line in enumerate(_input(description))]
        rows += [("strides", description.strides)] if description.strides else []
        rows.append(("loads", description.report))
        rows.append(("layers", f"{', '.join(description.layers)} (default {description.layers[0]})"))
        if description.head_layers:
            rows.append(("head layers", ", ".join(f"{name} {kind}" for name, kind in description.head_layers.items())))
        if description.classifier:
            rows.append(("classifier", f"{description.classifier} (sslbench predict)"))
        rows.append(("tensor hash", description.tensors_sha256))
    return rows


def _architecture(description: "Description") -> list[str]:
    numbers = dict(description.architecture)
    if not numbers:
        return []
    lines = [str(numbers.pop("kind"))]
    if "blocks" in numbers:
        blocks = "-".join(map(str, numbers["blocks"]))
        groups = f", {numbers['groups']} groups" if numbers["groups"] > 1 else ""
        lines[0] += f", {numbers['depth']} layers deep ({blocks}), width {numbers['width']}{groups}"
        lines[0] += ", CIFAR's stem" if numbers["stem"] == "cifar" else ""
        lines[0] += f", {_channels(numbers['input_channels'])}"
    else:
        lines[0] += f", {_channels(numbers['channels'])}"
        lines += [f"note: {note}" for note in numbers.get("notes", ())]
    return lines


def _channels(count: int) -> str:
    return f"{count} input channel{'s' if count > 1 else ''}"


def _input(description: "Description") -> list[str]:
    used = description.preprocessing
    if used is None:
        return []
    spaces = {
        "RGB": "RGB",
        "BGR": "BGR in the file, turned to RGB on loading",
        "lightness": "lightness (L of CIE Lab / 100) of RGB",
    }
    order = spaces.get(description.space, f"{used.channels} channel{'s' if used.channels > 1 else ''}")
    mean, std = ("(" + ", ".join(f"{value:.4g}" for value in values) + ")" for values in (used.mean, used.std))
    resize = (
        "images keep their size"
        if used.resize is None
        else f"{used.interpolation} resize to {_pixels(used.resize, used.resized_side)}"
    )
    crop = f", centre crop {_pixels(used.crop)}" if used.crop else ""
    return [f"{order}, 0 to 1, then mean {mean}, std {std}", f"{resize}{crop} ({used.origin})"]


def _pixels(size: int | tuple[int, int], side: str = "shorter") -> str:
    return f"{size} ({side} side)" if isinstance(size, int) else f"{size[0]}x{size[1]}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"
