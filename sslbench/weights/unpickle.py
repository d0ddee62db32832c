"""A pickle reader that runs nothing: a short list of harmless constructors, inert stand-ins for every other class.

A pickle is a program: it may name any importable function and call it. Here a name is never imported. It is looked up
in `_allowed`, the one list of what may be called; a class that is not in it becomes an inert stand-in that swallows its
arguments, and calling anything else ends the reading.
"""

import collections
import pickle
import struct
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import IO, Any, ClassVar, Self

import numpy as np
import torch

from sslbench.errors import WeightsError
from sslbench.weights import haiku

# Nothing from these modules is ever harmless to call, not even their classes.
_REFUSED_ROOTS = frozenset(
    "os posix nt subprocess sys builtins __builtin__ shutil socket importlib runpy pty ctypes code codeop webbrowser "
    "pickle _pickle marshal multiprocessing commands".split()
)


class Inert:
    """Stands for an object of a class that is not known: takes any arguments, state and items, and does nothing.

    Attributes:
        mapping: the items, if the class was a kind of dict, so that tensors inside can be read.
    """

    mapping: dict[Any, Any]

    def __new__(cls, *_args: object, **_keywords: object) -> Self:  # noqa: D102
        inert = super().__new__(cls)
        inert.mapping = {}
        return inert

    def __init__(self, *_args: object, **_keywords: object) -> None:
        pass

    def __setitem__(self, key: object, value: object) -> None:
        self.mapping[key] = value

    def append(self, value: object) -> None:
        """Called for an item of what was a kind of list."""

    def extend(self, values: object) -> None:
        """Called for the items of what was a kind of list."""

    def __setstate__(self, state: object) -> None:
        pass


class _Refused:
    """Stands for a function that is not allowed: naming it is harmless, calling it ends the reading."""

    name = ""

    def __new__(cls, *_args: object, **_keywords: object) -> "_Refused":
        raise WeightsError(
            f"the file asks to call '{cls.name}', which is not needed to read weights; nothing was run",
            "Do not load this file with anything else unless you trust whoever made it.",
        )


