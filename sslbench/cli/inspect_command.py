"""`sslbench inspect`."""

from pathlib import Path

import click

WEIGHT_SUFFIXES = (".pth", ".pt", ".th", ".torch", ".tar", ".ckpt", ".safetensors", ".bin", ".pkl")


@click.command("inspect")
@click.argument("what")
@click.option("--backbone", help="Check the weights against this backbone.")
@click.option("--format", "format_", help="Read the weights as this format.")
def command(what: str, backbone: str | None, format_: str | None) -> None:
    """Say what WHAT is: a weights file, a data set, or a folder of the feature store."""
    from sslbench.cli import terminal

    terminal.show_messages()
    path = Path(what)
    if path.is_dir() and (path / "meta.json").is_file() and list(path.glob("*.npy*")):
        _features(path)
    elif path.suffix.lower() in WEIGHT_SUFFIXES or backbone or format_:
        _weights(path, backbone, format_)
    else:
        _data(what)


def _weights(path: Path, backbone: str | None, format_: str | None) -> None:
    from sslbench.backbones.load import load_backbone
    from sslbench.weights.files import read

    file = read(path)
    click.echo(f"{path}: {file.container}, {path.stat().st_size / 1e6:.1f} MB, sha256 {file.sha256[:16]}")
    if file.stubbed:
        click.echo(f"objects that were not loaded: {', '.join(file.stubbed)}")
    loaded = load_backbone(str(path), backbone=backbone, format=format_)
    module = loaded.module
    parameters = sum(p.numel() for p in module.parameters())
    click.echo(f"backbone: {loaded.name}, {parameters:,} parameters")
    if loaded.report is not None:
        click.echo(loaded.report.line())
    click.echo(f"sha256 of the tensors: {loaded.weights_sha256}")
    click.echo(f"preprocessing: {loaded.preprocessing}")
    click.echo(f"layers: {', '.join(loaded.aliases)} (default {loaded.default_layer})")


def _data(what: str) -> None:
    from sslbench.data.labels import class_counts
    from sslbench.data.open import open_data

    for split, source in open_data(what).items():
        click.echo(f"{split}: {len(source)} images, {source.labels.kind} label, {len(source.labels.classes)} classes")
        if source.labels.kind != "none":
            counts = class_counts(source.labels)
            shown = [f"{name} {count}" for name, count in zip(source.labels.classes, counts, strict=True)]
            click.echo("  " + ", ".join(shown[:20]) + (f", ... {len(shown) - 20} more" if len(shown) > 20 else ""))
        for note in source.notes:
            click.echo(f"  {note}")


def _features(path: Path) -> None:
    import json

    from sslbench.features.store import Entry

    entry = Entry(path)
    meta = entry.meta()
    click.echo(f"{path}: features of {meta.get('rows')} images of {meta.get('data')}")
    for layer in entry.layers():
        array = entry.read(layer)
        click.echo(f"  {layer}: {array.shape[0]} x {array.shape[1]} {array.dtype}")
    if list(path.glob("*.partial")):
        click.echo("  an extraction here is not finished: run the same command again to continue it")
    click.echo(json.dumps(meta.get("key"), indent=1))
