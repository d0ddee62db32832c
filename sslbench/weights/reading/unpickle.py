"""Restricted unpickler: it imports no names, runs no code of the file and returns inert data.

A pickle is a program: it may name any importable function, call it, and set the state of the result. Here a name is
never imported. It becomes a `PickledName`: one of the harmless constructors in `_allowed`, a class whose objects are
inert, or a function that raises an error when called. Arrays and tensors are descriptions (dtype, shape, bytes) until
the whole pickle has been read; `sslbench.weights.reading.pickled` checks them and builds the real ones.
"""

import os
import pickle
import re
import struct
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, ClassVar

import numpy as np
import torch

from sslbench.errors import WeightsError
from sslbench.weights.reading import haiku
from sslbench.weights.reading.pickled import (
    ArrayDescription,
    Budget,
    DtypeDescription,
    InertObject,
    PickledName,
    PickledObject,
    StorageDescription,
    TensorDescription,
    UnsupportedTensor,
    resolve,
)

# Modules of which nothing may be called, not even classes.
_REFUSED_ROOTS = frozenset(
    "os posix nt subprocess sys builtins __builtin__ shutil socket importlib runpy pty ctypes code codeop webbrowser "
    "pickle _pickle marshal multiprocessing commands".split()
)
_NUMERIC = re.compile(r"[<>=|]?(?:[biufcOSU]\d{0,7}|\?)")
_ENCODING = "latin1"  # text of Python 2, in which numpy's bytes survive


def _refuse(name: str) -> Callable[..., Any]:
    def make(*_: object) -> Any:
        raise WeightsError(
            f"the file asks to call '{name}', which is not needed to read weights; nothing was run",
            "--trust-pickle runs it: only for a file whose author you trust.",
        )

    return make


def _reconstruct_object(cls: object, base: object = None, state: object = None) -> object:
    """Construct an object as in pickle protocols 0 and 1; `state` holds the items of a subclass of dict."""
    if not isinstance(cls, PickledName):
        raise pickle.UnpicklingError("copyreg reconstructs something that is not a class of the file")
    instance = cls.make()
    is_dict = isinstance(base, PickledName) and base.name.endswith(".dict")
    if isinstance(instance, InertObject) and isinstance(state, dict) and is_dict:
        instance.mapping.update(state)
    return instance


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Return bytes that Python 3 pickled with protocol 2: as text and a call of the latin1 codec."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"the file asks for the codec {encoding!r}")
    return text.encode("latin1")


def _dtype(name: object, *_flags: object) -> DtypeDescription:
    if not isinstance(name, str) or _NUMERIC.fullmatch(name) is None:
        raise pickle.UnpicklingError(f"the numpy dtype {name!r:.40} is not one of numbers or text")
    return DtypeDescription(np.dtype(name))


def _scalar(dtype: object, value: object = b"") -> Any:
    data = value.encode("latin1") if isinstance(value, str) else value
    if not isinstance(dtype, DtypeDescription) or not isinstance(data, bytes) or len(data) != dtype.value.itemsize:
        raise pickle.UnpicklingError("a numpy scalar is damaged")
    if dtype.value.hasobject:
        raise pickle.UnpicklingError("a numpy scalar holds an object")
    return np.frombuffer(data, dtype=dtype.value)[0].item()


def _from_buffer(data: object, dtype: object, shape: object, order: object) -> ArrayDescription:
    """Return the description of an array that numpy pickled with protocol 5."""
    if order not in ("C", "F"):
        raise pickle.UnpicklingError("a numpy array is damaged")
    return ArrayDescription((1, shape, dtype, order == "F", data))


def _tensor(storage: object, offset: object, shape: object, stride: object, *rest: object) -> TensorDescription:
    """Return the description of a tensor from the arguments of `_rebuild_tensor` or `_rebuild_tensor_v2`."""
    return TensorDescription(storage, offset, shape, stride, None, rest[2] if len(rest) > 2 else None)