class _Allowed:
    """A harmless function. Wrapped, because a pickle may also set attributes of what it names."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *args: object) -> object:
        return self._function(*args)

    def __setattr__(self, name: str, value: object) -> None:
        raise pickle.UnpicklingError(f"the file sets '{name}' of a function")

    def __setstate__(self, state: object) -> None:
        raise pickle.UnpicklingError("the file sets the state of a function")


def _reconstruct_object(cls: object, _base: object = None, _state: object = None) -> object:
    if isinstance(cls, type) and issubclass(cls, Inert | _Refused):
        return cls()
    raise pickle.UnpicklingError("copyreg reconstructs something that is not a class of the file")


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes with protocol 2: as text and the call of a codec, always this one."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"the file asks for the codec {encoding!r}")
    return text.encode("latin1")


def _empty_array(_kind: object, _shape: object, _type: object) -> np.ndarray[Any, Any]:
    """An array is made empty, and gets its shape and values as its state."""
    return np.ndarray((0,), dtype=np.int8)


def _scalar(dtype: "np.dtype[Any]", value: bytes = b"") -> Any:
    if not isinstance(dtype, np.dtype) or dtype.hasobject or len(value) != dtype.itemsize:
        raise pickle.UnpicklingError("a numpy scalar is damaged")
    return np.frombuffer(value, dtype=dtype)[0]


def _dtype(name: object, *_flags: object) -> "np.dtype[Any]":
    if not isinstance(name, str):
        raise pickle.UnpicklingError("a numpy dtype is damaged")
    return np.dtype(name, False, True)  # a copy: the pickle sets its byte order next


def _from_buffer(data: bytes, dtype: "np.dtype[Any]", shape: object, order: object) -> np.ndarray[Any, Any]:
    """How numpy pickles an array with protocol 5."""
    if not isinstance(dtype, np.dtype) or dtype.hasobject or order not in ("C", "F"):
        raise pickle.UnpicklingError("a numpy array is damaged")
    return np.frombuffer(data, dtype).reshape(shape, order=order)


_PLAIN_TYPES = (bool, int, float, complex, str, list, tuple, dict, set, frozenset)


def _allowed() -> dict[str, Callable[..., Any]]:
    """Everything that a file may call: this is the whole list.

    Containers come back as plain dict, list and set, whose behaviour nothing in the file can change.
    """
    from torch import _utils

    functions: dict[str, Callable[..., Any]] = {
        "torch._utils._rebuild_tensor": _utils._rebuild_tensor,
        "torch._utils._rebuild_tensor_v2": _utils._rebuild_tensor_v2,
        "torch._utils._rebuild_parameter": lambda data, *_: data,
        "torch._utils._rebuild_parameter_with_state": lambda data, *_: data,
        "torch._tensor._rebuild_from_type_v2": lambda rebuild, _type, args, _state: rebuild(*args),
        "torch.Size": torch.Size,
        "torch.device": torch.device,
        "collections.OrderedDict": lambda *items: collections.OrderedDict(*items),
        "collections.defaultdict": lambda *_: {},
        "collections.Counter": lambda items=(): dict(items),
        "collections.deque": lambda items=(), *_: list(items),
        "copyreg._reconstructor": _reconstruct_object,
        "copy_reg._reconstructor": _reconstruct_object,
        "_codecs.encode": _encode,
    }
    # How TorchScript says what its lists and dicts hold.
    for name in ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag"):
        functions[f"torch.jit._pickle.{name}"] = lambda data, *_: data
    for root in ("builtins", "__builtin__"):
        functions |= {f"{root}.{kind.__name__}": kind for kind in _PLAIN_TYPES}
    for root in ("numpy.core.multiarray", "numpy._core.multiarray"):
        functions |= {f"{root}._reconstruct": _empty_array, f"{root}.scalar": _scalar}
    for root in ("numpy.core.numeric", "numpy._core.numeric"):
        functions[f"{root}._frombuffer"] = _from_buffer
    return functions | {"numpy.dtype": _dtype} | haiku.functions()


_VALUES: Mapping[str, object] = {
    **{f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)},
    "builtins.object": object,
    "__builtin__.object": object,
}


class _PatientUnpickler(pickle._Unpickler):  # the one that is written in Python
    """Takes no more memory than the file has bytes.

    One damaged byte can ask for entry number 2^32 of the memo, or for an array of 2^40 bytes. The unpickler that is
    written in C makes room for all of it before it reads on, which takes minutes or the machine; a dict does not.
    """

    read: Callable[[int], bytes]
    append: Callable[[object], None]

    def _load_bytearray(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(bytearray(self.read(length)))

    dispatch: ClassVar[dict[int, Any]] = {**pickle._Unpickler.dispatch, pickle.BYTEARRAY8[0]: _load_bytearray}


class RestrictedPickle:
    """What `torch.load` takes as its `pickle_module`; afterwards says which names the file mentions.

    Attributes:
        stubbed: classes that became inert.
        suspicious: functions that were named and not called (a call raises WeightsError).
    """

    def __init__(self) -> None:
        self.stubbed: set[str] = set()
        self.suspicious: set[str] = set()
        self._known: dict[str, Any] = {name: _Allowed(function) for name, function in _allowed().items()}
        self._known |= {"numpy.ndarray": type("ndarray", (Inert,), {}), **_VALUES, **haiku.classes()}

    def find(self, module: str, name: str) -> Any:
        """What stands for `module.name`; imports nothing."""
        full = f"{module}.{name}"
        if full not in self._known:
            is_class = _looks_like_class(module, name)
            (self.stubbed if is_class else self.suspicious).add(full)
            self._known[full] = type("Stand-in", (Inert,) if is_class else (_Refused,), {"name": full})
        return self._known[full]

    def as_module(self) -> Any:
        """An object with the functions of the module `pickle` that `torch.load` uses."""
        find = self.find

        class Unpickler(_PatientUnpickler):
            def find_class(self, module: str, name: str) -> Any:
                return find(module, name)

        def load(file: IO[bytes], **options: Any) -> Any:
            return Unpickler(file, **options).load()

        return SimpleNamespace(Unpickler=Unpickler, load=load, __name__="sslbench.weights.unpickle")


def _looks_like_class(module: str, name: str) -> bool:
    """Whether calling it would merely make an object: looked up among imported modules, else judged by its name."""
    if module.partition(".")[0] in _REFUSED_ROOTS:
        return False
    loaded = sys.modules.get(module)
    known = vars(loaded).get(name) if loaded is not None else None
    if known is not None:
        return isinstance(known, type)
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()
