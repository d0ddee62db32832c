"""Feature stores that a disk or a person has damaged, complete ones and such as are half done."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from hostile.campaign import Case
from hostile.text_cases import mutated
from hostile.weights_cases import flipped

from sslbench.features import partial

SMALLEST = "resnet_basic_1-1-1-1w0.125"
_NETWORK = ("--weights", "random", "--backbone", SMALLEST, "--resize", "16", "--crop", "16", "--batch-size", "4")
EXTRACT = ("extract", *_NETWORK, "--workers", "0", "--data", "photos", "--store", "store")
EVAL = ("eval", "knn", *_NETWORK, "--workers", "0", "--data", "photos", "--store", "store", "--no-floors", "k=1")

Damage = Callable[[Path], object]


def _changed(name: str, change: Callable[[bytes], bytes]) -> Damage:
    def damage(entry: Path) -> None:
        (file,) = entry.glob(name)
        file.write_bytes(change(file.read_bytes()))

    return damage


def _half_done(entry: Path) -> None:
    """Turn a complete layer into one that was interrupted after half of its rows."""
    (complete,) = entry.glob("*.npy")
    rows = np.load(complete)
    partial.create(complete, rows.shape, rows.dtype)
    layer = partial.opened(complete, len(rows), rows.dtype)
    assert layer is not None
    half = np.arange(len(rows) // 2)
    layer.write(half, rows[half])
    layer.flush()
    for name in ("meta.json", "index.csv"):
        (entry / name).unlink()
    complete.unlink()


def _after(first: Damage, then: Damage) -> Damage:
    def damage(entry: Path) -> None:
        first(entry)
        then(entry)

    return damage


def contents(seed: int, n: int) -> dict[str, Callable[[bytes], bytes]]:
    """Return changes of the bytes of a file by name."""
    changes: dict[str, Callable[[bytes], bytes]] = {
        "empty": lambda whole: b"",
        "one byte": lambda whole: whole[:1],
        "half": lambda whole: whole[: len(whole) // 2],
        "one byte less": lambda whole: whole[:-1],
        "one byte more": lambda whole: whole + b"x",
        "zeros": lambda whole: bytes(len(whole)),
        "zeros in the second half": lambda whole: whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2),
        "all bits": lambda whole: b"\xff" * len(whole),
    }
    for i in range(n + 2):
        changes[f"flipped {i}"] = lambda whole, i=i: flipped(whole, random.Random(1000 * seed + i))
        changes[f"mutation {i}"] = lambda whole, i=i: mutated(whole[:200], random.Random(1000 * seed + i)) + whole[200:]
    return changes


def damages(seed: int = 0, n: int = 0) -> Iterator[tuple[str, Damage]]:
    """Yield a name and the damage; `n`: random changes of each file."""
    for file in ("*.npy", "meta.json", "index.csv"):
        for name, change in contents(seed, n).items():
            yield f"complete, {file}: {name}", _changed(file, change)
    for file in ("*.partial", "*.progress"):
        for name, change in contents(seed, n).items():
            yield f"half done, {file}: {name}", _after(_half_done, _changed(file, change))
    yield "half done", _half_done
    for name, words in {
        "list": "[]",
        "number": "5",
        "deep": "[" * 100_000,
        "digits": '{"rows": ' + "9" * 5000 + "}",
        "rows is text": '{"rows": "x", "key": 5}',
        "key is a list": '{"rows": 12, "key": [1]}',
        "other rows": json.dumps({"rows": 10**400, "key": {"backbone": 5}}),
    }.items():
        yield f"complete, meta.json: {name}", _changed("meta.json", lambda _, words=words: words.encode())
    for name in ("meta.json", "index.csv"):
        yield f"complete, {name}: absent", lambda entry, name=name: (entry / name).unlink()
        yield f"complete, {name}: a folder", lambda entry, name=name: ((entry / name).unlink(), (entry / name).mkdir())
    for dtype in ("<i4", ">f4", "<f8", "|O", "|S4", "<U1", "<c8"):
        yield (
            f"complete, other values: {dtype}",
            _changed("*.npy", lambda whole, d=dtype: whole.replace(b"<f4", d.encode().ljust(3))),
        )
    yield "complete, other shape", _changed("*.npy", lambda whole: whole.replace(b"(12, ", b"(12,2"))
    yield (
        "complete, order",
        _changed("*.npy", lambda whole: whole.replace(b"'fortran_order': False", b"'fortran_order': True ")),
    )


def store_cases(sound: Path, seed: int = 0, n: int = 0) -> Iterator[Case]:
    """Yield copies of a folder with photos and a store, damaged."""
    for i, (name, damage) in enumerate(damages(seed, n)):
        yield name, _copied(sound, damage, EVAL if i % 3 == 0 else EXTRACT)


def _copied(sound: Path, damage: Damage, words: tuple[str, ...]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        for name in ("photos", "store"):
            shutil.copytree(sound / name, folder / name)
        (entry,) = (folder / "store").iterdir()
        damage(entry)
        return list(words)

    return write
