"""`sslbench inspect`."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sslbench.cli import flags
from sslbench.cli.echo import echo

if TYPE_CHECKING:
    from sslbench.weights.files import WeightsFile

WEIGHT_SUFFIXES = (".pth", ".pt", ".th", ".torch", ".tar", ".ckpt", ".safetensors", ".bin", ".pkl", ".npy", ".npz")
_DATA_SUFFIXES = (".csv", ".tsv", ".parquet", ".json", ".zip", ".jsonl")
_SHARD_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
_OLD_TORCH = ("sys_info", "pickle", "storages", "tensors")
"""Members of the tar files that torch.save wrote before version 0.4."""


@click.command("inspect")
@click.argument("what")
@click.option("--backbone", help="Check the weights against this backbone.")
@click.option("--format", "format_", help="Read the weights as this format.")
@click.option("--json", "as_json", is_flag=True, help="Print what is known of a weights file as JSON.")
@flags.trust_pickle
def command(what: str, backbone: str | None, format_: str | None, as_json: bool, trust_pickle: bool) -> int:
    """Say what WHAT is: a weights file, a detector, a data set, or a folder of the feature store.

    Of weights: format, sub-network, architecture, heads, input, and whether they load. Exit code 1 if they do not.
    Of a trained detector, or a checkpoint of its training: architecture, classes, iterations, recipe.
    """
    from sslbench.cli import terminal
    from sslbench.errors import UsageError

    terminal.show_messages()
    path = Path(what)
    if "://" in what or _is_shard(path):
        _data(what)
        return 0
    if path.suffix.lower() in WEIGHT_SUFFIXES or backbone or format_ or _is_other_file(path):
        return _weights(path, backbone, format_, as_json, trust_pickle)
    if as_json:
        raise UsageError("--json is for weights files", "Leave it out for data and feature stores.")
    if path.is_dir() and (path / "meta.json").is_file() and list(path.glob("*.npy*")):
        _features(path)
    else:
        _data(what)
    return 0


def _is_shard(path: Path) -> bool:
    """Whether a name with .tar means images: checkpoints end like that as well (.pth.tar), but are seldom tar files."""
    name = path.name.lower()
    if not name.endswith(_SHARD_SUFFIXES):
        return False
    if not path.is_file():
        return any(sign in name for sign in "{*?[")
    if not name.endswith(".tar"):
        return True
    import tarfile

    try:
        with tarfile.open(path) as archive:
            first = archive.next()
    except (tarfile.TarError, OSError):
        return False
    return first is None or first.name not in _OLD_TORCH


def _is_other_file(path: Path) -> bool:
    """A file with an unusual suffix that is no manifest either: published checkpoints have all kinds of names."""
    return path.is_file() and path.suffix.lower() not in _DATA_SUFFIXES


def _weights(path: Path, backbone: str | None, format_: str | None, as_json: bool, trust_pickle: bool) -> int:
    from sslbench.backbones.describe import describe
    from sslbench.cli import weights_page
    from sslbench.weights.files import read

    file = read(path, trust_pickle=trust_pickle)
    # Tensors at the top of a detector's file are its backbone; a checkpoint of its training has none to load.
    if file.content.keys() & {"detector", "about"} and not _detector(file, path, as_json) and not (backbone or format_):
        return 0
    known = describe(file, backbone=backbone, format=format_)
    echo(weights_page.as_json(path, known) if as_json else weights_page.page(path, known))
    return 1 if known.problem else 0


def _detector(file: "WeightsFile", path: Path, as_json: bool) -> bool:
    """Says what detector is in a file; whether what else is in it is worth a page."""
    import json

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


def _data(what: str) -> None:
    from sslbench.data.labels import class_counts
    from sslbench.data.open import open_data

    for split, source in open_data(what).items():
        echo(f"{split}: {len(source)} images, {source.labels.kind} label, {len(source.labels.classes)} classes")
        if source.labels.kind != "none":
            counts = class_counts(source.labels)
            shown = [f"{name} {count}" for name, count in zip(source.labels.classes, counts, strict=True)]
            echo("  " + ", ".join(shown[:20]) + (f", ... {len(shown) - 20} more" if len(shown) > 20 else ""))
        for note in source.notes:
            echo(f"  {note}")
    echo(f"data: sslbench check-data {shlex.quote(what)} looks into it")


def _features(path: Path) -> None:
    import json

    from sslbench.features.store import Entry

    entry = Entry(path)
    meta = entry.meta()
    echo(f"{path}: features of {meta.get('rows')} images of {meta.get('data')}")
    for layer in entry.layers():
        array = entry.read(layer)
        echo(f"  {layer}: {array.shape[0]} x {array.shape[1]} {array.dtype}")
    if list(path.glob("*.partial")):
        echo("  an extraction here is not finished: run the same command again to continue it")
    echo(json.dumps(meta.get("key"), indent=1))
