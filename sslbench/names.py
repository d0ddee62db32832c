"""Lookup of protocols, methods, benchmarks and other things by file name, or by dotted name (`my_pkg.my_thing`)."""

import contextlib
import contextvars
import difflib
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Self

from sslbench import paths
from sslbench.errors import UsageError

ModuleKind = Literal["protocol", "source", "method", "optimizer", "sink"]
FileKind = Literal[
    "benchmark", "suite", "preset", "prompts", "method", "format", "augment", "optimizer", "schedule", "launcher"
]

_PACKAGES: dict[str, str] = {
    "protocol": "sslbench.protocols",
    "source": "sslbench.data.formats",
    "method": "sslbench.methods",
    "optimizer": "sslbench.train.optimizers",
    "sink": "sslbench.results.sinks",
}
_FOLDERS: dict[str, tuple[paths.DataFolder, str]] = {
    "benchmark": ("benchmarks", ""),
    "suite": ("benchmarks", "suites/"),
    "preset": ("benchmarks", "presets/"),
    "prompts": ("benchmarks", "prompts/"),
    "format": ("model_converters", ""),
    "method": ("configs", "method/"),
    "augment": ("configs", "augment/"),
    "optimizer": ("configs", "optimizer/"),
    "schedule": ("configs", "schedule/"),
    "launcher": ("configs", "launcher/"),
}
# In a data location: the user's own source module. Text after '//' is a URL.
_MODULE_SOURCE = re.compile(r"(?:^|=)(?P<place>(?P<module>[A-Za-z_]\w*(?:\.\w+)+):(?!//)[^,]*)")
_PLAIN = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
KINDS = tuple(sorted({*_PACKAGES, *_FOLDERS}))
_IN_PLUGINS = dict.fromkeys(("low-level", "orientation", "relative-pose"), "sslbench_visbench")
"""Protocols that are not built in -> the plug-in package of this repository that has them."""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a hint for a mistyped name: the nearest valid names, else those that contain it, else all if they are few.

    Example:
        >>> did_you_mean("kn", ["knn", "linear"])
        "Did you mean 'knn'?"
        >>> did_you_mean("rotnet", ["in1k_rn50_rotnet_105ep", "linear"])
        "Names with 'rotnet': in1k_rn50_rotnet_105ep."
    """
    choices = sorted(choices)
    near = difflib.get_close_matches(name, choices, n=3, cutoff=0.6)
    if near:
        return "Did you mean " + " or ".join(f"'{choice}'" for choice in near) + "?"
    parts = [choice for choice in choices if len(name) > 2 and name.lower() in choice.lower()]
    if parts:
        more = f" and {len(parts) - 5} more" if len(parts) > 5 else ""
        return f"Names with '{name}': {', '.join(parts[:5])}{more}."
    if len(choices) <= 40:
        return "Valid names: " + ", ".join(choices) + "." if choices else ""
    return f"None of the {len(choices)} valid names is similar."


def list_names(kind: str) -> list[str]:
    """Return all names of one kind ('protocol', 'benchmark', 'suite', 'format', 'method', ...), sorted.

    Modules and YAML files whose name starts with an underscore are left out, and so is the module that is called as
    the kind, its interface (protocols/protocol.py). Methods are the recipes in configs/method; several may share one
    module.

    Example:
        >>> "adamw" in list_names("optimizer")
        True

    Raises:
        UsageError: there is no such kind.
    """
    if kind in _FOLDERS:
        return sorted(yaml_files(kind))
    if kind in _PACKAGES:
        return sorted(modules(kind))
    raise UsageError(f"there is no kind of thing called '{kind}'", did_you_mean(kind, KINDS))


@functools.cache  # the files of all packages are read for it
def _entry_points() -> Any:  # of two types, by the version of Python
    return importlib.metadata.entry_points()


@functools.cache
def installed(kind: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Return name -> entry point of the group `sslbench.KIND`: modules of installed plug-ins.

    Kinds are those of modules; and 'target' and 'metric', whose modules are searched for classes and records.
    """
    return {entry.name: entry for entry in _entry_points().select(group=f"sslbench.{kind}")}


@functools.cache  # asked hundreds of times per evaluation
def modules(kind: str) -> dict[str, str]:
    """Return name -> module, built in or of a plug-in; names of protocols and sources have hyphens (low-shot)."""
    # A plug-in cannot replace what is built in: its name in a record would mean two things.
    package = importlib.import_module(_PACKAGES[kind])
    stems = [m.name for m in pkgutil.iter_modules(package.__path__) if m.name[0] != "_" and m.name != kind]
    hyphens = kind in ("protocol", "source")
    builtin = {stem.replace("_", "-") if hyphens else stem: f"{_PACKAGES[kind]}.{stem}" for stem in stems}
    return {name: entry.value for name, entry in installed(kind).items()} | builtin


def plugin_version(protocol: str) -> dict[str, str]:
    """Return package -> version of the plug-in that has a protocol; {} for a built-in one, or the user's own."""
    entry = installed("protocol").get(protocol)
    return {} if entry is None or entry.dist is None else {entry.dist.name: entry.dist.version}