def _tensor_v3(*args: object) -> TensorDescription:
    """Return the description of a tensor whose dtype has no storage class and which lies in a storage of bytes."""
    storage, offset, shape, stride, _gradient, _hooks, dtype, *rest = args
    return TensorDescription(storage, offset, shape, stride, dtype, rest[0] if rest else None)


def _of_type(rebuild: object, _type: object = None, args: object = (), _state: object = None) -> Any:
    if not isinstance(rebuild, PickledName) or not isinstance(args, tuple):
        raise pickle.UnpicklingError("a tensor is constructed by a function that does not return tensors")
    return rebuild.make(*args)


def _mapping(items: object = ()) -> dict[Any, Any]:
    if isinstance(items, dict):
        return dict(items)
    found = {}
    for pair in items if isinstance(items, list | tuple) else ():
        key, value = pair
        found[checked_key(key)] = value
    return found


def _listed(items: object = (), *_: object) -> list[Any]:
    """Return the items of a list or set as a list; hashing the items of a set could take unbounded time."""
    if not isinstance(items, list | tuple | dict | str | bytes):
        raise pickle.UnpicklingError("a list of the file is constructed from an object that is not a sequence")
    return list(items)


def _plain(kind: type) -> Callable[..., Any]:
    def make(*args: object) -> Any:
        if len(args) > 1 or not all(isinstance(value, str | int | float) for value in args):
            raise pickle.UnpicklingError(f"the file constructs a {kind.__name__} from an object of another type")
        return kind(*args)

    return make


def checked_key(key: Any) -> Any:
    """Return a dict's key after checking that hashing it is cheap: no nested tuples and no huge integers."""
    parts = key if type(key) is tuple else (key,)
    small = isinstance(key, tuple) is False or len(parts) <= 16
    for part in parts:
        small = small and not isinstance(part, tuple | frozenset)
        small = small and not (isinstance(part, int) and part.bit_length() > 64)
    if not small:
        raise pickle.UnpicklingError("a dict of the file has a key of excessive size")
    return key


def _allowed() -> dict[str, Callable[..., Any]]:
    """Return full name -> function of everything that a file may call.

    Containers become plain dict, list and tuple, whose behaviour nothing in the file can change.
    """
    rebuild = "torch._utils._rebuild"
    functions: dict[str, Callable[..., Any]] = {
        f"{rebuild}_tensor": _tensor,
        f"{rebuild}_tensor_v2": _tensor,
        f"{rebuild}_tensor_v3": _tensor_v3,
        f"{rebuild}_parameter": lambda data, *_: data,
        f"{rebuild}_parameter_with_state": lambda data, *_: data,
        f"{rebuild}_device_tensor_from_numpy": lambda data, *_: data,
        f"{rebuild}_device_tensor_from_cpu_tensor": lambda data, *_: data,
        "torch._tensor._rebuild_from_type": _of_type,
        "torch._tensor._rebuild_from_type_v2": _of_type,
        "torch.Size": lambda sizes=(): tuple(_listed(sizes)),
        "torch.device": lambda *_: InertObject("torch.device"),
        "torch.serialization._get_layout": lambda *_: InertObject("torch.layout"),
        "collections.OrderedDict": _mapping,
        "collections.defaultdict": lambda _factory=None, items=(): _mapping(items),
        "collections.Counter": _mapping,
        "collections.deque": _listed,
        "copyreg._reconstructor": _reconstruct_object,
        "copy_reg._reconstructor": _reconstruct_object,
        "_codecs.encode": _encode,
        "numpy.dtype": _dtype,
    }
    # Tensors of kinds that no weight format uses: left out and reported with their kind.
    for name, kind in {
        "sparse_tensor": "sparse", "sparse_csr_tensor": "sparse", "qtensor": "quantised", "nested_tensor": "nested",
        "wrapper_subclass": "of a class of its own", "meta_tensor_no_storage": "meta",
    }.items():  # fmt: skip
        functions[f"{rebuild}_{name}"] = lambda *_, kind=kind: UnsupportedTensor(kind)
    # Type annotations of TorchScript's lists and dicts.
    for name in ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag"):
        functions[f"torch.jit._pickle.{name}"] = lambda data, *_: data
    for root in ("builtins", "__builtin__"):
        functions |= {f"{root}.{kind.__name__}": _plain(kind) for kind in (bool, int, float, complex, str)}
        functions |= {f"{root}.{kind}": _listed for kind in ("list", "set", "frozenset")}
        functions |= {f"{root}.tuple": lambda items=(): tuple(_listed(items)), f"{root}.dict": _mapping}
        functions[f"{root}.object"] = lambda *_: InertObject("object")
    for root in ("numpy.core.multiarray", "numpy._core.multiarray"):
        # An array is constructed empty; its state holds shape and values.
        functions |= {f"{root}._reconstruct": lambda *_: ArrayDescription(), f"{root}.scalar": _scalar}
    for root in ("numpy.core.numeric", "numpy._core.numeric"):
        functions[f"{root}._frombuffer"] = _from_buffer
    return functions | haiku.functions()


