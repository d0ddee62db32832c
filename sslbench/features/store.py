"""Feature store: one folder per `identity.FeatureKey` (backbone, images, preprocessing, ...), one .npy per layer.

    <root>/<data>-<backbone>-<key>/meta.json          the key in clear text
                                   index.csv          row, id, path, label, split, digest of the image's content;
                                                      then the requested columns of the data
                                   skipped.csv        samples without a row, if any: id, path, reason
                                   <layer>.npy        (N, D), row i is line i of index.csv
                                   <layer>.npy.partial, .progress, lock      while an extraction runs or was killed

A `.npy` is always complete, since it is renamed into place at the end. meta.json holds the CRC-32 of its rows, which
every process compares when it first opens the file: about 0.7 s per GB, 7 s for ImageNet-1k by 2,048 floats (10.5 GB).
"""

import atexit
import contextlib
import csv
import dataclasses
import functools
import json
import logging
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sslbench.arrays import UNREADABLE_HEADER
from sslbench.data.source import Source
from sslbench.data.wording import some
from sslbench.errors import DataError, StoreError
from sslbench.features.partial import naming
from sslbench.identity import FeatureKey, digest
from sslbench.locks import lock
from sslbench.paths import not_written

if TYPE_CHECKING:
    from sslbench.data.splits import TrainTest

INDEX_COLUMNS = ("row", "id", "path", "label", "split", "digest")
SKIPPED = "skipped.csv"
_MOST_COMPARED = 2_000_000  # images, 1 GB of digests and ids, whose changes are named one by one


@functools.cache
def process_store(root: Path) -> Path:
    """Return a folder in the store for features that only this process finds again; it is removed at its end."""
    root.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="not-kept-", dir=root))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@dataclasses.dataclass(frozen=True)
class StoreEntry:
    """Folder of the store with the features of one key."""

    folder: Path

    def layer_file(self, layer: str) -> Path:
        """Return the path of a layer's complete features, which may not exist yet."""
        return self.folder / (re.sub(r"[^A-Za-z0-9_.]+", "-", layer).strip("-") + ".npy")

    def has(self, layer: str) -> bool:
        """Return whether the layer's features are complete."""
        return self.layer_file(layer).is_file()

    def layers(self) -> list[str]:
        """Return the file names of the complete layers, without suffix."""
        return sorted(f.stem for f in self.folder.glob("*.npy"))

    def read(self, layer: str) -> npt.NDArray[np.floating]:
        """Return the features of a layer, (N, D), memory-mapped and read-only."""
        path, meta = self.layer_file(layer), self.meta()
        try:
            features: np.memmap[Any, np.dtype[np.floating]] = np.load(path, mmap_mode="r")
        except (OSError, *UNREADABLE_HEADER) as error:
            raise StoreError(f"{path} cannot be read: {error}", f"Delete the folder {self.folder}.") from error
        problem = ""
        rows, key, checksums = meta.get("rows"), meta.get("key"), meta.get("checksums")
        dtype = key.get("dtype") if isinstance(key, dict) else None
        if features.ndim != 2 or len(features) != rows:
            problem = f"holds an array of shape {features.shape}, its index.csv should have {rows} rows"
        elif features.dtype not in (np.dtype(np.float32), np.dtype(np.float16)):
            problem = f"holds {features.dtype.str}, not float32 or float16"
        elif dtype is not None and features.dtype.name != dtype:
            problem = f"holds {features.dtype.name}, its meta.json says {dtype}"
        elif not features.flags.c_contiguous:
            problem = "holds its rows in an order other than the written one"
        elif isinstance(checksums, dict) and path.name in checksums:  # absent from older stores
            stat = path.stat()
            if _checksum(path, features.offset, stat.st_ino, stat.st_size, stat.st_mtime_ns) != checksums[path.name]:
                problem = "is damaged: its rows differ from the written ones"
        if problem:
            raise StoreError(f"{path} {problem}", f"Delete the folder {self.folder}.")
        return features

    def index_rows(self) -> list[dict[str, str]]:
        """Return the lines of index.csv."""
        return read_csv(self.folder / "index.csv")

    def unreadable(self) -> list[dict[str, str]]:
        """Return id, path and reason of the samples left out as unreadable."""
        former = read_csv(self.folder / "unreadable.csv")  # the name in stores of version 0.1.0
        return read_csv(self.folder / SKIPPED) or former

    def meta(self) -> dict[str, Any]:
        """Return the content of meta.json; empty if it is missing or damaged."""
        try:
            content = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return content if isinstance(content, dict) else {}


