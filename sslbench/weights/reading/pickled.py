"""Descriptions of what a pickle holds, and the arrays and tensors made of them once they are checked.

A description is all that the bytes of a file ever act on: it takes the state that the file gives and does nothing with
it. What is made of it is checked first: every number lies inside the bytes of the file.
"""

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import UntypedStorage

from sslbench.errors import WeightsError

# What a storage's class is called, before 'Storage'.
STORAGES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "QInt8": torch.qint8, "QUInt8": torch.quint8, "QInt32": torch.qint32,
    "QUInt4x2": torch.quint4x2, "QUInt2x4": torch.quint2x4, "ComplexFloat": torch.complex64,
    "ComplexDouble": torch.complex128, "Untyped": torch.uint8,
}  # fmt: skip
READABLE = frozenset(dtype for name, dtype in STORAGES.items() if not name.startswith("Q"))
"""Dtypes that every operation on weights knows; others (8-bit floats, quantised ones) are left out."""


class Budget:
    """Bound on the memory that what a file holds may take: a short file may say the same bytes a million times over."""

    _FREE = 64_000_000
    _TIMES = 16  # tied tensors, momentum networks: as often may the same bytes be used

    def __init__(self, size: int) -> None:
        """Allow what a file of `size` bytes may take."""
        self.allowed, self.used = self._FREE + self._TIMES * size, 0

    def charge(self, size: int) -> None:
        """Count bytes or entries that are about to be made.

        Raises:
            WeightsError: they are more than the file can honestly hold.
        """
        self.used += size
        if self.used > self.allowed:
            raise WeightsError(
                f"what the file holds takes more than {self.allowed / 1e9:.2g} GB in memory, far beyond its own size",
                "It is damaged or made to harm: get it from somewhere else.",
            )


class Name:
    """A name in a pickle, and what calling it makes. It has no state that a pickle could set.

    Attributes:
        name: with its module.
        make: called with the arguments in the pickle.
    """

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[..., Any]) -> None:
        self.name, self.make = name, make


class Record:
    """What stands for an object of a pickle."""

    __slots__ = ()

    def set_state(self, state: object) -> None:
        """Take the state that the pickle gives."""


