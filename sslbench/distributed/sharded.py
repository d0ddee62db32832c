"""Sharded files of tensors: every process writes its shards in the background, any number of processes reads them.

The files are those of torch.distributed.checkpoint in its safetensors form, so that reading them runs no pickled code.
"""

import concurrent.futures
import contextlib
import inspect
import json
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, distributed
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult

from sslbench.distributed.collectives import on_all, rank
from sslbench.errors import SslbenchError, WeightsError
from sslbench.weights.reading.folders import crc32

try:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
except ImportError:  # an older torch; AVAILABLE is false, and these are not used
    from torch.distributed.checkpoint import filesystem

    HuggingFaceStorageReader = filesystem.FileSystemReader  # type: ignore[assignment,misc]
    HuggingFaceStorageWriter = filesystem.FileSystemWriter  # type: ignore[assignment,misc]

AVAILABLE = "save_distributed" in inspect.signature(HuggingFaceStorageWriter.__init__).parameters
"""Whether this torch writes safetensors from several processes."""
_CHECKSUM = ".crc32"  # suffix of a file with size and checksum of another one


Files = dict[str, dict[str, int]]
"""Files of shards: name -> {'bytes': ..., 'crc32': ...}."""


class BackgroundWriter:
    """Writer of sharded tensors in the background, one set at a time; every process has one and calls its methods."""

    def __init__(self) -> None:
        # Collective operations of the background need a group of their own, and object messages one on the CPU.
        self._group = cast(distributed.ProcessGroup, distributed.new_group(backend="gloo"))
        self._running: tuple[Path, concurrent.futures.Future[Any]] | None = None

    def write(self, folder: Path, tensors: Mapping[str, Tensor], finish: Callable[[Path, Files], object]) -> None:
        """Copy this process's shards to the CPU, then write them while training goes on."""
        self.wait()
        if rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        future = async_save(
            dict(tensors),
            storage_writer=_Writer(folder, finish),
            planner=DefaultSavePlanner(flatten_state_dict=False, dedup_save_to_lowest_rank=True),
            process_group=self._group,
        )
        self._running = folder, cast("concurrent.futures.Future[Any]", future)

    def wait(self) -> None:
        """Wait until the files are written."""
        if self._running is None:
            return
        (folder, future), self._running = self._running, None
        try:
            on_all(lambda: _result(future))
        except SslbenchError:
            if rank() == 0:
                shutil.rmtree(folder, ignore_errors=True)
            raise


def _result(future: "concurrent.futures.Future[Any]") -> None:
    """Wait for the files; turn torch's collected errors of all processes into one message."""
    try:
        future.result()
    except CheckpointException as error:
        number, (reason, _) = next(iter(error.failures.items()))
        if isinstance(reason, SslbenchError):
            raise reason from error
        text = reason.strerror or str(reason) if isinstance(reason, OSError) else f"{type(reason).__name__}: {reason}"
        raise SslbenchError(f"process {number} cannot write its shards: {text}") from error


class _Writer(HuggingFaceStorageWriter):
    """torch's writer of a safetensors file per process, with checksums, and a callback at the end."""

    def __init__(self, folder: Path, finish: Callable[[Path, Files], object]) -> None:
        super().__init__(str(folder), save_distributed=True)
        self._folder, self._finish = folder, finish

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        written = super().write_data(plan, planner)
        for name in _names(written.value()):
            path = self._folder / name
            path.with_name(name + _CHECKSUM).write_text(
                json.dumps({"bytes": path.stat().st_size, "crc32": crc32(path)})
            )
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        files: Files = {}
        for name in _names([result for each in results for result in each]):
            checksum = self._folder / (name + _CHECKSUM)
            files[name] = json.loads(checksum.read_text())
            checksum.unlink()
        self._finish(self._folder, files)


def _names(results: list[WriteResult]) -> list[str]:
    """Return the names of the files that were written."""
    return sorted({str(result.storage_data.relative_path) for result in results})


def shapes(folder: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and type of every tensor in a folder of shards, by name."""
    with _readable(folder):
        found = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    entries = {name: entry for name, entry in found.items() if isinstance(entry, TensorStorageMetadata)}
    return {name: (entry.size, entry.properties.dtype) for name, entry in entries.items()}


def read(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors from a folder of shards; each process reads the parts that it has, without any other."""
    with _readable(folder), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is")  # torch's remark that processes read alone
        load(
            dict(tensors),
            storage_reader=HuggingFaceStorageReader(str(folder)),
            planner=DefaultLoadPlanner(flatten_state_dict=False),
            no_dist=True,
        )


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    if not AVAILABLE:
        raise WeightsError(
            f"{folder} is a sharded checkpoint, which torch {torch.__version__} does not read", "Update torch."
        )
    try:
        yield
    except Exception as error:  # torch and safetensors raise many kinds
        raise WeightsError(f"{folder} cannot be read as a sharded checkpoint: {error}") from error