@functools.lru_cache(maxsize=1024)
def _checksum(path: Path, start: int, inode: int, size: int, modified: int) -> int:
    """Return the CRC-32 of a file from `start` on; the other arguments tell versions of the file apart."""
    result = 0
    with path.open("rb") as file:
        file.seek(start)
        while block := file.read(
            1 << 24
        ):  # not through the memory map, whose pages would count as this process's memory
            result = zlib.crc32(block, result)
    return result


def open_entry(root: Path, key: FeatureKey, source: Source, backbone_name: str) -> StoreEntry:
    """Return the entry of a key; its folder may not exist yet.

    The names before the key are those of the first run, and are ignored.
    """
    name = key.digest()
    entries = sorted(root.glob(f"*-{name}"))
    slug = re.sub(r"[^A-Za-z0-9]+", "-", f"{source.name}-{backbone_name}").strip("-").lower()[-60:]
    return StoreEntry(entries[0] if entries else root / f"{slug}-{name}")


def write_description(
    entry: StoreEntry,
    key: FeatureKey,
    source: Source,
    split: str,
    skipped: list[dict[str, str]],
    digests: npt.NDArray[np.uint8],
    checksums: Mapping[str, int],
) -> None:
    """Write meta.json, index.csv and (if samples were left out) skipped.csv, each atomically.

    digests: (N, 16), digests of the images in the key.
    checksums: file -> CRC-32 of its rows, of the layers about to be complete.
    """
    stored_ids, left_out = {row["id"] for row in entry.unreadable()}, {row["id"] for row in skipped}
    if entry.layers() and left_out != stored_ids:
        differing = some(sorted(left_out ^ stored_ids), 3)
        raise StoreError(
            f"the layers stored in {entry.folder} and this run skip different images: {differing}",
            "The decoder's version may have changed. Delete the folder and run again.",
        )
    entry.folder.mkdir(parents=True, exist_ok=True)
    if skipped:
        write_skipped(entry.folder, skipped)
    stored = entry.meta().get("checksums")
    previous = stored if isinstance(stored, dict) else {}
    meta = {
        "key": dataclasses.asdict(key),
        "data": source.name,
        "rows": len(source) - len(left_out),
        "left_out": len(left_out),
        "checksums": {**previous, **checksums},
    }
    _write_index(entry, source, split, left_out, digests, meta)


def update_index(entry: StoreEntry, source: Source, split: str) -> None:
    """Update labels, paths and attributes in index.csv; stored features do not depend on them.

    In a folder of another user they stay as they are.
    """
    meta = entry.meta()
    if meta and meta.get("index") != _index_digest(source) and os.access(entry.folder, os.W_OK):
        left_out = {row["id"] for row in entry.unreadable()}
        _write_index(entry, source, split, left_out, source.images.digests(), meta)


def _write_index(
    entry: StoreEntry,
    source: Source,
    split: str,
    left_out: set[str],
    digests: npt.NDArray[np.uint8],
    meta: Mapping[str, Any],
) -> None:
    """Write index.csv, then meta.json with its digest; earlier columns that are not requested now stay."""
    lines = _index_lines(entry.folder / "index.csv", source, split, left_out, digests)
    write_csv(entry.folder / "index.csv", lines)
    described = {**meta, "index": _index_digest(source)}
    write_text(entry.folder / "meta.json", json.dumps(described, indent=1, sort_keys=True, default=str))


def _index_lines(
    file: Path, source: Source, split: str, left_out: set[str], digests: npt.NDArray[np.uint8]
) -> Iterator[Sequence[object]]:
    """Yield the lines of index.csv one by one, beside those of the file that it replaces."""
    further = _further(source)
    with contextlib.ExitStack() as opened:
        handle = opened.enter_context(file.open(encoding="utf-8", newline="")) if file.is_file() else ()
        table = csv.DictReader(handle)
        earlier = [name for name in table.fieldnames or () if name not in INDEX_COLUMNS and name not in further]
        before = (line for line in table if line.get("id"))  # a file that was cut off is written anew
        yield *INDEX_COLUMNS, *earlier, *further
        row, old = 0, next(before, None)
        for i, sample_id in enumerate(source.ids):
            if sample_id in left_out:
                continue
            while old is not None and old["id"] < sample_id:  # both ascend
                old = next(before, None)
            kept = old if old is not None and old["id"] == sample_id else {}
            label = source.target.text(i) if source.target.labelled else ""
            fixed = row, sample_id, source.images.path(i), label, split, digests[i].tobytes().hex()
            yield *fixed, *(kept.get(name, "") for name in earlier), *(column[i] for column in further.values())
            row += 1