class Inert(Record):
    """An object of a class that is not known.

    Attributes:
        name: of the class.
        mapping: the items, if the class was a kind of dict, so that tensors inside can be read; of a TorchScript
            module, its attributes.
    """

    __slots__ = ("mapping", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.mapping: dict[Any, Any] = {}

    def set_state(self, state: object) -> None:
        """Keep the attributes of a TorchScript module; ignore everything else."""
        if self.name.startswith("__torch__.") and isinstance(state, dict):
            self.mapping = state


class Unreadable(Record):
    """A tensor of a kind that is not read.

    Attributes:
        kind: in a word: sparse, quantised, ...
    """

    __slots__ = ("kind",)

    def __init__(self, kind: str) -> None:
        self.kind = kind


class Dtype(Record):
    """A dtype of numpy: numbers, text or objects, never one with fields.

    Attributes:
        value: the dtype.
    """

    __slots__ = ("value",)

    def __init__(self, value: "np.dtype[Any]") -> None:
        self.value = value

    def set_state(self, state: object) -> None:
        """Take the byte order, and the length of text: the only state of such a dtype that means anything."""
        version, order, subarray, names, fields, size, *_ = state if isinstance(state, tuple) else (0,) * 6
        text = self.value.kind in "SU"
        if version not in (3, 4) or order not in ("<", ">", "|", "=") or (subarray, names, fields) != (None,) * 3:
            raise pickle.UnpicklingError("a numpy dtype has fields or is damaged")
        if not isinstance(size, int) or size != (self.value.itemsize if text else -1):
            raise pickle.UnpicklingError("a numpy dtype has another size than it says")
        self.value = self.value.newbyteorder("=" if order == "|" else order)


class Array(Record):
    """An array of numpy.

    Attributes:
        state: (version, shape, dtype, whether in Fortran's order, values), as numpy pickles it.
    """

    __slots__ = ("state",)

    def __init__(self, state: object = None) -> None:
        self.state = state

    def set_state(self, state: object) -> None:
        """Keep it until it is made."""
        self.state = state

    def made(self, budget: Budget, resolve: Callable[[Any], Any]) -> "np.ndarray[Any, Any]":
        """Return the array; objects in it are resolved too.

        Raises:
            UnpicklingError: its parts do not go together.
        """
        state = self.state if isinstance(self.state, tuple) else ()
        shape, dtype, fortran, data = state[-4:] if len(state) in (4, 5) else (None,) * 4
        data = data.encode("latin1") if isinstance(data, str) else data
        if not isinstance(dtype, Dtype) or not _are_sizes(shape) or not isinstance(fortran, bool | int):
            raise pickle.UnpicklingError("a numpy array is damaged")
        count = math.prod(shape)
        if dtype.value.hasobject:
            if not isinstance(data, list) or len(data) != count:
                raise pickle.UnpicklingError("a numpy array of objects has another number of them than it says")
            made = np.empty(count, dtype=object)
            for i, value in enumerate(data):
                made[i] = resolve(value)
        else:
            if not isinstance(data, bytes) or len(data) != count * dtype.value.itemsize:
                raise pickle.UnpicklingError(f"a numpy array of {count} values has another number of bytes")
            budget.charge(len(data))
            made = np.frombuffer(data, dtype.value)
        return made.reshape(shape, order="F" if fortran else "C")


class Storage(Record):
    """The numbers behind tensors, which lie elsewhere in the file.

    Attributes:
        dtype: None for a kind that is not read.
        kind: its class, for messages.
        key: its name in the file.
        count: how many values it says it has.
        first: of a view, where in the storage it begins.
        viewed: of a view, its number of values.
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


class Tensor(Record):
    """A tensor: where it lies in a storage.

    Attributes: the arguments of torch's `_rebuild_tensor`, as the file has them.
    """

    __slots__ = ("dtype", "metadata", "offset", "shape", "storage", "stride")

    def __init__(
        self, storage: object, offset: Any, shape: object, stride: object, dtype: object, metadata: object
    ) -> None:
        self.storage, self.offset, self.shape, self.stride = storage, offset, shape, stride
        self.dtype, self.metadata = dtype, metadata

    def made(self, budget: Budget, numbers: Callable[[Storage], UntypedStorage]) -> torch.Tensor | Unreadable:
        """Return the tensor, whose numbers all lie in its storage.

        Raises:
            UnpicklingError: some do not, or its parts do not go together.
            WeightsError: it takes far more memory than the file has bytes.
        """
        storage, shape, stride = self.storage, self.shape, self.stride
        if isinstance(storage, Unreadable):
            return storage
        if not isinstance(storage, Storage) or not isinstance(shape, tuple) or not isinstance(stride, tuple):
            raise pickle.UnpicklingError("a tensor is damaged")
        if not _are_sizes((self.offset, *shape, *stride)):
            raise pickle.UnpicklingError("a tensor lies outside its storage: a size, stride or offset is none")
        dtype = storage.dtype if self.dtype is None else self.dtype
        if dtype not in READABLE or not isinstance(dtype, torch.dtype) or storage.dtype is None:
            return Unreadable(str(dtype or storage.kind).removeprefix("torch."))
        if len(shape) != len(stride) or len(shape) > 64:
            raise pickle.UnpicklingError("a tensor is damaged")
        last = sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
        held = storage.viewed * storage.dtype.itemsize // dtype.itemsize
        first = int(self.offset)
        if first > held or (0 not in shape and first + last >= held):
            raise pickle.UnpicklingError(f"a tensor lies outside its storage of {held} values")
        budget.charge(math.prod(shape) * dtype.itemsize)
        memory = numbers(storage)
        if len(memory) != storage.count * storage.dtype.itemsize:
            raise pickle.UnpicklingError(f"storage '{storage.key}' has {len(memory)} bytes, not {storage.count} values")
        offset = first + storage.first * storage.dtype.itemsize // dtype.itemsize
        made = torch.empty(0, dtype=dtype).set_(memory, offset, shape, stride)
        bits = self.metadata if isinstance(self.metadata, dict) else {}
        made = made.conj().resolve_conj() if bits.get("conj") is True and dtype.is_complex else made
        return -made if bits.get("neg") is True else made


def _are_sizes(values: Any) -> bool:
    """Whether they are whole numbers that torch and numpy can count to."""
    return isinstance(values, tuple) and all(type(value) is int and 0 <= value < 1 << 62 for value in values)


def no_storages(storage: Storage) -> UntypedStorage:
    """Refuse a tensor in a file that has no place for its numbers."""
    raise pickle.UnpicklingError(f"there is no storage '{storage.key}'")


def resolve(value: Any, budget: Budget, numbers: Callable[[Storage], UntypedStorage] = no_storages) -> Any:
    """Return what a pickle holds with its arrays and tensors made; inert objects and names stay what they are.

    Args:
        value: as `RestrictedPickle.load` returned it.
        budget: of the file.
        numbers: from the description of a storage to its bytes.

    Raises:
        UnpicklingError: a description is damaged.
        WeightsError: what it makes takes far more memory than the file has bytes.
    """
    done: dict[int, Any] = {}

    def made(value: Any) -> Any:
        if id(value) in done:
            return done[id(value)]
        if isinstance(value, dict):
            done[id(value)] = found = dict[Any, Any]()
            found.update((key, made(entry)) for key, entry in value.items())
        elif isinstance(value, list):
            done[id(value)] = entries = list[Any]()
            entries.extend(made(entry) for entry in value)
        elif isinstance(value, tuple):
            done[id(value)] = tuple(made(entry) for entry in value)
        elif isinstance(value, Inert):
            done[id(value)] = value
            value.mapping = made(value.mapping)
        elif isinstance(value, Array):
            done[id(value)] = value.made(budget, made)
        elif isinstance(value, Tensor):
            done[id(value)] = value.made(budget, numbers)
        else:
            return value
        return done[id(value)]

    return made(value)
