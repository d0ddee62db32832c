"""Digest of a user's own Python code: the source files behind it, and the code that is in memory.

Files alone are not enough: a file may have been edited after its import, a class in a notebook has none, and a table
may have been read from another file. Code in memory alone misses functions reached through a module. The digest covers
both, and all values that the code refers to. Libraries count by version; the standard library, torch and sslbench
itself are left out (see `sslbench.identity`).
"""

import ast
import functools
import hashlib
import importlib.util
import sys
import sysconfig
import types
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

_OWN = Path(__file__).parent
_LEFT_OUT = {"torch", "sslbench", "builtins"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_SHORT = 64


def sha256(things: Iterable[Any]) -> str:
    """Return 32 hex digits for functions, classes and modules, or '' where all of them are of libraries.

    Args:
        things: functions, classes, instances or modules; of instances the class counts.
    """
    found = sorted({_name(thing): _as_code(thing) for thing in things if not is_library(thing)}.items())
    if not found:
        return ""
    known = ContentDigests()
    memory = [f"{name} {known.of(thing)}" for name, thing in found]
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
    """Return digests of the modules' files and of the user's files that they import, directly or indirectly."""
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
    """Return the file of a module that is not imported yet, without running it."""
    try:
        spec = importlib.util.find_spec(name) if "." not in name or name.rpartition(".")[0] in sys.modules else None
    except (ImportError, ValueError, AttributeError):
        return None
    return Path(spec.origin) if spec is not None and spec.origin else None


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


class ContentDigests:
    """Digests of values by content: plain ones, containers, arrays, tensors, objects, functions and classes.

    An object is known by what it would be pickled as; one that cannot be pickled (a lock, an open file) by its type.
    Functions and classes of the user are known by their code and by all values that it refers to: defaults, closures
    and globals. Those of libraries are known by their name.
    """

    def __init__(self) -> None:
        """Start with nothing known."""
        self._known: dict[int, str] = {}
        self._kept: list[Any] = []  # keeps ids unique

    def of(self, value: Any) -> str:
        """Return the digest of a value, or its text where that is short.

        Raises:
            RecursionError: values lie too deep inside each other.
        """
        if isinstance(value, _PLAIN):
            text = repr(value)
            return text if len(text) < _SHORT else _hashed([text])
        if id(value) not in self._known:
            self._kept.append(value)
            self._known[id(value)] = f"inside {_name(value)}"  # ends the recursion where a value contains itself
            self._known[id(value)] = _hashed([_name(value), *self._parts(value)])
        return self._known[id(value)]

    def _parts(self, value: Any) -> Iterator[str]:
        if isinstance(value, types.ModuleType):
            return
        if isinstance(value, functools.partial):
            yield from map(self.of, (value.func, value.args, value.keywords))
        elif isinstance(value, type) or _function(value) is not None:
            if not is_library(_function(value) or value):
                yield from self._of_code(value)
            if isinstance(value, types.MethodType):
                yield self.of(value.__self__)
        elif (array := _array(value)) is not None:
            yield f"{value.dtype} {tuple(value.shape)}"
            yield self.of(array.tolist()) if array.dtype.hasobject else hashlib.sha256(array.tobytes()).hexdigest()
        elif isinstance(value, Mapping):
            yield from (self.of(part) for item in value.items() for part in item)
        elif isinstance(value, list | tuple):
            yield from map(self.of, value)
        elif isinstance(value, set | frozenset):
            yield from sorted(map(self.of, value))
        else:
            yield from self._of_object(value)

    def _of_code(self, thing: Any) -> Iterator[str]:
        if isinstance(thing, type):
            for base in (base for base in thing.__mro__ if not is_library(base)):
                for name, value in sorted(vars(base).items(), key=lambda item: item[0]):
                    if name not in ("__module__", "__doc__", "__dict__", "__weakref__"):
                        yield from (name, self.of(value))
        elif (function := _function(thing)) is not None:
            code = function.__code__
            yield from _code(code)
            yield from map(self.of, (function.__defaults__, function.__kwdefaults__))
            yield from (self.of(cell.cell_contents) for cell in function.__closure__ or () if _filled(cell))
            names = sorted(_names(code))
            for name in names:
                value = function.__globals__.get(name)
                if isinstance(value, types.ModuleType) and not is_library(value):
                    own = [key for key in names if key in vars(value)]
                    yield from (self.of(part) for key in own for part in (key, vars(value)[key]))
                elif value is not None:
                    yield from (name, self.of(value))

    def _of_object(self, value: Any) -> Iterator[str]:
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:  # noqa: BLE001 - the user's own code may raise anything
            return
        if isinstance(reduced, str):
            yield reduced
            return
        self._kept.append(reduced)
        _, args, state, items, pairs = (*reduced, *[None] * 5)[:5]
        yield self.of(args)
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                for key in sorted(part, key=str):
                    yield from (str(key), self.of(_without_handles(key, part[key])))
            else:
                yield self.of(part)
        yield from map(self.of, items or ())
        yield from (self.of(part) for pair in pairs or () for part in pair)


def _without_handles(name: str, value: Any) -> Any:
    """Return the hooks of a torch module without torch's handle ids, which differ between processes."""
    hooks = str(name).endswith("_hooks") and isinstance(value, dict) and all(isinstance(key, int) for key in value)
    return list(value.values()) if hooks else value


def _array(value: Any) -> Any:
    """Return an array or tensor as a contiguous numpy array; None for other values."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        try:
            return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        except (RuntimeError, TypeError):  # sparse, quantised, on meta
            return None
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.generic):
        return numpy.ascontiguousarray(value)
    return None


def _hashed(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode(errors="surrogatepass")).hexdigest()[:32]


def _function(thing: Any) -> types.FunctionType | None:
    """Return the function behind a method, property, static or cached method."""
    if isinstance(thing, types.MethodType | staticmethod | classmethod):
        thing = thing.__func__
    elif isinstance(thing, property):
        thing = thing.fget
    elif isinstance(thing, functools.cached_property):
        thing = thing.func
    elif isinstance(thing, functools._lru_cache_wrapper):
        thing = thing.__wrapped__
    return thing if isinstance(thing, types.FunctionType) else None


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
