"""`sslbench data`: names for data locations, manifests made of them, and folders made of official archives."""

from pathlib import Path
from typing import Any

import click

from sslbench.cli.echo import echo


@click.group("data")
def command() -> None:
    """Names for data locations, manifests made of them, and folders made of official archives."""


@command.command("to-kwcoco")
@click.argument("source")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--boxes", is_flag=True, help="One annotation per object with its box, of a manifest or a VOC tree.")
@click.option("--extract", type=click.Path(path_type=Path), help="Folder for images that lie inside containers.")
@click.option("--absolute", is_flag=True, help="Absolute paths; else they are relative to the manifest.")
@click.option("--overwrite", is_flag=True, help="Replace a manifest that exists.")
@click.option("--image-col", "--image-column", "image_column", help="Column of a table that holds the image paths.")
@click.option("--label-col", "--label-column", "label_column", help="Column of a table that holds the labels.")
@click.option("--keep", "attribute_columns", multiple=True, help="A further column of a table or manifest; repeat.")
@click.option("--value-col", "value_columns", multiple=True, help="A column of numbers to predict; repeat.")
def to_kwcoco(
    source: str, out: Path, boxes: bool, extract: Path | None, absolute: bool, overwrite: bool, **columns: Any
) -> None:
    """Write a kwcoco manifest of SOURCE to OUT (.kwcoco.json or .kwcoco.zip), with a split column.

    It lists the images where they are. Opened again it gives the same ids (they stand under sslbench_id), labels,
    splits and image contents, so features that were extracted before are found again.
    """
    from sslbench.cli import terminal
    from sslbench.data.export.kwcoco import write_kwcoco
    from sslbench.data.open import open_data, open_objects
    from sslbench.errors import UsageError

    terminal.show_messages()
    if boxes and any(columns.values()):
        raise UsageError("--boxes is for manifests and VOC trees, which have no columns")
    sources: Any = open_objects(source) if boxes else open_data(source, **columns)
    written = write_kwcoco(sources, out, extract=extract, absolute=absolute, overwrite=overwrite)
    parts = ", ".join(f"{split} {n:,}" for split, n in written.images.items())
    echo(f"{out}: {sum(written.images.values()):,} images ({parts}), {written.annotations:,} annotations")
    if written.extracted:
        echo(f"extracted {written.extracted:,} images to {extract}")
    for note in dict.fromkeys(note for part in sources.values() for note in part.notes):
        echo(note, err=True)


@command.command("prepare")
@click.argument("name", required=False)
@click.option(
    "--archive", "archives", multiple=True, type=click.Path(path_type=Path), help="An archive, or a folder of them."
)
@click.option("--out", type=click.Path(path_type=Path), help="Data folder. Default: $SSLBENCH_DATA, else ./data.")
@click.option("--no-verify", is_flag=True, help="No checksums and no counting: for a part of a data set.")
def prepare(name: str | None, archives: tuple[Path, ...], out: Path | None, no_verify: bool) -> None:
    """Lay out the data set NAME from its official archives, where benchmarks look for it.

    Nothing is downloaded. Without NAME the data sets and their archives are listed. A run that was interrupted
    continues when it is started again.
    """
    from sslbench.cli import terminal
    from sslbench.data import prepare as prepared
    from sslbench.errors import UsageError

    terminal.show_messages()
    if name is None:
        if archives or out or no_verify:
            raise UsageError("which data set?", "sslbench data prepare lists them: sslbench data prepare NAME ...")
        for line in prepared.described():
            click.echo(line)
        return
    prepared.archives_of(name)
    folder = prepared.prepare(name, archives, root=out, verify=not no_verify)
    click.echo(f"{name}: {folder}")


_PROJECT = click.option(
    "--project", is_flag=True, help="In ./sslbench-data.yaml, for everybody who works in this folder."
)


@command.command("add")
@click.argument("name")
@click.argument("location", metavar="STRING")
@click.option("--image-col", "--image-column", "image_column", help="Column of a table that holds the image paths.")
@click.option("--label-col", "--label-column", "label_column", help="Column of a table that holds the labels.")
@click.option("--overwrite", is_flag=True, help="Replace the name if it is there.")
@_PROJECT
def add(name: str, location: str, overwrite: bool, project: bool, **columns: Any) -> None:
    """Let NAME stand for STRING wherever --data is taken: `--data NAME`.

    A path is kept as an absolute one in your own catalog, and as it is (relative to the folder) with --project. The
    data are opened once, so that a mistake shows now.
    """
    from sslbench.cli import terminal
    from sslbench.data import catalog
    from sslbench.data.location import absolute
    from sslbench.data.open import open_data

    terminal.show_messages()
    parts = open_data(location, **columns)
    kept = location if project else absolute(location)
    file = _catalog_file(project)
    catalog.add(name, catalog.Entry(kept, **columns), file, overwrite=overwrite)
    counts = ", ".join(f"{split} {len(part):,}" for split, part in parts.items())
    echo(f"{name} = {kept} ({counts} images), in {file}")
    if Path(name).exists():
        echo(f"note: here '{name}' is also a path, and in this folder --data {name} means the path", err=True)


@command.command("remove")
@click.argument("name")
@_PROJECT
def remove(name: str, project: bool) -> None:
    """Forget NAME; the data stay where they are."""
    from sslbench.data import catalog

    file = _catalog_file(project)
    catalog.remove(name, file)
    echo(f"removed {name} from {file}")


@command.command("list")
def list_names() -> None:
    """The names that can be given as --data."""
    from sslbench.data import catalog

    known = catalog.entries()
    if not known:
        echo("no names yet: sslbench data add NAME STRING", err=True)
    width = max(map(len, known), default=0)
    for named in known.values():
        echo(f"{named.name:<{width}}  {named.entry.data}")


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """What NAME stands for, and where that is written."""
    import dataclasses

    from sslbench.data import catalog
    from sslbench.errors import UsageError
    from sslbench.names import did_you_mean

    known = catalog.entries()
    if name not in known:
        raise UsageError(f"there is no data location called '{name}'", did_you_mean(name, known))
    echo(f"# {known[name].file}")
    for key, value in dataclasses.asdict(known[name].entry).items():
        if value is not None:
            echo(f"{key}: {value}")


def _catalog_file(project: bool) -> Path:
    from sslbench.data import catalog

    return Path(catalog.PROJECT_FILE) if project else catalog.user_file()