def _index_digest(source: Source) -> str:
    """Return a digest of the labels, attributes and first path (they share a folder) in index.csv."""
    attributes = {name: list(column) for name, column in _further(source).items()}
    return digest([source.fingerprint(), source.images.path(0) if len(source) else "", attributes])


def _further(source: Source) -> dict[str, tuple[str, ...]]:
    """Return the attributes that do not clash with index.csv's own columns."""
    return {name: tuple(column) for name, column in source.attributes.items() if name not in INDEX_COLUMNS}


def what_changed(root: Path, key: FeatureKey, source: Source) -> dict[str, str]:
    """Return the differences of a key from the most similar stored one, part -> words; empty without a similar one.

    They tell the user why no stored features fit ("1 of 4000 images changed: cat/17.png").
    """
    best: tuple[int, StoreEntry, dict[str, Any]] | None = None
    # As it would stand in meta.json, where tuples are lists.
    current = json.loads(json.dumps(dataclasses.asdict(key), default=str))
    mappings = [part for part, value in current.items() if isinstance(value, dict)]
    for meta_file in root.glob("*/meta.json"):
        entry = StoreEntry(meta_file.parent)
        stored = entry.meta().get("key")
        if not isinstance(stored, dict) or not all(isinstance(stored.get(part), dict) for part in mappings):
            continue  # damaged
        same = sum(stored.get(part) == value for part, value in current.items())
        same_data = stored.get("images") == current["images"] or entry.meta().get("data") == source.name
        same_network = stored["backbone"].get("name") == current["backbone"]["name"]
        if same_data and same_network and (best is None or same > best[0]):
            best = (same, entry, stored)
    if best is None:
        return {}
    _, entry, stored = best
    changes = {}
    for part, value in current.items():
        if stored.get(part) == value:
            continue
        if part == "images":
            changes[part] = _changed_images(entry, source)
        elif part == "weights":
            changes[part] = f"other weights (sha256 {value[:8]}, stored: {str(stored.get(part))[:8]})"
        elif isinstance(value, dict):
            old = stored.get(part) or {}
            different = [f"{k}: {old.get(k)} -> {value.get(k)}" for k in old | value if old.get(k) != value.get(k)]
            changes[part] = f"the {part} changed ({', '.join(different)})"
        else:
            changes[part] = f"the {part} changed ({stored.get(part)} -> {value})"
    return changes


def _changed_images(entry: StoreEntry, source: Source) -> str:
    if len(source) > _MOST_COMPARED:
        return f"some of {len(source):,} images changed, or others were added or removed"
    old = {row["id"]: row["digest"] for row in entry.index_rows() + entry.unreadable() if "digest" in row}
    digests = source.images.digests()
    new = {sample_id: digests[i].tobytes().hex() for i, sample_id in enumerate(source.ids)}
    if not new.keys() & old.keys():
        return "other images"
    differences = {
        "changed": ([i for i in new if i in old and old[i] != new[i]], len(new)),
        "added": ([i for i in new if i not in old], len(new)),
        "removed": ([i for i in old if i not in new], len(old)),
    }
    texts = [
        f"{len(ids)} of {total} images {word}: {', '.join(ids[:3])}{', ...' if len(ids) > 3 else ''}"
        for word, (ids, total) in differences.items()
        if ids
    ]
    return "; ".join(texts) or "the images changed"


@contextlib.contextmanager
def locked(entry: StoreEntry) -> Iterator[None]:
    """Hold the entry's lock; another run of the same extraction waits for it, and then finds the features stored."""
    file = entry.folder / "lock"
    with naming(file):
        entry.folder.mkdir(parents=True, exist_ok=True)
        handle = file.open("w")
    with handle:
        if lock(handle, wait=False) is False:
            logging.getLogger("sslbench").info("another run extracts the same features; waiting for it")
            lock(handle)
        yield


def write_text(path: Path, text: str) -> None:
    """Write a file atomically."""
    with _replacing(path, len(text)) as file:
        file.write(text)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows one by one, with the texts as they are, and the file atomically."""
    with _replacing(path) as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


@contextlib.contextmanager
def _replacing(path: Path, needed: int = 0) -> Iterator[IO[str]]:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with naming(path, needed), temporary.open("w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())  # before renaming: a power cut must not leave an empty file
    temporary.replace(path)


def write_skipped(folder: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write skipped.csv: id, path and reason of the unreadable images left out, in results their split first."""
    columns = [column for column in ("split", "id", "path", "reason") if any(column in row for row in rows)]
    # Texts as they are: the file is read back.
    write_csv(folder / SKIPPED, [columns, *(tuple(row.get(column, "") for column in columns) for row in rows)])


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV by column; none if the file does not exist."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


