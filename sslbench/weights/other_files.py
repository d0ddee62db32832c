"""Reading what torch.save did not write: plain pickles, numpy's files and the archives of the oldest torch."""

import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from sslbench.errors import WeightsError
from sslbench.weights.unpickle import Inert, RestrictedPickle

Load = Callable[..., Any]
_ENCODING = "latin1"  # text of Python 2, in which numpy's bytes survive
# What a storage's class is called, before 'Storage'.
STORAGES: Mapping[str, torch.dtype] = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool,
}  # fmt: skip


def read_pickle(path: Path, restricted: RestrictedPickle) -> Any:
    """What a plain pickle holds (Caffe2, Detectron2, MoCo's detection converter).

    Raises:
        WeightsError: it asks to call something.
        Exception: it is damaged; the caller says so.
    """
    with path.open("rb") as file:
        return restricted.as_module().load(file, encoding=_ENCODING)


def read_npy(path: Path, restricted: RestrictedPickle) -> Any:
    """The dict in a .npy file: numpy writes it as a pickled array of one object.

    Raises:
        WeightsError: it holds an array of numbers, which has no name, or asks to call something.
        Exception: it is damaged; the caller says so.
    """
    with path.open("rb") as file:
        value = _array(file, restricted.as_module().load)
    if isinstance(value, np.ndarray):
        shape = "x".join(map(str, value.shape)) or "one number"
        raise WeightsError(f"{path} holds one array without a name ({shape}), not a dict of tensors")
    return value


def read_npz(path: Path, restricted: RestrictedPickle) -> dict[str, Any]:
    """Name -> array of a .npz file.

    Raises:
        WeightsError: a member asks to call something.
        Exception: it is damaged; the caller says so.
    """
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as file:
                    found[name.removesuffix(".npy")] = _array(file, restricted.as_module().load)
    return found


def _array(file: IO[bytes], load: Load) -> Any:
    """An array of numbers, or the one object of an array of objects."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        value = load(file, encoding=_ENCODING)
        return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    # not np.fromfile, which cannot read from an archive
    count = int(np.prod(shape, dtype=np.int64))
    data = file.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{count} values of {dtype} expected, the file ends before")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C").copy()


def read_tar(path: Path, restricted: RestrictedPickle) -> Any:
    """What the archives of torch.save before 0.1.10 (2017) hold: members 'storages', 'tensors' and 'pickle'.

    Raises:
        WeightsError: it asks to call something.
        Exception: it is damaged; the caller says so.
    """
    load = restricted.as_module().load
    with tarfile.open(path, mode="r:") as archive:
        storages = _tar_storages(_member(archive, "storages"), load)
        tensors = _tar_tensors(_member(archive, "tensors"), load, storages)
        unpickler = restricted.as_module().Unpickler(_member(archive, "pickle"), encoding=_ENCODING)
        known = {**storages, **tensors}
        unpickler.persistent_load = lambda key: key[0] if isinstance(key, tuple) else known[int(key)]
        return unpickler.load()


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"'{name}' in it is no file")
    return file


def _tar_storages(file: IO[bytes], load: Load) -> dict[int, torch.Tensor]:
    """Key -> the numbers of a storage, one behind the other."""
    found: dict[int, torch.Tensor] = {}
    for _ in range(load(file, encoding=_ENCODING)):
        key, _location, kind = load(file, encoding=_ENCODING)
        dtype = _dtype_of(kind)
        (count,) = struct.unpack("<q", file.read(8))
        data = file.read(count * dtype.itemsize)
        if count < 0 or len(data) != count * dtype.itemsize:
            raise ValueError("a storage is shorter than it should be")
        found[key] = torch.frombuffer(bytearray(data), dtype=dtype) if count else torch.empty(0, dtype=dtype)
    for key, root, offset, count in load(file, encoding=_ENCODING):
        found[key] = found[root][offset : offset + count]
    return found


def _tar_tensors(file: IO[bytes], load: Load, storages: dict[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    found = {}
    for _ in range(load(file, encoding=_ENCODING)):
        key, storage, _kind = load(file, encoding=_ENCODING)
        (dimensions,) = struct.unpack("<i4x", file.read(8))
        sizes = struct.unpack(f"<{dimensions}q", file.read(8 * dimensions))
        strides = struct.unpack(f"<{dimensions}q", file.read(8 * dimensions))
        (offset,) = struct.unpack("<q", file.read(8))
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        numbers = storages[storage]
        if min((offset, *sizes, *strides)) < 0 or (0 not in sizes and last >= len(numbers)):
            raise ValueError("a tensor lies outside its storage")
        found[key] = numbers.as_strided(sizes, strides, numbers.storage_offset() + offset)
    return found


def _dtype_of(kind: object) -> torch.dtype:
    """The dtype of a storage's class, which the restricted reader gives as an inert class with that name."""
    name = getattr(kind, "name", "") if isinstance(kind, type) and issubclass(kind, Inert) else ""
    for prefix, dtype in STORAGES.items():
        if name in (f"torch.{prefix}Storage", f"torch.cuda.{prefix}Storage"):
            return dtype
    raise pickle.UnpicklingError(f"'{name or kind}' is no kind of storage")
