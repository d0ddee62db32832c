"""Cached form of a large manifest or table: parsed once, then memory-mapped and shared by processes.

It holds, per split, the ids, file names, labels (or objects) and attributes as plain arrays. The manifest is parsed
again when its size, times or inode change.
"""

import contextlib
import dataclasses
import gc
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sslbench import paths, targets
from sslbench.data.containers.index import SETTLED_NS, container_stamp
from sslbench.data.containers.listed import check_some
from sslbench.data.images import Files
from sslbench.data.objects import ObjectSource
from sslbench.data.source import Source
from sslbench.errors import DataError
from sslbench.metrics.detection.keypoints import Skeleton
from sslbench.metrics.detection.matches import Federated
from sslbench.targets.objects import Boxes, ObjectRows, write_objects
from sslbench.text_rows import TextRows, write_texts

LARGE = 16 << 20
"""Smallest manifest that is cached, in bytes; parsing a smaller one takes less than a second."""

S = TypeVar("S", bound=Source)
_VERSION = 7
_META = "meta.json"
_OBJECTS = "objects"
_log = logging.getLogger("sslbench")


def viewed(spec: str, kind: str, arguments: Any, build: Callable[[], dict[str, S]]) -> dict[str, S]:
    """Return the sources that `build` makes of a manifest, from the cache if it is valid.

    `arguments`: of the reader, a part of the cache key.
    """
    path = Path(spec)
    stamp = container_stamp(path)
    if stamp[0] < LARGE:
        return build()
    # The name is part of the key, since messages and the names of sources contain it.
    key = json.dumps([_VERSION, kind, arguments, spec, os.path.abspath(path)])  # noqa: PTH100 - links stay as they are
    name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    folder = paths.cache_dir() / "manifests" / f"{name}-{hashlib.sha256(repr(stamp).encode()).hexdigest()[:16]}"
    known: dict[str, S] | None = _load(folder)
    if known is not None:
        for source in known.values():
            if isinstance(source.images, Files):
                files = source.images
                check_some(spec, files.paths, Path(files.root), f"They were there when {spec} was read before.")
        return known
    _log.info("reading %s (once: its content is kept in the cache folder)", spec)
    with _without_garbage_collection():
        sources = build()
        if container_stamp(path) != stamp:
            raise DataError(f"{path} was written to while it was read", "Try again when it is complete.")
        is_new = time.time_ns() - max(stamp[1], stamp[2]) < SETTLED_NS
        if is_new or not all(isinstance(source.images, Files) for source in sources.values()):
            return sources
        _save(folder, sources)
        # Cached forms of earlier states; a process that has one open keeps it.
        for other in folder.parent.glob(f"{name}-*"):
            if other != folder:
                shutil.rmtree(other, ignore_errors=True)
        kept: dict[str, S] | None = _load(folder)
        sources = kept or sources  # the parsed content is freed before the search for cycles would go through it
    return sources


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Switch off the search for cycles."""
    enabled = gc.isenabled()
    # Rows hold no cycles, and scanning them again and again is a third of the time.
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _save(folder: Path, sources: Mapping[str, Source]) -> None:
    """Write the sources atomically: into a temporary folder, then rename it; several processes may do so at once."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        _log.warning(
            "the content of a manifest cannot be cached in %s (%s): it is parsed every time", folder.parent, error
        )
        return
    try:
        splits = [_save_split(new / str(k), split, source) for k, (split, source) in enumerate(sources.items())]
        about = {"splits": splits, "digest": _digest(new)}
        (new / _META).write_text(json.dumps(about), encoding="utf-8")
        # Fails where another process was faster: a folder that is not empty is not replaced.
        new.rename(folder)
    except (OSError, ValueError) as error:
        if not (folder / _META).is_file():  # else another process was faster
            _log.warning(
                "the content of a manifest cannot be cached in %s (%s): it is parsed every time", folder.parent, error
            )
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _save_split(folder: Path, split: str, source: Source) -> dict[str, Any]:
    files = source.images
    if not isinstance(files, Files):
        raise TypeError(type(files))
    folder.mkdir()
    write_texts(source.ids, folder / "ids")
    same = tuple(files.paths) == tuple(source.ids)
    if not same:
        write_texts([str(path) for path in files.paths], folder / "files")
    texts = []
    for k, column in enumerate(source.attributes.values()):
        unique = list(dict.fromkeys(column))
        number = {text: i for i, text in enumerate(unique)}
        np.save(folder / f"attribute{k}.npy", np.array([number[text] for text in column], dtype=np.int32))
        texts.append(unique)
    return {
        "split": split,
        "name": source.name,
        "notes": source.notes,
        "root": files.root,
        "files": "ids" if same else "files",
        **_save_content(folder, source),
        "attributes": dict(zip(source.attributes, texts, strict=True)),
        "grouped_by": source.grouped_by,
    }