def plugin_remedy(protocol: str) -> str:
    """Return how to install the plug-in of this repository that has a protocol, where it is missing; '' otherwise."""
    if protocol not in _IN_PLUGINS or protocol in installed("protocol"):
        return ""
    package = _IN_PLUGINS[protocol]
    return f"It is in the plug-in {package}; from a clone of sslbench: pip install ./plugins/{package}"


def yaml_files(kind: str) -> dict[str, Path]:
    """Return name (path below the folder, without suffix) -> file on the search path; the user's files come first."""
    folder, prefix = _FOLDERS[kind]
    others = _other_kinds(kind)
    found: dict[str, Path] = {}
    for root in paths.search_path(folder):
        try:
            files = paths.paths_below(root, ".yaml")
        except OSError as error:
            raise UsageError(f"cannot read {error.filename!s:.300}: {error.strerror}") from error
        below = len(str(root)) + 1
        for file in files:
            name = file[below : -len(".yaml")].replace(os.sep, "/")
            if name.startswith(prefix) and not name.startswith(others) and not name.rpartition("/")[2].startswith("_"):
                found.setdefault(name.removeprefix(prefix), Path(file))
    return found | _computed_benchmarks(found) if kind == "benchmark" else found


def _other_kinds(kind: str) -> tuple[str, ...]:
    """Return the folders of other kinds inside the folder of one."""
    folder, prefix = _FOLDERS[kind]
    return tuple(p for f, p in _FOLDERS.values() if f == folder and len(p) > len(prefix))


def _yaml_file(kind: str, name: str) -> Path | None:
    """Return the file of a name without a list of all, which takes a hundred times as long; None if there is none."""
    folder, prefix = _FOLDERS[kind]
    if not _PLAIN.fullmatch(name) or f"{prefix}{name}".startswith(_other_kinds(kind)):
        return None
    file = _first(folder, f"{prefix}{name}.yaml")
    protocol, _, data_set = name.partition("/")
    if file is not None or kind != "benchmark" or not data_set:
        return file
    # See `_computed_benchmarks`.
    return _first(folder, f"{protocol}/_each.yaml") if _first(folder, f"data/_{data_set}.yaml") else None


def _first(folder: paths.DataFolder, place: str) -> Path | None:
    for root in paths.search_path(folder):
        file = root / place
        # Some file systems do not tell upper case.
        parts = (file, *file.parents)[: place.count("/") + 1]
        if file.is_file() and all(part.name in os.listdir(part.parent) for part in parts):  # noqa: PTH208
            return file
    return None


def _computed_benchmarks(written: Container[str]) -> dict[str, Path]:
    """Return PROTOCOL/DATASET -> PROTOCOL/_each.yaml for every data/_DATASET.yaml that has no file of its own."""
    roots = paths.search_path("benchmarks")
    data_sets = [file.stem.removeprefix("_") for root in roots for file in sorted(root.glob("data/_*.yaml"))]
    found: dict[str, Path] = {}
    for template in (file for root in roots for file in sorted(root.glob("*/_each.yaml"))):
        for name in (f"{template.parent.name}/{data_set}" for data_set in data_sets):
            if name not in written:
                found.setdefault(name, template)
    return found


def find_file(kind: FileKind, name: str) -> Path:
    """Return the YAML file of a name, or the file itself if `name` is a path that ends in .yaml.

    Raises:
        UsageError: no such name, with the nearest ones.
    """
    if name.endswith(".yaml") and Path(name).is_file():
        return Path(name)
    if (file := _yaml_file(kind, name)) is not None:
        return file
    files = yaml_files(kind)
    if name not in files:
        raise UsageError(
            f"there {'are' if kind.endswith('s') else 'is'} no {kind} called '{name}'", did_you_mean(name, files)
        )
    return files[name]


class NamedByFile(str):
    """Name of Python code read from a file. It is never imported: only the user's command chooses the code that runs.

    Attributes:
        remedy: words to type in order to choose the same code.
    """

    where: str
    remedy: str

    def __new__(cls, name: str, where: str, remedy: str) -> Self:  # noqa: D102
        named = super().__new__(cls, name)
        named.where, named.remedy = where, remedy
        return named

    def __str__(self) -> str:  # str() keeps the mark
        return self

    def __reduce__(self) -> tuple[Any, ...]:  # pickling keeps the mark
        return type(self), (str.__str__(self), self.where, self.remedy)


def find_module(kind: ModuleKind, name: str) -> ModuleType:
    """Import the module that a built-in name or the user's own dotted path names."""
    known = modules(kind)
    if name in known:
        # An error of a plug-in is the user's to mend; one of sslbench itself is a bug, whose traceback is needed.
        return _imported(known[name]) if name in installed(kind) else importlib.import_module(known[name])
    if "." in name:
        refuse_named_by_file(name)
        return _import_user_module(name)
    raise UsageError(f"there is no {kind} called '{name}'", plugin_remedy(name) or did_you_mean(name, known))


