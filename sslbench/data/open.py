"""From the string given as --data to its sources."""

import os
import re
from pathlib import Path
from types import ModuleType

from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean, find_module, list_names

_SCHEME = re.compile(r"(?P<scheme>[A-Za-z][\w.+-]+):(?P<rest>.*)", re.DOTALL)
_PATTERN = re.compile(r"\{.*\}|[*?]")
"""What stands for several files: {0000..0099}, {a,b}, *."""


def open_data(spec: str, *, image_column: str | None = None, label_column: str | None = None) -> dict[str, Source]:
    """Open a data location of any kind; which kind is recognised from the string and what lies there.

    Args:
        spec: a folder, a file, files ('train-{0000..0099}.tar'), 'torchvision:CIFAR10', 'sklearn:digits', or
            'my_pkg.my_source:REST' for a module of the user's with a function
            `open(rest, *, image_column, label_column) -> dict[str, Source]`.
        image_column: of a table, the column with the paths.
        label_column: of a table, the column with the labels.

    Returns:
        Split name ('train', 'val', 'test' or the source's own) -> source; {"all": source} if there are no splits.

    Raises:
        UsageError: nothing lies there (with the nearest existing name), or its kind is not known.
        DataError: it is known but cannot be used.
    """
    if not spec:
        raise UsageError("the data location is empty", _understood())
    if spec.startswith("~"):
        spec = os.path.expanduser(spec)  # noqa: PTH111 - a spec is no path yet
    match = _SCHEME.fullmatch(spec)
    if match and not Path(spec).exists():
        module, location = _from_scheme(spec, match["scheme"], match["rest"])
    else:
        location = f"./{spec}" if match else spec  # a folder may be called 'sklearn:digits'
        module = _from_path(location)
    sources = module.open(location, image_column=image_column, label_column=label_column)
    if not sources:
        raise DataError(f"'{spec}' holds no data")
    return dict(sources)


def _from_path(spec: str) -> ModuleType:
    if not _PATTERN.search(spec):
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
        raise UsageError(f"{spec} lies elsewhere, and sslbench reads local files: copy it here first", _understood())
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
    if path.exists():
        return
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
    hint = did_you_mean(missing.name, names) if names else f"{shown} is empty."
    raise UsageError(f"'{spec}' does not exist: there is no '{missing.name}' in {shown}", hint)


def _understood() -> str:
    """What every source's module says about itself in its first line."""
    modules = (find_module("source", name) for name in list_names("source"))
    lines = [(module.__doc__ or module.__name__).strip().splitlines()[0] for module in modules]
    return "Understood are:\n" + "\n".join(f"  {line}" for line in lines)
