"""Readers of torch.save and torch.jit.save files: a pickle, and beside it the values of every tensor.

torch's own reader trusts the storage sizes in the pickle and may read out of bounds; here a storage must have as many
bytes in the file as the pickle declares.
"""

import io
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch
from torch import UntypedStorage

from sslbench.weights.reading.pickled import Budget, InertObject, StorageDescription, UnsupportedTensor, resolve
from sslbench.weights.reading.sniff import damaged_member
from sslbench.weights.reading.unpickle import RestrictedPickle

_LEGACY_MAGIC, _LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001
_LOCAL_HEADER = struct.Struct("<26xHH")  # header of a zip member: lengths of its name and of its extra field


def read_zip(path: Path, pickled: RestrictedPickle) -> Any:
    """Read a zip archive of torch.save since 1.6 or torch.jit.save, with `data.pkl` and one member per storage."""
    with path.open("rb") as file:
        return _read_archive(_Archive(file, path), pickled)


def read_bytes(data: bytes, pickled: RestrictedPickle) -> Any:
    """Read such an archive from memory, with its checksums; errors as for `read_zip`."""
    archive = _Archive(io.BytesIO(data), None)
    if (damaged := damaged_member(archive.zip)) is not None:
        raise ValueError(f"the checksum of '{damaged}' is wrong")
    return _read_archive(archive, pickled)


def _read_archive(archive: "_Archive", pickled: RestrictedPickle) -> Any:
    content = pickled.load(io.BytesIO(archive.read("data.pkl")), pickled.storage)
    return resolve(content, pickled.budget, archive.storage)


class _Archive:
    """Members of such an archive; each storage is memory-mapped once, so that tied tensors stay tied."""

    def __init__(self, file: IO[bytes], path: Path | None) -> None:
        self.path, self.zip, self.file = path, zipfile.ZipFile(file), file
        self.names = frozenset(self.zip.namelist())
        self.root = self.zip.namelist()[0].partition("/")[0]
        self.storages: dict[str, UntypedStorage] = {}
        self.whole: Any = None
        # torch < 2.1 writes no byteorder: little endian
        order = self.read("byteorder") if f"{self.root}/byteorder" in self.names else b"little"
        self.swapped = order != sys.byteorder.encode()

    def read(self, name: str) -> bytes:
        """Read the bytes of a member; checksums were verified before, and torch can omit them."""
        member = self.zip.getinfo(f"{self.root}/{name}")
        if member.compress_type != zipfile.ZIP_STORED:
            return self.zip.read(member)
        self.file.seek(self._start(member))
        return self.file.read(member.file_size)

    def storage(self, storage: StorageDescription) -> UntypedStorage:
        """Return the bytes of a storage."""
        if storage.key in self.storages:
            return self.storages[storage.key]
        name = f"data/{storage.key}"
        if not storage.count and f"{self.root}/{name}" not in self.names:
            return self.storages.setdefault(storage.key, owned(b""))
        member = self.zip.getinfo(f"{self.root}/{name}")
        start, size = self._start(member), member.file_size
        # torch aligns its members; in an archive that another program has packed again they lie anywhere.
        mapped = self.path is not None and member.compress_type == zipfile.ZIP_STORED and start % 8 == 0
        if self.path is not None and mapped and not self.swapped and size:
            if self.whole is None:
                # Not shared: what is written to the tensors never reaches the file.
                self.whole = UntypedStorage.from_file(os.fspath(self.path), False, self.path.stat().st_size)
            return self.storages.setdefault(storage.key, self.whole[start : start + size])
        memory = owned(self.read(name))
        if self.swapped and storage.dtype is not None:
            memory.byteswap(storage.dtype)  # type: ignore[no-untyped-call]
        return self.storages.setdefault(storage.key, memory)

    def _start(self, member: zipfile.ZipInfo) -> int:
        """Return the offset of a member's bytes in the file."""
        # Only the member's own header tells the length of its extra field, by which torch aligns the values.
        self.file.seek(member.header_offset)
        name, extra = _LOCAL_HEADER.unpack(self.file.read(_LOCAL_HEADER.size))
        return member.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)


def read_legacy(path: Path, pickled: RestrictedPickle) -> Any:
    """Read a torch.save file of before 1.6: several pickles, then the values of all storages."""
    kinds: dict[str, StorageDescription] = {}

    def persistent(key: Any) -> Any:
        if isinstance(key, tuple) and key[:1] == ("module",):
            return key[1]  # a class with its source code, which is ignored
        storage = pickled.storage(key)
        kinds.setdefault(storage.key, storage)
        return storage

    with path.open("rb") as file:
        if pickled.load(file) != _LEGACY_MAGIC or pickled.load(file) != _LEGACY_VERSION:
            raise pickle.UnpicklingError("it starts like a torch.save file, but its header is wrong")
        about = pickled.load(file)
        content = pickled.load(file, persistent)
        swapped = isinstance(about, dict) and about.get("little_endian", True) is not (sys.byteorder == "little")
        found: dict[str, UntypedStorage] = {}
        for key in pickled.load(file):
            kind = kinds[key]
            if kind.dtype is None:
                raise pickle.UnpicklingError(f"the storage '{key}' is a {kind.kind}, which is not supported")
            (count,) = struct.unpack("<q", file.read(8))
            data = file.read(count * kind.dtype.itemsize) if 0 <= count <= kind.count else b""
            if len(data) != kind.count * kind.dtype.itemsize:
                raise pickle.UnpicklingError(f"the storage '{key}' is shorter than it should be")
            found[key] = owned(data)
            if swapped:
                found[key].byteswap(kind.dtype)  # type: ignore[no-untyped-call]
    return resolve(content, pickled.budget, lambda storage: found[storage.key])


def owned(data: bytes) -> UntypedStorage:
    """Return a writable storage of fixed size with a copy of the bytes."""
    if not data:
        return torch.empty(0, dtype=torch.uint8).untyped_storage()
    # torch shares the memory that it is given, and bytes must not be written to.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).untyped_storage()


_DEEPEST = 200
_ATTRIBUTE = 100  # approximate bytes per attribute


def read_torchscript(path: Path, pickled: RestrictedPickle) -> Any:
    """Read dotted name -> tensor of a torch.jit.save file, as in the module's state_dict; its code is ignored.

    Non-persistent buffers are included, because `data.pkl` does not mark them.
    """
    loaded = read_zip(path, pickled)
    if not isinstance(loaded, InertObject) or not loaded.name.startswith("__torch__."):
        return loaded
    return dict(module_tensors(loaded, pickled.budget))


def module_tensors(
    module: InertObject, budget: Budget, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, torch.Tensor | UnsupportedTensor]]:
    """Yield the tensors of a module and its submodules by their dotted names; the depth is bounded against cycles."""
    if depth > _DEEPEST:
        raise ValueError(f"modules are nested more than {_DEEPEST} deep")
    for name, value in module.mapping.items():
        full = f"{prefix}{name}"
        budget.charge(_ATTRIBUTE + len(full))
        if isinstance(value, torch.Tensor | UnsupportedTensor):
            yield full, value
        elif isinstance(value, InertObject):
            yield from module_tensors(value, budget, f"{full}.", depth + 1)
