"""From the string given as --data to its sources."""

import dataclasses
import errno
import inspect
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from sslbench import config
from sslbench.data import catalog, regular, remote, strings
from sslbench.data.source import Source
from sslbench.data.strings import expanded
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean, find_module, list_names

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w.+-]+):(?P<rest>.*)", re.DOTALL)
_PATTERN = re.compile(r"\{.*\}|[*?]")
"""What stands for several files: {0000..0099}, {a,b}, *."""
_OPTIONS = re.compile(r"(?P<location>[^?]+)\?(?P<options>[a-z_]+=[^&?]*(&[a-z_]+=[^&?]*)*)")
_log = logging.getLogger("sslbench")


def open_data(
    spec: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    attribute_columns: Sequence[str] = (),
    value_columns: Sequence[str] = (),
) -> dict[str, Source]:
    """Open a data location of any kind; which kind is recognised from the string and what lies there.

    Args:
        spec: a folder, a file, files ('train-{0000..0099}.tar'), 'torchvision:CIFAR10', 'sklearn:digits', a name of the
            catalog, or 'my_pkg.my_source:REST' for a module of the user's with a function
            `open(rest, *, image_column, label_column) -> dict[str, Source]`. Behind a '?' options of the source:
            'photos.kwcoco.json?unit=annotation&margin=0.1', fields of the dataclass `Options` of its module.
        image_column: of a table, the column with the paths.
        label_column: of a table, the column with the labels.
        attribute_columns: of a table or a manifest, further columns (keys of its images) to keep as attributes.
        value_columns: of a table, columns of numbers to predict, in place of a label column.

    Returns:
        Split name ('train', 'val', 'test' or the source's own) -> source; {"all": source} if there are no splits.

    Raises:
        UsageError: nothing lies there (with the nearest existing name), or its kind is not known.
        DataError: it is known but cannot be used.
    """
    place = locate(spec)
    image_column, label_column = image_column or place.image_column, label_column or place.label_column
    spec = place.text
    match = _SCHEME.fullmatch(spec)
    if match and (strings.is_several(spec) or not Path(spec).exists()):
        module, location = _from_scheme(spec, match["scheme"], match["rest"])
    else:
        location = f"./{spec}" if match else spec  # a folder may be called 'sklearn:digits'
        module = _from_path(location)
    further: dict[str, Any] = {"attribute_columns": tuple(attribute_columns)} if attribute_columns else {}
    if place.options:
        further["options"] = _options(spec, module, place.options)
    understood = inspect.signature(module.open).parameters
    if value_columns and "value_columns" not in understood:
        raise UsageError(
            f"'{spec}' has no column '{value_columns[0]}': it is no table",
            "List the images in a .csv with the column path and one column per number.",
        )
    if value_columns:
        further["value_columns"] = tuple(value_columns)
    if attribute_columns and "attribute_columns" not in understood:
        raise UsageError(
            f"'{spec}' has no column '{attribute_columns[0]}': it is no table and no manifest",
            "List the images in a .csv with the columns path, label and the ones to group by.",
        )
    sources = module.open(location, image_column=image_column, label_column=label_column, **further)
    if not sources:
        raise DataError(f"'{spec}' holds no data")
    return dict(sources)


@dataclasses.dataclass(frozen=True)
class Place:
    """A data location without the names that stand for it.

    Attributes:
        text: a path, a pattern of paths, or SCHEME:NAME.
        options: what stood behind a '?': key -> text.
        image_column: that the catalog names.
        label_column: that the catalog names.
    """

    text: str
    options: dict[str, str]
    image_column: str | None = None
    label_column: str | None = None


def locate(spec: str) -> Place:
    """What a string stands for: names of the catalog are looked up, and the options behind a '?' are taken off.

    Raises:
        UsageError: it is empty, or a catalog cannot be read.
    """
    if not spec:
        raise UsageError("the data location is empty", _understood())
    if strings.is_several(spec):
        return Place(spec, {})  # what stands in it is looked up one by one
    text, options = _without_options(_at_home(spec))
    named = catalog.find(text)
    if named is None:
        return Place(_copied(text), options)
    _log.info("'%s' is %s (%s)", named.name, named.entry.data, named.file)
    if strings.is_several(named.entry.data):
        return Place(named.entry.data, options, named.entry.image_column, named.entry.label_column)
    inner, beneath = _without_options(_at_home(named.entry.data))
    return Place(_copied(inner), beneath | options, named.entry.image_column, named.entry.label_column)


def _copied(text: str) -> str:
    """A URL as the path of its local copy; braces stay where they are, in the path of the copies."""
    if not remote.is_url(text) or Path(text).exists():
        return text
    urls = expanded(text)
    later = all(url.partition("?")[0].lower().endswith(remote.SHARDS) for url in urls)
    copies = remote.shards(urls) if later else remote.local_copies(urls)
    if len(urls) == 1:
        return str(copies[0])
    if len({copy.parent for copy in copies}) > 1:
        raise UsageError(f"{text}: braces in a URL may stand in the name of the file only, not in that of a folder")
    return str(copies[0].parent / text.rpartition("/")[2])


def _at_home(spec: str) -> str:
    return os.path.expanduser(spec) if spec.startswith("~") else spec  # noqa: PTH111 - a spec is no path yet