_DTYPES: Mapping[str, torch.dtype] = {
    f"torch.{name}": value for name, value in vars(torch).items() if isinstance(value, torch.dtype)
}


class _BoundedFile:
    """File that refuses to read beyond its end: one damaged byte may request 2^40 bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        here = file.tell()
        self.end = file.seek(0, os.SEEK_END)
        file.seek(here)

    def read(self, n: int) -> bytes:
        if not 0 <= n <= self.end - self.file.tell():
            raise EOFError(f"{n} bytes are requested, but the file ends before")
        return self.file.read(n)

    def readline(self) -> bytes:
        return self.file.readline()


class _RestrictedUnpickler(pickle._Unpickler):
    """Python's pure-Python unpickler, without the steps that would act on objects constructed by the file.

    The C implementation also allocates as many entries as the file declares, which may exhaust time or memory.
    """

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: _BoundedFile, pickled: "RestrictedPickle", persistent_load: Callable[[Any], Any]) -> None:
        super().__init__(file, encoding=_ENCODING)
        self.pickled = pickled
        self.persistent = persistent_load

    def find_class(self, module: str, name: str) -> Any:
        return self.pickled.find(module, name)

    def persistent_load(self, pid: Any) -> Any:
        return self.persistent(pid)

    def _call(self, function: Any, args: Any) -> Any:
        if not isinstance(function, PickledName) or not isinstance(args, tuple):
            raise pickle.UnpicklingError("the file calls an object that is not a function")
        self.pickled.budget.charge(sum(len(a) for a in args if isinstance(a, str | bytes | list | tuple | dict)))
        return function.make(*args)

    def load_reduce(self) -> None:
        args = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], args)

    def load_newobj_ex(self) -> None:
        self.stack.pop()  # keywords, which only inert classes would get
        self.load_reduce()

    def load_obj(self) -> None:
        function, *args = self.pop_mark()
        self.append(self._call(function, tuple(args)))

    def load_inst(self) -> None:
        module, name = (self.readline()[:-1].decode("ascii") for _ in range(2))  # type: ignore[attr-defined]
        self.append(self._call(self.find_class(module, name), tuple(self.pop_mark())))

    def load_build(self) -> None:
        state, instance = self.stack.pop(), self.stack[-1]
        if isinstance(instance, PickledObject):
            instance.set_state(state)
        elif not isinstance(instance, dict | list):  # these stand for subclasses, whose attributes are dropped
            raise pickle.UnpicklingError(f"the file sets the state of a {type(instance).__name__}")

    def load_append(self) -> None:
        self._extend([self.stack.pop()])

    def load_appends(self) -> None:
        self._extend(self.pop_mark())

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)
        elif not isinstance(self.stack[-1], InertObject):
            raise pickle.UnpicklingError(f"the file appends to a {type(self.stack[-1]).__name__}")

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _set_items(self, items: list[Any]) -> None:
        instance = self.stack[-1]
        target = instance.mapping if isinstance(instance, InertObject) else instance
        if not isinstance(target, dict):
            raise pickle.UnpicklingError(f"the file sets items of a {type(instance).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[checked_key(key)] = value

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def load_empty_set(self) -> None:
        # Not a set: hashing what the file puts into it could take unbounded time.
        self.append([])

    def load_frozenset(self) -> None:
        self.append(self.pop_mark())

    def load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))  # type: ignore[attr-defined]
        self.append(self.read(length))  # type: ignore[attr-defined]

    def load_extension(self) -> None:
        raise pickle.UnpicklingError("the file uses the registry of pickle extensions")

    # Python's unpickler calls what this table holds: methods that are overridden alone have no effect.
    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        **dict.fromkeys((pickle.REDUCE[0], pickle.NEWOBJ[0]), load_reduce),
        pickle.NEWOBJ_EX[0]: load_newobj_ex,
        pickle.OBJ[0]: load_obj,
        pickle.INST[0]: load_inst,
        pickle.BUILD[0]: load_build,
        pickle.APPEND[0]: load_append,
        **dict.fromkeys((pickle.APPENDS[0], pickle.ADDITEMS[0]), load_appends),
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        pickle.EMPTY_SET[0]: load_empty_set,
        pickle.FROZENSET[0]: load_frozenset,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        **dict.fromkeys((pickle.EXT1[0], pickle.EXT2[0], pickle.EXT4[0]), load_extension),
    }


def _no_persistent(key: object) -> Any:
    raise pickle.UnpicklingError(f"a plain pickle refers to an object outside of it: {key!r:.60}")


class RestrictedPickle:
    """Reader of the pickles in one file of `size` bytes.

    Attributes:
        stubbed: classes named in the file and replaced by inert objects.
        suspicious: functions named in the file but not called (a call raises WeightsError).
        budget: memory bound of the file's content.
    """

    def __init__(self, size: int) -> None:
        self.stubbed: set[str] = set()
        self.suspicious: set[str] = set()
        self.budget = Budget(size)
        self._known: dict[str, Any] = {name: PickledName(name, function) for name, function in _allowed().items()}
        self._known |= {
            **_DTYPES,
            "numpy.ndarray": PickledName("numpy.ndarray", lambda *_: InertObject("numpy.ndarray")),
        }

    def find(self, module: str, name: str) -> Any:
        """Return the stand-in for `module.name`, without importing it."""
        full = f"{module}.{name}"
        if full not in self._known:
            is_class = _looks_like_class(module, name)
            # TorchScript's own classes, and storages, which are read.
            silent = full.startswith("__torch__.") or (full.startswith("torch.") and full.endswith("Storage"))
            if not silent:
                (self.stubbed if is_class else self.suspicious).add(full)
            self._known[full] = PickledName(full, (lambda *_: InertObject(full)) if is_class else _refuse(full))
        return self._known[full]

    def load(self, file: IO[bytes], persistent_load: Callable[[Any], Any] = _no_persistent) -> Any:
        """Read one pickle from the file's position; arrays and tensors are descriptions (`pickled.resolve`)."""
        return _RestrictedUnpickler(_BoundedFile(file), self, persistent_load).load()

    def read(self, file: IO[bytes]) -> Any:
        """Read one pickle from the file's position, with its arrays and tensors."""
        return resolve(self.load(file), self.budget)

    def storage(self, persistent_id: Any) -> StorageDescription:
        """Return the description of a storage from torch's ('storage', class, key, device, number of values, view)."""
        kind, cls, key, _device, count, *view = persistent_id
        name = cls.name if isinstance(cls, PickledName) else ""
        if kind != "storage" or not isinstance(key, str) or not isinstance(count, int) or count < 0:
            raise pickle.UnpicklingError(f"{kind!r:.40} is not a storage")
        return StorageDescription(name, key, count, view[0] if view else None)


def _looks_like_class(module: str, name: str) -> bool:
    """Return True if a name is that of a class: looked up in imported modules, else judged by its capital letter."""
    root = module.partition(".")[0]
    if root in _REFUSED_ROOTS:
        return False
    if root == "__torch__":
        return True
    loaded = sys.modules.get(module)
    known = vars(loaded).get(name) if loaded is not None else None
    if known is not None:
        return isinstance(known, type)
    return name.rpartition(".")[2].lstrip("_")[:1].isupper()