def _save_content(folder: Path, source: Source) -> dict[str, Any]:
    """Write the labels or the objects, and return their classes."""
    boxes = source.target
    if not isinstance(boxes, Boxes):
        np.save(folder / "labels.npy", boxes.values)
        return {"labels": boxes.name, "classes": boxes.classes}
    (folder / _OBJECTS).mkdir()
    write_objects(boxes.objects, folder / _OBJECTS)
    np.save(folder / "sizes.npy", boxes.sizes)
    np.save(folder / "numbers.npy", np.array(boxes.numbers, dtype=np.int64))
    federated = boxes.federated
    if federated is not None:
        np.save(folder / "negative.npy", federated.negative)
        np.save(folder / "not_exhaustive.npy", federated.not_exhaustive)
    frequencies = None if federated is None else federated.frequencies
    skeleton = None if boxes.skeleton is None else dataclasses.asdict(boxes.skeleton)
    return {
        "classes": boxes.classes,
        "class_numbers": boxes.class_numbers,
        "texts": [boxes.image_texts, boxes.class_texts],
        "sized": source.sized,
        "frequencies": frequencies,
        "skeleton": skeleton,
    }


def _load(folder: Path) -> Any:
    """Return the cached sources; None if they are missing or damaged."""
    if not (folder / _META).is_file():
        return None
    try:
        about = json.loads((folder / _META).read_text(encoding="utf-8"))
        if about["digest"] != _digest(folder):
            raise ValueError("its check sum is wrong")
        return {part["split"]: _load_split(folder / str(k), part) for k, part in enumerate(about["splits"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("%s is damaged (%s); it is rebuilt", folder, error)
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _load_split(folder: Path, part: dict[str, Any]) -> Source:
    attributes = {
        name: tuple(texts[i] for i in np.load(folder / f"attribute{k}.npy", allow_pickle=False).tolist())
        for k, (name, texts) in enumerate(part["attributes"].items())
    }
    common: dict[str, Any] = {
        "name": part["name"],
        "ids": TextRows(str(folder / "ids")),
        "images": Files(TextRows(str(folder / part["files"])), part["root"]),
        "notes": tuple(part["notes"]),
        "attributes": attributes,
        "grouped_by": part["grouped_by"],
    }
    if "labels" in part:
        values = np.load(folder / "labels.npy", mmap_mode="r", allow_pickle=False)
        target = targets.kinds()[part["labels"]].from_values(tuple(part["classes"]), values)
        return Source(target=target, **common)
    federated = None
    if part["frequencies"] is not None:
        pairs = [np.load(folder / f"{name}.npy", allow_pickle=False) for name in ("negative", "not_exhaustive")]
        federated = Federated(pairs[0], pairs[1], tuple(part["frequencies"]))
    boxes = Boxes(
        objects=ObjectRows(str(folder / _OBJECTS)),
        sizes=np.load(folder / "sizes.npy", allow_pickle=False),
        numbers=tuple(np.load(folder / "numbers.npy", allow_pickle=False).tolist()),
        classes=tuple(part["classes"]),
        class_numbers=tuple(part["class_numbers"]),
        image_texts=part["texts"][0],
        class_texts=part["texts"][1],
        sized=part["sized"],
        federated=federated,
        skeleton=None if part["skeleton"] is None else Skeleton.of_record(part["skeleton"]),
    )
    return ObjectSource(target=boxes, **common)


def _digest(folder: Path) -> str:
    """Return the digest of the names and contents of all files but the one that holds it."""
    state = hashlib.blake2b(digest_size=16)
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != _META):
        state.update(f"{file.relative_to(folder).as_posix()}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as content:
            while chunk := content.read(1 << 22):
                state.update(chunk)
    return state.hexdigest()
