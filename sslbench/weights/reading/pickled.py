"""Inert descriptions of a pickle's objects, and the construction of arrays and tensors from them after checks.

The bytes of a file only ever act on descriptions, which store the state that the file gives and nothing else. Arrays
and tensors are constructed from them after checking that all their values lie within the bytes of the file.
"""

import dataclasses
import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import UntypedStorage

from sslbench.errors import WeightsError

# Names of torch's storage classes, without 'Storage'.
STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "QInt8": torch.qint8, "QUInt8": torch.quint8, "QInt32": torch.qint32,
    "QUInt4x2": torch.quint4x2, "QUInt2x4": torch.quint2x4, "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128, "Untyped": torch.uint8,
}  # fmt: skip
# Dtypes supported by all operations on weights; others (8-bit floats, quantised) are left out.
READABLE = frozenset(dtype for name, dtype in STORAGES.items() if not name.startswith("Q"))


class Budget:
    """Bound on the memory taken by a file's content: a short file may refer to the same bytes a million times."""

    _FREE = 64_000_000
    _TIMES = 16  # uses of the same bytes: tied tensors, momentum networks

    def __init__(self, size: int) -> None:
        """Set the bound for a file of `size` bytes."""
        self.allowed, self.used = self._FREE + self._TIMES * size, 0

    def charge(self, size: int) -> None:
        """Count bytes that are about to be allocated."""
        self.used += size
        if self.used > self.allowed:
            raise WeightsError(
                f"the file's content takes more than {self.allowed / 1e9:.2g} GB in memory, far beyond its own size",
                "It is damaged or malicious: get it from another source.",
            )


