"""Readers of plain pickles, numpy files and the tar archives of torch before 0.1.10."""

import io
import math
import pickle
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from torch import UntypedStorage

from sslbench.errors import WeightsError
from sslbench.weights.reading.pickled import PickledName, StorageDescription, TensorDescription, resolve
from sslbench.weights.reading.torch_files import owned
from sslbench.weights.reading.unpickle import RestrictedPickle


def read_pickle(path: Path, restricted: RestrictedPickle) -> Any:
    """Read a plain pickle (Caffe2, Detectron2, MoCo's detection converter)."""
    with path.open("rb") as file:
        return restricted.read(file)


def read_npy(path: Path, restricted: RestrictedPickle) -> Any:
    """Read the dict in a .npy file, which numpy stores as a pickled array of one object."""
    with path.open("rb") as file:
        value = _array(file, restricted)
    if isinstance(value, np.ndarray):
        shape = "x".join(map(str, value.shape)) or "one number"
        raise WeightsError(f"{path} holds one array without a name ({shape}), not a dict of tensors")
    return value


def read_npz(path: Path, restricted: RestrictedPickle) -> dict[str, Any]:
    """Read name -> array of a .npz file."""
    found = {}
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(".npy"):
                restricted.budget.charge(archive.getinfo(name).file_size)
                found[name.removesuffix(".npy")] = _array(io.BytesIO(archive.read(name)), restricted)
    return found


def _array(file: IO[bytes], restricted: RestrictedPickle) -> Any:
    """Read an array of numbers, or the object in an array of one object."""
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        value = restricted.read(file)
        return value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    # np.fromfile cannot read from an archive.
    size = math.prod(shape) * dtype.itemsize
    restricted.budget.charge(size)
    data = file.read(size)
    if len(data) != size:
        raise ValueError(f"{math.prod(shape)} values of {dtype} expected, the file ends before")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran_order else "C").copy()


def read_tar(path: Path, restricted: RestrictedPickle) -> Any:
    """Read a tar archive of torch.save before 0.1.10 (2017), with members 'storages', 'tensors' and 'pickle'."""
    with tarfile.open(path, mode="r:") as archive:
        kinds, numbers = _tar_storages(_member(archive, "storages"), restricted)
        known: dict[int, StorageDescription | TensorDescription] = {**kinds}
        file = _member(archive, "tensors")
        for _ in range(_count(restricted.load(file))):
            key, storage, _kind = restricted.load(file)
            (dimensions,) = struct.unpack("<i4x", file.read(8))
            sizes = struct.unpack(f"<{dimensions}q", file.read(8 * dimensions))
            strides = struct.unpack(f"<{dimensions}q", file.read(8 * dimensions))
            (offset,) = struct.unpack("<q", file.read(8))
            known[key] = TensorDescription(kinds[storage], offset, sizes, strides, None, None)
        content = restricted.load(
            _member(archive, "pickle"), lambda key: key[0] if isinstance(key, tuple) else known[int(key)]
        )
        return resolve(content, restricted.budget, lambda storage: numbers[storage.key])


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    file = archive.extractfile(name)
    if file is None:
        raise ValueError(f"'{name}' in it is not a file")
    return file


def _tar_storages(
    file: IO[bytes], restricted: RestrictedPickle
) -> tuple[dict[int, StorageDescription], dict[str, UntypedStorage]]:
    """Read number -> description of a storage, and key of a description -> its bytes, stored one after another."""
    kinds: dict[int, StorageDescription] = {}
    numbers: dict[str, UntypedStorage] = {}
    for _ in range(_count(restricted.load(file))):
        key, _location, cls = restricted.load(file)
        (count,) = struct.unpack("<q", file.read(8))
        kinds[key] = storage = StorageDescription(cls.name if isinstance(cls, PickledName) else "", str(key), count)
        if storage.dtype is None:
            raise pickle.UnpicklingError(f"'{storage.kind or cls}' is not a known kind of storage")
        size = count * storage.dtype.itemsize
        restricted.budget.charge(max(size, 0))
        data = file.read(size)
        if count < 0 or len(data) != size:
            raise ValueError("a storage is shorter than it should be")
        numbers[storage.key] = owned(data)
    for key, root, offset, count in restricted.load(file):
        base = kinds[root]
        kinds[key] = StorageDescription(base.kind, base.key, base.count, (key, base.first + offset, count))
    return kinds, numbers


def _count(value: object) -> int:
    if not isinstance(value, int):
        raise pickle.UnpicklingError("the number of storages or tensors is not an integer")
    return value