class StoredPair(NamedTuple):
    """Features of a train and a test part, (N, D) and (M, D), from one network and layer, and their names."""

    train: npt.NDArray[np.floating]
    test: npt.NDArray[np.floating]
    made_by: str


def find_stored(root: Path, data: "TrainTest") -> StoredPair | None:
    """Return the newest stored features of all images of both parts.

    -> None without features of both from one network, layer and preprocessing.
    """
    fingerprints = {part.images_fingerprint() for part in (data.train, data.test, data.whole) if part is not None}
    entries = sorted(root.glob("*/meta.json"), key=lambda file: -file.stat().st_mtime)
    groups: dict[str, dict[str, StoreEntry]] = {}
    for entry in (StoreEntry(file.parent) for file in entries):
        meta = entry.meta()
        if not isinstance(meta.get("key"), dict):
            continue  # damaged
        key = dict(meta["key"])
        images = key.pop("images", None)
        # Where images were left out, the rows are not those of the data.
        if images in fingerprints and not meta.get("left_out"):
            for layer in entry.layers():
                group = groups.setdefault(json.dumps([layer, key], sort_keys=True), {})
                group.setdefault(images, entry)
    for name, group in groups.items():
        layer, key = json.loads(name)
        made_by = f"features of {key['backbone']['name']}, layer {layer}"
        if data.whole is not None and (whole := group.get(data.whole.images_fingerprint())):
            position = {sample_id: row for row, sample_id in enumerate(data.whole.ids)}
            x = whole.read(layer)
            train, test = (x[[position[sample_id] for sample_id in part.ids]] for part in (data.train, data.test))
            return StoredPair(train, test, made_by)
        fitted, scored = (group.get(part.images_fingerprint()) for part in (data.train, data.test))
        if fitted is not None and scored is not None:
            return StoredPair(fitted.read(layer), scored.read(layer), made_by)
    return None


def left_out_warning(source: Source, paths: Sequence[str]) -> str:
    """Return the warning about unreadable images that are left out, with the first of them."""
    return (
        f"{source.name}: {len(paths)} of {len(source)} images cannot be read and are left out (skipped.csv lists "
        f"them): {some(list(dict.fromkeys(paths)))}"
    )


def note_skipped(folder: Path, parts: Mapping[str, Source], skipped: Sequence[Mapping[str, str]]) -> None:
    """Update skipped.csv in a folder of results; there is none if no image was left out.

    parts: split -> its images.
    """
    file = folder / SKIPPED
    try:
        earlier, splits = read_csv(file), dict[str, str]()
        if earlier or skipped:
            for split, part in parts.items():
                splits |= {part.images.path(index): split for index in range(len(part.images))}
            earlier = [row for row in earlier if row["path"] not in splits]
        rows = [*earlier, *({"split": splits.get(row["path"], ""), **row} for row in skipped)]
        if rows:
            folder.mkdir(parents=True, exist_ok=True)
            write_skipped(folder, rows)
        else:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(not_written(file, error)) from error


def unread_error(source: Source, unread: Sequence[tuple[str, str]]) -> DataError:
    """Return the error that lists images (path, reason) that changed or became unreadable after they were hashed.

    Such an image may be decodable, so it is never left out of stored features.
    """
    return DataError(
        f"{len(unread)} of {len(source)} images of {source.name} have changed since they were hashed, or cannot be "
        "read now:\n" + _listed(unread),
        "Run the same command again once they are readable and nothing writes to them.",
    )


def unreadable_error(source: Source, unreadable: Sequence[tuple[str, str]]) -> DataError:
    """Return the error that lists unreadable images (path, reason), up to 50 of them."""
    return DataError(
        f"{len(unreadable)} of {len(source)} images of {source.name} cannot be read:\n" + _listed(unreadable),
        "Repair or remove them, or leave them out with --on-error skip (the result then has their number).",
    )


def _listed(images: Sequence[tuple[str, str]]) -> str:
    files = list(dict.fromkeys(images))  # one file may be several images, changed in different ways
    lines = [f"  {path}: {reason}" for path, reason in files[:50]]
    if len(files) > 50:
        lines.append(f"  ... and {len(files) - 50} more")
    return "\n".join(lines)