def module_file(kind: ModuleKind, name: str) -> Path | None:
    """Return the file of a built-in module without importing it; None for the user's own, whose package exists."""
    builtin = modules(kind)
    if name in builtin:
        spec = importlib.util.find_spec(builtin[name])
        return None if spec is None or spec.origin is None else Path(spec.origin)
    if "." in name:
        refuse_missing_module(name)
        return None
    raise UsageError(f"there is no {kind} called '{name}'", did_you_mean(name, builtin))


def find_object(spec: str) -> Any:
    """Return the object called `module:attribute`, for instance a user's function that builds a backbone."""
    # The current folder is searched too, as `python -m` does.
    refuse_named_by_file(spec)
    module_name, _, attribute = spec.partition(":")
    module = _import_user_module(module_name)
    target: Any = module
    for part in attribute.split("."):
        if not hasattr(target, part):
            valid = [n for n in vars(target) if not n.startswith("_")] if hasattr(target, "__dict__") else []
            raise UsageError(f"'{module_name}' ({module.__file__}) has no '{attribute}'", did_you_mean(part, valid))
        target = getattr(target, part)
    return target


def from_file(names: Any, where: str, remedy: str) -> Any:
    """Return names read from a file, those of Python code marked so that they are not imported."""
    if isinstance(names, list | tuple):
        return [from_file(name, where, remedy) for name in names]
    if not isinstance(names, str) or not ("." in names or ":" in names) or isinstance(names, NamedByFile):
        return names
    return NamedByFile(names, where, remedy.format(names))


def without_code(content: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the content of a benchmark's or preset's file with its protocol and decoders as `from_file` gives them."""
    changed = dict(content)
    if "protocol" in content:
        remedy = "sslbench eval {} beside --benchmark or --preset"
        changed["protocol"] = from_file(content["protocol"], f"{where}: protocol", remedy)
    fixed = content.get("preprocessing")
    if isinstance(fixed, dict) and "decoder" in fixed:
        decoder = from_file(fixed["decoder"], f"{where}: preprocessing.decoder", "--decoder {}")
        changed["preprocessing"] = {**fixed, "decoder": decoder}
    settings = content.get("settings")
    if isinstance(settings, dict) and "optimizer" in settings:
        optimizer = from_file(settings["optimizer"], f"{where}: settings.optimizer", "optimizer={}")
        changed["settings"] = {**settings, "optimizer": optimizer}
    for key, text in _texts(content.get("settings"), ""):
        refuse_location(text, f"{where}: settings.{key}", f"{key}={text}")
    return changed


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield the texts in a value of YAML with their keys: settings may be locations of data."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)


def refuse_location(location: str, where: str, remedy: str = "") -> None:
    """Refuse a data location read from a file that names a Python module as its source.

    `remedy`: the same on the command line; '': as --data.
    """
    if (found := _MODULE_SOURCE.search(location)) and not Path(found["place"]).exists():
        refuse_named_by_file(NamedByFile(found["module"], where, remedy or f"--data {location}"))


def refuse_named_by_file(name: str) -> None:
    """Refuse to import code named by a file."""
    if isinstance(name, NamedByFile):
        raise UsageError(
            f"{name.where} names the Python code '{name}'; code named in a file is not run",
            f"If you trust it, give it on the command line: {name.remedy}",
        )


_file_of_requests = contextvars.ContextVar("_file_of_requests", default="")


@contextlib.contextmanager
def requests_from_file(where: str) -> Iterator[None]:
    """Refuse all code of the user's own inside the block, in which the requests of the file `where` are run."""
    token = _file_of_requests.set(where)
    try:
        yield
    finally:
        _file_of_requests.reset(token)


def search_current_folder() -> str:
    """Let Python find modules in the current folder, as `python -m` does, and return the folder."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return here


def refuse_missing_module(spec: str) -> None:
    """Refuse a name of the user's own code whose module cannot be found; nothing is imported."""
    refuse_named_by_file(spec)
    _refuse_code_of_requests(spec)
    name = spec.partition(":")[0]
    package = name.partition(".")[0]
    here = search_current_folder()
    # The package alone: to find a module inside it, Python imports the package.
    if package not in sys.modules and (not package or importlib.util.find_spec(package) is None):
        raise _no_module(name, here)


def _refuse_code_of_requests(name: str) -> None:
    if where := _file_of_requests.get():
        raise UsageError(
            f"{where} names the Python code '{name}'; code named in a file is not run", "--trust-code runs it."
        )


def _no_module(name: str, here: str) -> UsageError:
    return UsageError(
        f"there is no Python module '{name}' in {here} or on the Python path",
        "Run sslbench from the folder that holds the module, or add that folder to PYTHONPATH.",
    )


def _import_user_module(name: str) -> ModuleType:
    _refuse_code_of_requests(name)
    search_current_folder()
    return _imported(name)


def _imported(name: str) -> ModuleType:
    """Import a module outside of sslbench; its errors are the user's to mend, and no traceback of sslbench."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # The module itself is missing, not one that it imports.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise _no_module(name, str(Path.cwd())) from None
        raise UsageError(f"importing '{name}' failed: {error}") from error
    except Exception as error:
        raise UsageError(f"importing '{name}' failed: {type(error).__name__}: {error}") from error
