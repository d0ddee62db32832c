"""Catalog: the user's names for data locations, so that `--data photos` stands for a long string.

A catalog is a YAML file: name -> the string, or a mapping with `data` and the columns. Looked at are, in this order,
`sslbench-data.yaml` in the current folder (a project's), the same file in each folder of $SSLBENCH_PATH, and
`data.yaml` in the user's config folder. Paths in a catalog are relative to it.
"""

import dataclasses
import logging
import os
import re
from pathlib import Path

from sslbench import config
from sslbench.data import strings
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean, refuse_location
from sslbench.paths import FULL, not_written, temporary_beside
from sslbench.text import HIDDEN, without_secrets

PROJECT_FILE = "sslbench-data.yaml"
_log = logging.getLogger("sslbench")


@dataclasses.dataclass(frozen=True)
class CatalogEntry:
    """Data location with a name.

    Attributes: each setting states its meaning.
    """

    data: str = config.setting(dataclasses.MISSING, "data location, as for --data")
    image_column: str | None = config.setting(None, "column of image paths, for a table")
    label_column: str | None = config.setting(None, "column of labels, for a table")


@dataclasses.dataclass(frozen=True)
class Named:
    """Entry and the catalog that has it.

    Attributes:
        name: of the entry.
        entry: its data location has an absolute path where it is a path.
        file: the catalog.
    """

    name: str
    entry: CatalogEntry
    file: Path


def user_file() -> Path:
    """Return the user's own catalog: data.yaml in $SSLBENCH_CONFIG, or in the platform's config folder."""
    import platformdirs

    given = os.environ.get("SSLBENCH_CONFIG")
    folder = Path(given).expanduser() if given else Path(platformdirs.user_config_dir("sslbench", appauthor=False))
    return folder / "data.yaml"


def files() -> list[Path]:
    """Return the existing catalogs in order of precedence."""
    folders = [Path(entry) for entry in os.environ.get("SSLBENCH_PATH", "").split(os.pathsep) if entry]
    found = [Path(PROJECT_FILE), *(folder / PROJECT_FILE for folder in folders), user_file()]
    return [file for file in dict.fromkeys(found) if file.is_file()]


def entries() -> dict[str, Named]:
    """Return name -> entry over all catalogs, by precedence."""
    found: dict[str, Named] = {}
    for file in files():
        for name, entry in _read(file).items():
            found.setdefault(name, Named(name, dataclasses.replace(entry, data=beside(entry.data, file)), file))
    return dict(sorted(found.items()))


def find(name: str) -> Named | None:
    """Return the entry of that name; None if there is none, or if a path of that name exists (with a warning)."""
    if not strings.NAME.fullmatch(name):
        return None
    named = entries().get(name)
    if named is not None and named.file != user_file():  # a catalog in this folder may have come with the data
        refuse_location(named.entry.data, f"{named.file}: {name}")
    if named is None or not Path(name).exists():
        return named
    if Path(named.entry.data).exists() and Path(name).samefile(named.entry.data):
        return named
    _log.warning("'%s' is a path here, and in %s a name for %s: the path is used", name, named.file, named.entry.data)
    return None


def check_name(name: str) -> None:
    """Refuse a word that cannot be a name."""
    if not strings.NAME.fullmatch(name):
        raise UsageError(f"'{name}' cannot be a name", strings.NAME_RULE)


def add(name: str, entry: CatalogEntry, file: Path, *, overwrite: bool = False) -> None:
    """Add an entry to a catalog, creating the file if needed."""
    check_name(name)
    known = _read(file) if file.exists() else {}
    if name in known and not overwrite:
        raise UsageError(f"'{name}' is already in {file}, for {known[name].data}", "Give --overwrite to replace it.")
    if entry.data == name:
        raise UsageError(f"'{name}' would refer to itself", f"If it is a path, write ./{name}")
    if HIDDEN in (shown := without_secrets(entry.data)):
        raise UsageError(
            f"{file} would hold the login or key of {shown}",
            "Type such a URL with --data, or add one whose package finds its login itself: s3://, gs://, hf:.",
        )
    _write(file, known | {name: entry})


def remove(name: str, file: Path) -> None:
    """Remove an entry from a catalog."""
    known = _read(file) if file.exists() else {}
    if name not in known:
        raise UsageError(f"{file} has no name '{name}'", did_you_mean(name, known))
    _write(file, {other: entry for other, entry in known.items() if other != name})


def _read(file: Path) -> dict[str, CatalogEntry]:
    found = {}
    for name, value in config.read_yaml(file).items():
        where = f"{file}: {name}"
        if not strings.NAME.fullmatch(name):
            raise UsageError(f"{where}: cannot be a name", strings.NAME_RULE)
        if not isinstance(value, str | dict):
            raise UsageError(f"{where} should be a string, or a mapping with the key 'data'")
        found[name] = CatalogEntry(value) if isinstance(value, str) else config.build(CatalogEntry, value, where)
        if not found[name].data:
            raise UsageError(f"{where}: the data location is empty")
    return found


def _write(file: Path, known: dict[str, CatalogEntry]) -> None:
    import yaml

    content: dict[str, str | dict[str, str]] = {}
    for name, entry in sorted(known.items()):
        given = {key: value for key, value in dataclasses.asdict(entry).items() if value is not None}
        content[name] = entry.data if list(given) == ["data"] else given
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with temporary_beside(file) as temporary:
            with temporary.open("w", encoding="utf-8") as new:
                new.write("# Names for data locations, see: sslbench data --help\n")
                # PyYAML folds lines of more than 80 characters at their spaces.
                yaml.safe_dump(content, new, sort_keys=False, allow_unicode=True, width=200)
            temporary.replace(file)
    except OSError as error:
        # A full disk is no mistake in the call.
        raise (DataError if error.errno in FULL else UsageError)(not_written(file, error)) from error


def beside(data: str, file: Path) -> str:
    """Resolve a location read from a file: paths are relative to the file, everything else is unchanged."""
    if strings.is_several(data):
        return strings.with_locations(data, lambda location: beside(location, file))
    data = strings.with_labels_at(data, lambda place: place if find(place) else beside(place, file))
    if data.startswith("~"):
        return os.path.expanduser(data)  # noqa: PTH111 - a spec is no path yet
    folder = file.absolute().parent
    scheme = re.match(r"[A-Za-z][\w.+-]*:", data)
    slash = "/" if data.endswith("/") else ""
    if scheme:
        rest = data[scheme.end() :]
        is_path = "/" in rest and not rest.startswith("/") and (folder / rest.partition("?")[0]).exists()
        return f"{scheme.group()}{folder / rest}{slash}" if is_path else data  # vissl:lists/
    return data if os.path.isabs(data) else f"{folder / data}{slash}"  # noqa: PTH117
