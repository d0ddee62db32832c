"""Digest of a user's own Python code: the source files that define it, and the user's files that these import.

Libraries count by version; the standard library, torch and sslbench itself are left out (see `sslbench.identity`).
"""

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import types
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_OWN = Path(__file__).parent
_LEFT_OUT = {"torch", "sslbench", "builtins"}


def sha256(things: Iterable[Any]) -> str:
    """Return 32 hex digits for functions, classes and modules, or '' where all of them are of libraries."""
    own = [_as_code(thing) for thing in things if not is_library(thing)]
    code = {f"{_module_name(each)}.{getattr(each, '__qualname__', type(each).__qualname__)}": each for each in own}
    if not code:
        return ""
    without_file = [of_process(thing) for thing in code.values() if _file(_module_name(thing)) is None]
    lines = [*sorted(code), *sorted(without_file), *_files(map(_module_name, code.values()))]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


@functools.cache
def of_process(thing: Any) -> str:
    """Return a word for an object, or code without a file (of a notebook): no other process can tell what it was."""
    return uuid.uuid4().hex


def library_versions(things: Iterable[Any]) -> dict[str, str]:
    """Return the versions of the libraries that define these things, other than those left out.

    Without the local part that names a build: '0.20.1+cpu' and '0.20.1+cu124' are the same code.
    """
    tops = {_module_name(thing).partition(".")[0] for thing in things if is_library(thing)} - _LEFT_OUT
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in sorted(tops)}
    return {name: str(version).partition("+")[0] for name, version in found.items() if version is not None}


def is_library(thing: Any) -> bool:
    """Return whether the standard library, an installed package with a version, or sslbench itself defines it."""
    name = _module_name(thing)
    top = name.partition(".")[0]
    if top in _LEFT_OUT or top in sys.builtin_module_names:
        return True
    file = _file(name)
    if file is None:  # typed into an interpreter, or a builtin without a module
        return not name
    if not _installed(file):
        return False
    return file.is_relative_to(_standard_library()) or hasattr(sys.modules.get(top), "__version__")


def _as_code(thing: Any) -> Any:
    if isinstance(thing, type | types.FunctionType | types.MethodType | types.ModuleType | functools.partial):
        return thing
    return type(thing)


def _module_name(thing: Any) -> str:
    code = _as_code(thing)
    if isinstance(code, functools.partial):
        return _module_name(code.func)
    return str(code.__name__ if isinstance(code, types.ModuleType) else getattr(code, "__module__", None) or "")


def _file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return Path(file) if file else None


@functools.cache
def _standard_library() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _installed(file: Path) -> bool:
    return (
        {"site-packages", "dist-packages"} & set(file.parts) != set()
        or file.is_relative_to(_standard_library())
        or file.is_relative_to(_OWN)
    )


def _files(modules: Iterable[str]) -> list[str]:
    """Return digests of the modules' files and of the user's files that they import, directly or indirectly."""
    found: dict[Path, str] = {}
    wanted = list(modules)
    while wanted:
        name = wanted.pop()
        file = _file(name)
        if file is None and (
            "." not in name or name.rpartition(".")[0] in sys.modules
        ):  # not imported yet, nor run here
            with contextlib.suppress(ImportError, ValueError, AttributeError):
                spec = importlib.util.find_spec(name)
                file = Path(spec.origin) if spec is not None and spec.origin else None
        if file is None or file in found or file.suffix != ".py" or _installed(file) or not file.is_file():
            continue
        content = file.read_bytes()
        found[file] = hashlib.sha256(content).hexdigest()
        wanted += _imported(content, name, is_package=file.name == "__init__.py")
    return sorted(found.values())


def _imported(content: bytes, name: str, *, is_package: bool) -> Iterator[str]:
    """Yield the full names that a module imports; `from a import b` gives a and a.b."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):
        return
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