def _without_options(spec: str) -> tuple[str, dict[str, str]]:
    match = _OPTIONS.fullmatch(spec)
    if match is None or Path(spec).exists():
        return spec, {}
    if spec.startswith(("http://", "https://")) and not set(_keys(match["options"])) <= _known_options():
        return spec, {}  # it is the server's
    pairs = [part.partition("=") for part in match["options"].split("&")]
    return match["location"], {key: value for key, _, value in pairs}


def _keys(options: str) -> list[str]:
    return [part.partition("=")[0] for part in options.split("&")]


def _known_options() -> set[str]:
    """The keys of any source's options."""
    kinds = (getattr(find_module("source", name), "Options", None) for name in list_names("source"))
    return {field.name for kind in kinds if kind is not None for field in dataclasses.fields(kind)}


def _options(spec: str, module: ModuleType, given: dict[str, str]) -> Any:
    """The options as the source's own dataclass `Options`."""
    kind = getattr(module, "Options", None)
    if kind is None:
        raise UsageError(f"'{spec}' takes no options, but '?{next(iter(given))}=' was given")
    plain = re.compile(r"-?[\d.]+(e-?\d+)?|true|false")  # of YAML these only: 'no' is a text here
    values = {key: yaml.safe_load(text) if plain.fullmatch(text) else text for key, text in given.items()}
    return config.build(kind, values, f"the options of {spec}")


def _from_path(spec: str) -> ModuleType:
    if not _PATTERN.search(spec) and not remote.is_copy(Path(spec)):  # a copy is made when it is read
        _check_exists(spec)
    module = _recognised_by(spec)
    if module is None:
        _check_exists(spec)
        raise UsageError(f"'{spec}' is no kind of data that sslbench reads", _understood())
    return module


def _recognised_by(spec: str) -> ModuleType | None:
    """The source for the string; one that takes what nobody else does (`LAST_RESORT`) is asked last."""
    modules = [find_module("source", name) for name in list_names("source")]
    modules.sort(key=lambda module: getattr(module, "LAST_RESORT", False))
    return next((module for module in modules if module.recognises(spec)), None)


def _from_scheme(spec: str, scheme: str, rest: str) -> tuple[ModuleType, str]:
    """The built-in source for `scheme:rest`, given it whole; else the user's module, given the rest."""
    if scheme in list_names("source") and _recognises_scheme(scheme):
        return find_module("source", scheme), spec
    if rest.startswith("//"):
        raise UsageError(f"{spec} is no URL of a file", _understood())
    if "." not in scheme and (module := _recognised_by(spec)):
        return module, spec
    if "." not in scheme:
        names = [f"{name}:" for name in list_names("source") if _recognises_scheme(name)]
        raise UsageError(f"there is no '{spec}', neither a path nor a data set", f"{did_you_mean(f'{scheme}:', names)}")
    module = find_module("source", scheme)
    if not callable(getattr(module, "open", None)):
        raise UsageError(f"'{scheme}' ({module.__file__}) is no data source: it has no function 'open'")
    return module, rest


def _recognises_scheme(name: str) -> bool:
    return bool(find_module("source", name).recognises(f"{name}:"))


def _check_exists(spec: str) -> None:
    path = Path(spec)
    try:
        kind = regular.kind_of(path.stat().st_mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UsageError(f"'{spec}' is a link that leads to itself") from error
        kind = None
    if kind in ("a file", "a folder"):
        return
    if kind is not None:
        raise UsageError(f"'{spec}' is {kind}, neither a file nor a folder", "Write what it gives into a file first.")
    if path.is_symlink():
        raise UsageError(f"'{spec}' is a link to {path.readlink()}, which does not exist")
    missing = path
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    parent = missing.parent
    shown = "this folder" if parent == Path() else str(parent)
    if not parent.is_dir():
        raise UsageError(f"'{spec}' does not exist: {parent} is a file, not a folder")
    try:
        names = [entry.name for entry in parent.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise UsageError(f"'{spec}' cannot be reached: {shown}: {error.strerror}") from error
    if missing == path and parent == Path():
        names += catalog.entries()
    hint = did_you_mean(missing.name, names) if names else f"{shown} is empty."
    raise UsageError(f"'{spec}' does not exist: there is no '{missing.name}' in {shown}", hint)


def _understood() -> str:
    """What every source's module says about itself in its first line."""
    modules = (find_module("source", name) for name in list_names("source"))
    lines = [(module.__doc__ or module.__name__).strip().splitlines()[0] for module in modules]
    return "Understood are:\n" + "\n".join(f"  {line}" for line in lines)


def absolute(spec: str) -> str:
    """The same location from any folder: a path that exists, or a pattern of paths, becomes absolute.

    Raises:
        UsageError: it lists several sources, and the list is wrong.
    """
    if strings.is_several(spec):
        return strings.with_locations(spec, absolute)
    text, options = _without_options(_at_home(spec))
    is_path = Path(text).exists() or (_PATTERN.search(text) and not _SCHEME.fullmatch(text))
    scheme = _SCHEME.fullmatch(text)
    rest = "&".join(f"{key}={value}" for key, value in options.items())
    if not is_path and scheme and Path(scheme["rest"]).exists() and os.sep in scheme["rest"]:
        text = f"{scheme['scheme']}:{os.path.abspath(scheme['rest'])}"  # noqa: PTH100 - links stay as they are
    elif is_path:
        text = os.path.abspath(text) + ("/" if text.endswith("/") else "")  # noqa: PTH100
    return f"{text}?{rest}" if rest else text
