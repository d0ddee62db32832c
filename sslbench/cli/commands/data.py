"""`sslbench data`: names for data locations, manifests made of them, and folders made of official archives."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from sslbench import paths
from sslbench.cli import early, options, terminal
from sslbench.cli.echo import echo
from sslbench.cli.flags import LocalPath, argument_options, flag, same
from sslbench.cli.tables import print_rows
from sslbench.data import catalog
from sslbench.data import prepare as prepared
from sslbench.data.export import check_manifest, write_kwcoco
from sslbench.data.location import absolute
from sslbench.data.open import has_objects, open_data, open_objects
from sslbench.data.prepare import download as downloading
from sslbench.data.prepare.download import states
from sslbench.errors import UsageError
from sslbench.names import did_you_mean


class DataGroup(click.Group):
    """Group whose help has the whole first sentence of each command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a row per command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(200)) for name, each in sorted(self.commands.items())])


@click.group("data", cls=DataGroup, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Manage names for data locations; download data sets or lay out their official archives; write manifests."""
    if ctx.invoked_subcommand is None:
        echo(ctx.get_help())


@command.command("to-kwcoco")
@click.argument("source")
@click.argument("out", type=LocalPath())
@argument_options
@click.pass_context
def to_kwcoco(
    ctx: click.Context,
    /,
    source: str,
    out: Path,
    boxes: bool = flag(
        "Write one annotation with its box and mask per object, in place of labels of images.", default=False
    ),
    extract: Path | None = flag("Folder for images that are inside containers."),
    absolute: bool = flag("Write absolute paths. Default: relative to the manifest.", default=False),
    overwrite: bool = flag("Replace an existing manifest.", default=False),
    image_column: str | None = same(options.DataFlags, "image_column"),
    label_column: str | None = same(options.DataFlags, "label_column"),
    attribute_columns: tuple[str, ...] = flag(
        "Column of a table or manifest to copy into the manifest; repeat.", "--keep"
    ),
    value_columns: tuple[str, ...] = flag("Column of numbers to predict; repeat.", "--value-col"),
) -> None:
    """Write a kwcoco manifest of SOURCE to OUT (.kwcoco.json or .kwcoco.zip), with a split column.

    The manifest refers to the images where they are. Opened again, it gives the same ids (sslbench_id), labels, splits
    and image contents, so stored features are found again.
    """
    terminal.show_messages()
    if boxes:
        used = ("boxes", "extract", "absolute", "overwrite")
        options.refuse(ctx, used=used, what="--boxes: objects have no columns")
    early.refuse_mistyped(data=[source])
    check_manifest(out, overwrite=overwrite)

    sources: Any
    if boxes:
        sources = open_objects(source)
    else:
        sources = open_data(
            source,
            image_column=image_column,
            label_column=label_column,
            attribute_columns=attribute_columns,
            value_columns=value_columns,
        )
    written = write_kwcoco(sources, out, extract=extract, absolute=absolute, overwrite=overwrite)
    parts = ", ".join(f"{split} {n:,}" for split, n in written.images.items())
    echo(f"{out}: {sum(written.images.values()):,} images ({parts}), {written.annotations:,} annotations")
    if written.extracted:
        echo(f"extracted {written.extracted:,} images to {extract}")
    if not boxes and has_objects(source):
        echo(f"{out} has the classes of the images; --boxes writes boxes and masks", err=True)
    for note in dict.fromkeys(note for part in sources.values() for note in part.notes):
        echo(note, err=True)


@command.command("prepare")
@click.argument("name", required=False)
@argument_options
def prepare(
    name: str | None,
    archives: tuple[Path, ...] = flag("Archive, or folder of archives; repeat.", "--archive"),
    out: Path | None = flag("Data folder. Default: $SSLBENCH_DATA, else ./data."),
    no_verify: bool = flag("Skip checksums and counts, for part of a data set.", default=False),
) -> None:
    """Lay out the data set NAME from its official archives, where benchmarks look for it.

    Nothing is downloaded. Without NAME the data sets and their archives are listed. The same command continues an
    interrupted run. tfds:NAME is prepared by TFDS from the archives in the folder --archive.
    """
    terminal.show_messages()
    if name is None:
        options.refuse(click.get_current_context(), used=(), what="a list of data sets (NAME is missing)")
        for line in prepared.described():
            click.echo(line)
        return
    if name.startswith("tfds:"):
        options.refuse(click.get_current_context(), used=("archives",), what="data sets of TFDS ($TFDS_DATA_DIR)")
        click.echo(f"{name}: --data {downloading.prepare_tfds(name, archives)}")
        return
    prepared.archives_of(name)
    folder = prepared.prepare(name, archives, root=out, verify=not no_verify)
    click.echo(f"{name}: {folder}")


@command.command("download")
@click.argument("name")
@argument_options
def download(
    name: str,
    out: Path | None = flag("Data folder. Default: $SSLBENCH_DATA, else ./data."),
    yes: bool = flag("Do not ask about size and licence.", default=False),
) -> None:
    """Download the data set NAME, verify it and lay it out where benchmarks look for it.

    NAME is one of `sslbench data list`, torchvision:NAME, hf:OWNER/NAME or tfds:NAME. Size and licence are shown first.

    \b
    sslbench data download cifar10
    sslbench data download hf:uoft-cs/cifar10 --yes
    """  # noqa: D301
    terminal.show_messages()
    if out is not None and name.startswith(("hf:", "tfds:")):
        raise UsageError(
            f"--out has no effect on {name}, which lies in its library's folder", "Set $HF_HOME, or $TFDS_DATA_DIR."
        )
    wanted = downloading.find_download(name)
    echo(wanted.terms(), err=True)
    if not yes:
        # Without a terminal click's question ends with the input and aborts without a reason.
        if not sys.stdin.isatty():
            raise UsageError("the question about size and licence needs a terminal", "Add --yes to accept them.")
        click.confirm("Download it?", abort=True, err=True)
    location = downloading.download(wanted, out or paths.data_dir())
    echo(f"{wanted.name}: --data {location}")


_PROJECT: Any = flag("Use ./sslbench-data.yaml, shared by everybody who works in this folder.", default=False)


@command.command("add")
@click.argument("name")
@click.argument("location", metavar="STRING")
@argument_options
def add(
    name: str,
    location: str,
    image_column: str | None = same(options.DataFlags, "image_column"),
    label_column: str | None = same(options.DataFlags, "label_column"),
    overwrite: bool = flag("Replace an existing name.", default=False),
    project: bool = _PROJECT,
) -> None:
    """Make NAME an alias of STRING for `--data NAME`.

    Your own catalog stores absolute paths; --project keeps paths relative to its folder. The data are opened once to
    find mistakes.
    """
    terminal.show_messages()
    catalog.check_name(name)
    early.refuse_mistyped(data=[location])

    parts = open_data(location, image_column=image_column, label_column=label_column)
    stored = location if project else absolute(location)
    file = _catalog_file(project)
    catalog.add(
        name,
        catalog.CatalogEntry(stored, image_column=image_column, label_column=label_column),
        file,
        overwrite=overwrite,
    )
    counts = ", ".join(f"{split} {len(part):,}" for split, part in parts.items())
    echo(f"{name} = {stored} ({counts} images), in {file}")
    if Path(name).exists():
        echo(f"note: here '{name}' is also a path, and in this folder --data {name} means the path", err=True)


@command.command("remove")
@click.argument("name")
@argument_options
def remove(
    name: str,
    project: bool = _PROJECT,
) -> None:
    """Remove NAME from the catalog; the data stay where they are."""
    file = _catalog_file(project)
    catalog.remove(name, file)
    echo(f"removed {name} from {file}")


@command.command("list")
def list_names() -> None:
    """List the names that --data accepts, and the data sets of benchmarks: absent, present or verified.

    Verified: compared with the published checksums or counts by `data download`. The third column is the way to get
    one: download, prepare (from official archives), or by hand, which `data download NAME` describes.
    """
    entries = catalog.entries()
    if not entries:
        echo("no names yet: sslbench data add NAME STRING", err=True)
    print_rows([(named.name, named.entry.data) for named in entries.values()], left=2)
    echo("\ndata sets of benchmarks (sslbench data download NAME fetches them or says what to fetch):", err=True)
    print_rows(states(paths.data_dir()), left=4)


@command.command("show")
@click.argument("name")
def show(name: str) -> None:
    """Print the location behind NAME and the catalog that has it."""
    entries = catalog.entries()
    if name not in entries:
        raise UsageError(f"there is no data location called '{name}'", did_you_mean(name, entries))
    echo(f"# {entries[name].file}")
    for key, value in dataclasses.asdict(entries[name].entry).items():
        if value is not None:
            echo(f"{key}: {value}")


def _catalog_file(project: bool) -> Path:

    return Path(catalog.PROJECT_FILE) if project else catalog.user_file()