class PickledName:
    """Global name in a pickle and the harmless function called in its place. It has no state that a pickle could set.

    Attributes:
        make: function called with the arguments in the pickle.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name, self.make = name, make


class PickledObject:
    """Stand-in for an object of a pickle."""

    __slots__ = ()

    def set_state(self, state: object) -> None:
        """Store the state given by the pickle."""


# Classes of TorchScript and of torch.distributed.checkpoint.
_WITH_ATTRIBUTES = ("__torch__.", "torch.distributed.checkpoint.", "torch.distributed._shard.checkpoint.")
_PARTS_OF_MODULES = ("_parameters", "_buffers", "_modules")  # attributes of a torch.nn.Module


class InertObject(PickledObject):
    """Object of an unknown class.

    Attributes:
        mapping: items of a subclass of dict, so that tensors in it can be read; attributes of a TorchScript module
            or of the description of a distributed checkpoint; parameters, buffers and modules of a module of torch.nn.
        is_module: it is a module of torch.nn, saved whole.
    """

    __slots__ = ("is_module", "mapping", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.mapping: dict[Any, Any] = {}
        self.is_module = False

    def set_state(self, state: object) -> None:
        """Keep the attributes of a TorchScript module, or the state_dict of one of torch.nn; ignore everything else."""
        if not isinstance(state, dict):
            return
        if self.name.startswith(_WITH_ATTRIBUTES):
            self.mapping = state
        elif all(isinstance(state.get(part), dict) for part in _PARTS_OF_MODULES):
            passing = state.get("_non_persistent_buffers_set", [])
            self.mapping = {
                name: value
                for part in _PARTS_OF_MODULES
                for name, value in state[part].items()
                if part != "_buffers" or name not in passing
            }
            self.is_module = True


class UnsupportedTensor(PickledObject):
    """Tensor of an unsupported kind."""

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class DtypeDescription(PickledObject):
    """Numpy dtype of numbers, text or objects, without fields."""

    __slots__ = ("value",)

    def __init__(self, value: "np.dtype[Any]") -> None:
        self.value = value

    def set_state(self, state: object) -> None:
        """Set the byte order and check the rest of the state."""
        version, order, subarray, names, fields, size, *_ = state if isinstance(state, tuple) else (0,) * 6
        text = self.value.kind in "SU"
        if version not in (3, 4) or order not in ("<", ">", "|", "=") or (subarray, names, fields) != (None,) * 3:
            raise pickle.UnpicklingError("a numpy dtype has fields or is damaged")
        if not isinstance(size, int) or size != (self.value.itemsize if text else -1):
            raise pickle.UnpicklingError("a numpy dtype has a wrong item size")
        self.value = self.value.newbyteorder("=" if order == "|" else order)


class ArrayDescription(PickledObject):
    """Numpy array.

    Attributes:
        state: (version, shape, dtype, Fortran order, values), as numpy pickles it.
    """

    __slots__ = ("state",)

    def __init__(self, state: object = None) -> None:
        self.state = state

    def set_state(self, state: object) -> None:
        """Store the state until the array is built."""
        self.state = state

    def build(self, budget: Budget, resolve: Callable[[Any], Any]) -> "np.ndarray[Any, Any]":
        """Return the array; objects in it are resolved too."""
        state = self.state if isinstance(self.state, tuple) else ()
        shape, dtype, fortran, data = state[-4:] if len(state) in (4, 5) else (None,) * 4
        # Bytes that Python 2 pickled arrive as text.
        data = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(dtype, DtypeDescription) or not _are_sizes(shape) or not isinstance(fortran, bool | int):
            raise pickle.UnpicklingError("a numpy array is damaged")
        count = math.prod(shape)
        if dtype.value.hasobject:
            if not isinstance(data, list) or len(data) != count:
                raise pickle.UnpicklingError("a numpy array of objects has a wrong number of objects")
            array = np.empty(count, dtype=object)
            for i, value in enumerate(data):
                array[i] = resolve(value)
        else:
            if not isinstance(data, bytes) or len(data) != count * dtype.value.itemsize:
                raise pickle.UnpicklingError(f"a numpy array of {count} values has a wrong number of bytes")
            budget.charge(len(data))
            array = np.frombuffer(data, dtype.value)
        return array.reshape(shape, order="F" if fortran else "C")


class StorageDescription(PickledObject):
    """Storage of tensors' values, which lie elsewhere in the file.

    Attributes:
        dtype: dtype of the values; None if unsupported.
        kind: name of the storage's class, for messages.
        first: offset of a view in the storage; else 0.
        viewed: number of values of a view; else `count`.
    """

    __slots__ = ("count", "dtype", "first", "key", "kind", "viewed")

    def __init__(self, kind: str, key: str, count: int, view: Any = None) -> None:
        word = kind.rpartition(".")[2].removesuffix("Storage")
        self.dtype = STORAGES.get(word) if kind.startswith("torch.") else None
        self.kind, self.key, self.count = kind, key, count
        is_view = isinstance(view, tuple) and len(view) == 3
        self.first: Any = view[1] if is_view else 0
        self.viewed: Any = view[2] if is_view else count
        if not _are_sizes((self.first, self.viewed)) or self.first + self.viewed > count:
            raise pickle.UnpicklingError("a view of a storage lies outside of it")


class TensorDescription(PickledObject):
    """Tensor as a view of a storage.

    Attributes: the arguments of torch's `_rebuild_tensor` in the file.
    """

    __slots__ = ("dtype", "metadata", "offset", "shape", "storage", "stride")

    def __init__(
        self, storage: object, offset: Any, shape: object, stride: object, dtype: object, metadata: object
    ) -> None:
        self.storage, self.offset, self.shape, self.stride = storage, offset, shape, stride
        self.dtype, self.metadata = dtype, metadata

    def build(
        self, budget: Budget, read_storage: Callable[[StorageDescription], UntypedStorage]
    ) -> torch.Tensor | UnsupportedTensor:
        """Return the tensor, after checking that all its values lie in its storage."""
        storage, shape, stride = self.storage, self.shape, self.stride
        if isinstance(storage, UnsupportedTensor):
            return storage
        if not isinstance(storage, StorageDescription) or not isinstance(shape, tuple) or not isinstance(stride, tuple):
            raise pickle.UnpicklingError("a tensor is damaged")
        if not _are_sizes((self.offset, *shape, *stride)):
            raise pickle.UnpicklingError("a tensor lies outside its storage: a size, stride or offset is invalid")
        dtype = storage.dtype if self.dtype is None else self.dtype
        if dtype not in READABLE or not isinstance(dtype, torch.dtype) or storage.dtype is None:
            return UnsupportedTensor(str(dtype or storage.kind).removeprefix("torch."))
        if len(shape) != len(stride) or len(shape) > 64:
            raise pickle.UnpicklingError("a tensor is damaged")
        last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        available = storage.viewed * storage.dtype.itemsize // dtype.itemsize
        first = int(self.offset)
        if first > available or (0 not in shape and first + last >= available):
            raise pickle.UnpicklingError(f"a tensor lies outside its storage of {available} values")
        budget.charge(math.prod(shape) * dtype.itemsize)
        memory = read_storage(storage)
        if len(memory) != storage.count * storage.dtype.itemsize:
            raise pickle.UnpicklingError(f"storage '{storage.key}' has {len(memory)} bytes, not {storage.count} values")
        offset = first + storage.first * storage.dtype.itemsize // dtype.itemsize
        tensor = torch.empty(0, dtype=dtype).set_(memory, offset, shape, stride)
        bits = self.metadata if isinstance(self.metadata, dict) else {}
        tensor = tensor.conj().resolve_conj() if bits.get("conj") is True and dtype.is_complex else tensor
        return -tensor if bits.get("neg") is True else tensor


def _are_sizes(values: Any) -> bool:
    """Return True for a tuple of non-negative integers in the range of torch's and numpy's sizes."""
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < 1 << 62 for value in values)


def no_storages(storage: StorageDescription) -> UntypedStorage:
    """Refuse a tensor in a file without storages."""
    raise pickle.UnpicklingError(f"there is no storage '{storage.key}'")


def resolve(
    value: Any, budget: Budget, read_storage: Callable[[StorageDescription], UntypedStorage] = no_storages
) -> Any:
    """Build the arrays and tensors in a pickle's content; inert objects and names stay as they are.

    read_storage: description of a storage -> its bytes.
    """
    return _Resolution({}, budget, read_storage).resolved(value)


@dataclasses.dataclass(frozen=True)
class _Resolution:
    """State of `resolve`; no closure, whose cycle would keep the file mapped: Windows renames no mapped file."""

    done: dict[int, Any]
    budget: Budget
    read_storage: Callable[[StorageDescription], UntypedStorage]

    def resolved(self, value: Any) -> Any:
        done = self.done
        if id(value) in done:
            return done[id(value)]
        if isinstance(value, dict):
            # Noted before it is filled: a dict may hold itself.
            done[id(value)] = found = dict[Any, Any]()
            found.update((key, self.resolved(entry)) for key, entry in value.items())
        elif isinstance(value, list):
            done[id(value)] = entries = list[Any]()
            entries.extend(self.resolved(entry) for entry in value)
        elif isinstance(value, tuple):
            done[id(value)] = tuple(self.resolved(entry) for entry in value)
        elif isinstance(value, InertObject):
            done[id(value)] = value
            value.mapping = self.resolved(value.mapping)
        elif isinstance(value, ArrayDescription):
            done[id(value)] = value.build(self.budget, self.resolved)
        elif isinstance(value, TensorDescription):
            done[id(value)] = value.build(self.budget, self.read_storage)
        else:
            return value
        return done[id(value)]
