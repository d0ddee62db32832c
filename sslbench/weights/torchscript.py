"""Reading the tensors of a TorchScript archive (torch.jit.save), such as OpenAI's CLIP; its program is not looked at.

The archive is a zip. `data.pkl` in it holds the tree of modules: objects of classes below `__torch__`, whose state is
the dict of their attributes. Its tensors point to members of `data/`. The code in `code/` is not needed for that.
"""

import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.storage import TypedStorage, UntypedStorage

from sslbench.weights.other_files import STORAGES
from sslbench.weights.unpickle import Inert, RestrictedPickle

# A file may hold the same module many times, or a module inside itself: no network has as many attributes as this.
_MOST_ATTRIBUTES = 1_000_000


class _Module(Inert):
    """Stands for an object of any class that the archive's own program defines; `mapping` has its attributes."""

    def __setstate__(self, state: object) -> None:
        self.mapping = state if isinstance(state, dict) else {}


def read_torchscript(path: Path, restricted: RestrictedPickle) -> Any:
    """Dotted name -> tensor, as in the module's state_dict.

    Tensors that are neither parameters nor persistent buffers are among them: `data.pkl` does not tell them apart.

    Raises:
        WeightsError: it asks to call something.
        Exception: it is damaged; the caller says so.
    """
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        storages = _Storages(archive, root)

        class Unpickler(restricted.as_module().Unpickler):  # type: ignore[misc]
            def find_class(self, module: str, name: str) -> Any:
                if module.partition(".")[0] == "__torch__":
                    return _Module
                if module == "torch" and name.endswith("Storage") and name.removesuffix("Storage") in STORAGES:
                    return STORAGES[name.removesuffix("Storage")]
                return super().find_class(module, name)

            def persistent_load(self, key: Any) -> TypedStorage:
                return storages.get(key)

        with archive.open(f"{root}/data.pkl") as file:
            loaded = Unpickler(file).load()
    return _state_dict(loaded) if isinstance(loaded, _Module) else loaded


class _Storages:
    """The numbers behind the tensors, read once each: tied tensors stay tied."""

    def __init__(self, archive: zipfile.ZipFile, root: str) -> None:
        self.archive = archive
        self.root = root
        self.read: dict[str, UntypedStorage] = {}
        order = f"{root}/byteorder"  # torch < 2.1 does not write it: little
        self.swapped = (archive.read(order) if order in archive.namelist() else b"little") != sys.byteorder.encode()

    def get(self, persistent_id: Any) -> TypedStorage:
        """The storage for ('storage', dtype, key, device, number of values)."""
        kind, dtype, key, _device, count = persistent_id
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, str):
            raise pickle.UnpicklingError(f"{kind!r} of {dtype} is no storage of numbers")
        if key not in self.read:
            data = bytearray(self.archive.read(f"{self.root}/data/{key}")) if count else bytearray()
            # Memory of somebody else's, which torch does not enlarge for a tensor that lies outside of it.
            numbers = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
            self.read[key] = numbers.untyped_storage()
            if self.swapped:
                self.read[key].byteswap(dtype)  # type: ignore[no-untyped-call]
        storage = self.read[key]
        if len(storage) != count * dtype.itemsize:
            raise ValueError(f"the tensor '{key}' has {len(storage)} bytes where {count} values of {dtype} should be")
        return TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)  # type: ignore[no-untyped-call]


def _state_dict(module: _Module) -> dict[str, torch.Tensor]:
    found = {}
    for number, (name, value) in enumerate(_attributes(module, "")):
        if number == _MOST_ATTRIBUTES:
            raise ValueError(f"it has more than {_MOST_ATTRIBUTES:,} attributes")
        if isinstance(value, torch.Tensor):
            found[name] = value
    return found


def _attributes(module: _Module, prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in module.mapping.items():
        yield f"{prefix}{name}", value
        if isinstance(value, _Module):
            yield from _attributes(value, f"{prefix}{name}.")
