"""Digest of a user's own Python code: the source files behind it, and the code that is in memory.

Files alone do not tell what runs: a file may have been edited after it was imported, and a class typed into a notebook
has none. Code in memory alone misses functions that are reached through a module. So both count. Libraries are known by
their version; the standard library, torch and sslbench itself are left out (`sslbench.identity` says why).
"""

import ast
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_OWN = Path(__file__).parent
_LEFT_OUT = {"torch", "sslbench", "builtins"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def sha256(things: Iterable[Any]) -> str:
    """Return 32 hex digits for functions, classes and modules, or '' where all of them are of libraries.

    Args:
        things: functions, classes, instances or modules; of instances the class counts.
    """
    found = sorted({_name(thing): _as_code(thing) for thing in things if not is_library(thing)}.items())
    if not found:
        return ""
    memory = [f"{name} {_in_memory(thing, set())}" for name, thing in found]
    files = _files(_module_name(thing) for _, thing in found)
    return hashlib.sha256("\n".join((*memory, *files)).encode()).hexdigest()[:32]


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


def _name(thing: Any) -> str:
    code = _as_code(thing)
    return f"{_module_name(code)}.{getattr(code, '__qualname__', type(code).__qualname__)}"


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
    """Digests of the files of modules, and of those of the user that they import, directly or not."""
    found: dict[Path, str] = {}
    wanted = list(modules)
    while wanted:
        name = wanted.pop()
        file = _file(name) or _place(name)
        if file is None or file in found or file.suffix != ".py" or _installed(file) or not file.is_file():
            continue
        content = file.read_bytes()
        found[file] = hashlib.sha256(content).hexdigest()
        wanted += _imported(content, name, is_package=file.name == "__init__.py")
    return sorted(found.values())


def _place(name: str) -> Path | None:
    """The file of a module that is not imported yet; nothing is run to find it."""
    try:
        spec = importlib.util.find_spec(name) if "." not in name or name.rpartition(".")[0] in sys.modules else None
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


def _imported(content: bytes, name: str, *, is_package: bool) -> Iterator[str]:
    """The full names that a module imports anywhere; `from a import b` gives a and a.b."""
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


def _in_memory(thing: Any, seen: set[int]) -> str:
    """A digest of a function or class as it is in memory, with the functions of the user that it calls by name."""
    if id(thing) in seen:
        return ""
    seen.add(id(thing))
    parts: list[str] = []
    if isinstance(thing, functools.partial):
        parts = [_in_memory(thing.func, seen), *_values([*thing.args, *sorted(thing.keywords.items())], seen)]
    elif isinstance(thing, type):
        bases = [base for base in thing.__mro__ if not is_library(base)]
        for base in bases:
            for name, value in sorted(vars(base).items(), key=lambda item: item[0]):
                if name not in ("__module__", "__doc__", "__dict__", "__weakref__"):
                    parts += [name, *_values([value], seen)]
    elif (function := _function(thing)) is not None:
        code = function.__code__
        parts = [*_code(code), *_values([function.__defaults__, function.__kwdefaults__], seen)]
        parts += _values([cell.cell_contents for cell in function.__closure__ or () if _filled(cell)], seen)
        for name in sorted(_names(code)):
            value = function.__globals__.get(name)
            if value is not None and not isinstance(value, types.ModuleType):
                parts += [name, *_values([value], seen)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _function(thing: Any) -> types.FunctionType | None:
    """The plain function behind a method, a property, a static or a cached method."""
    if isinstance(thing, types.MethodType | staticmethod | classmethod):
        thing = thing.__func__
    elif isinstance(thing, property):
        thing = thing.fget
    elif isinstance(thing, functools.cached_property):
        thing = thing.func
    elif isinstance(thing, functools._lru_cache_wrapper):
        thing = thing.__wrapped__
    return thing if isinstance(thing, types.FunctionType) else None


def _values(values: Iterable[Any], seen: set[int]) -> Iterator[str]:
    """Text of plain values and digests of the user's functions and classes; other things by their type."""
    for value in values:
        if isinstance(value, _PLAIN):
            yield repr(value)
        elif isinstance(value, tuple | list | dict):
            inner = value.items() if isinstance(value, dict) else value
            yield "..." if id(value) in seen else f"({', '.join(_values(inner, seen | {id(value)}))})"
        elif isinstance(value, type | functools.partial) or _function(value) is not None:
            yield _name(value) if is_library(_function(value) or value) else _in_memory(value, seen)
        else:
            yield _name(value)


def _code(code: types.CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield " ".join(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code(constant)
        elif isinstance(constant, frozenset):
            yield repr(sorted(map(repr, constant)))
        else:
            yield repr(constant)


def _names(code: types.CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*inner)


def _filled(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True
