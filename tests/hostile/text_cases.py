"""Malformed text of every kind that a user's folder may hold: YAML, manifests, tables, label files, records."""

import io
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from hostile.campaign import Case
from PIL import Image

PIXELS = ("eval", "knn", "--weights", "pixels", "--no-floors", "workers=0", "k=1")


def picture(value: int = 0, size: int = 8) -> bytes:
    """Return the bytes of a small PNG."""
    buffer = io.BytesIO()
    Image.fromarray(np.full((size, size, 3), value % 256, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def photos(folder: Path, classes: tuple[str, ...] = ("a", "b"), n: int = 6) -> Path:
    """Write a folder of images with a class per sub-folder."""
    for c, name in enumerate(classes):
        place = folder / "photos" / name
        place.mkdir(parents=True)
        for i in range(n):
            (place / f"{i}.png").write_bytes(picture(100 * c + i))
    return folder / "photos"


# --- YAML -------------------------------------------------------------------------------------------------------------

YAML: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b"title: \xff\xfe\n",
    "UTF-16": "title: a\n".encode("utf-16"),
    "control characters": b"title: \x01\x02\n",
    "NUL": b"title: a\0b\n",
    "list": b"- a\n- b\n",
    "number": b"5\n",
    "unhashable key": b"? [a, b]\n: c\n",
    "mapping as key": b"? {a: 1}\n: c\n",
    "number as key": b"1: a\n",
    "null key": b"~: a\n",
    "date": b"title: 2024-01-01\nprotocol: 2024-01-01\n",
    "impossible date": b"title: 2024-13-45\n",
    "many decimals": b"title: " + b"1" * 5000 + b"\n",
    "many digits, sexagesimal": b"title: " + b"1:" * 3000 + b"1\n",
    "huge exponent": b"title: 1e999999\n",
    "deep lists": b"title: " + b"[" * 20000 + b"]" * 20000 + b"\n",
    "deep mappings": b"title: " + b"{a: " * 5000 + b"1" + b"}" * 5000 + b"\n",
    "deep by indentation": b"".join(b" " * i + b"a:\n" for i in range(2000)),
    "alias bomb": b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 30)),
    "alias of itself": b"a: &a [*a]\n",
    "merge of itself": b"a: &a\n  <<: *a\n",
    "many keys": b"".join(b"key%d: 1\n" % i for i in range(30000)),
    "one key twice": b"title: a\ntitle: b\n",
    "tag": b"!!python/object/apply:os.abort []\n",
    "local tag": b"title: !env HOME\n",
    "binary": b"title: !!binary aGVsbG8=\n",
    "bad binary": b"title: !!binary '*'\n",
    "set": b"title: !!set {a, b}\n",
    "several documents": b"title: a\n---\ntitle: b\n",
    "unclosed": b"title: [a\n",
    "tab": b"\ttitle: a\n",
    "interpolation": b"title: ${oc.env:HOME}\nepochs: ${nothing}\n",
    "target": b"title: a\n_target_: os.abort\n",
    "long": b"title: " + b"x" * 3_000_000 + b"\n",
}


def yaml_cases(seed: int = 0, n: int = 0) -> Iterator[Case]:
    """Yield damaged YAML in every role; `n` further ones are mutations of a benchmark."""
    contents = dict(YAML)
    draw = random.Random(seed)
    for i in range(n):
        contents[f"mutation {seed}/{i}"] = mutated(
            b"title: a\nprotocol: knn\ndata: digits\nsettings: {k: [1, 5]}\n", draw
        )
    for name, content in contents.items():
        yield f"benchmark: {name}", role("benchmarks/knn/mine.yaml", content, "show", "knn/mine")
        yield f"several: {name}", role("both.yaml", content, *PIXELS, "--data", "both.yaml")
        yield f"catalog: {name}", role("sslbench-data.yaml", content, *PIXELS, "--data", "mine")
    for name in (
        "not UTF-8",
        "unhashable key",
        "impossible date",
        "many decimals",
        "deep lists",
        "alias bomb",
        "interpolation",
    ):
        yield f"recipe: {name}", role("configs/method/mine.yaml", YAML[name], "pretrain", "mine", "--dry-run")
        yield f"config: {name}", role("config.yaml", YAML[name], "pretrain", "config.yaml", "--dry-run")
        yield f"preset: {name}", role("benchmarks/presets/knn/mine.yaml", YAML[name], "show", "knn/mine")
        yield f"suite: {name}", role("benchmarks/suites/mine.yaml", YAML[name], "eval", "--suite", "mine", "--dry-run")
        yield f"format: {name}", role("model_converters/mine.yaml", YAML[name], "list", "formats")
    for name, word in {
        "deep": "a=" + "[" * 5000,
        "many digits": "k=" + "1" * 5000,
        "date": "k=2024-13-45",
        "interpolation": "k=${oc.env:HOME}",
        "surrogate": "k=\udcff",
        "nothing": "=",
    }.items():
        yield f"key=value: {name}", role("unused", b"", *PIXELS, word)


def role(path: str, content: bytes, *words: str) -> Callable[[Path], list[str]]:
    """Return what writes a file below the current folder, which $SSLBENCH_PATH names too, and gives the command."""

    def write(folder: Path) -> list[str]:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        os.environ["SSLBENCH_PATH"] = str(folder)
        return list(words)

    return write


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return the bytes with a few of them flipped, cut out, doubled or replaced by what parsers stumble over."""
    odd = (
        b"\0",
        b"\xff",
        b"[",
        b"{",
        b"&a ",
        b"*a",
        b"!!",
        b"9" * 400,
        b"-",
        b"\n",
        b'"',
        b"\\u",
        b"\r",
        b"~",
        b"1e999",
    )
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(content) + 1)
        match draw.randrange(4):
            case 0:
                content = content[:at] + draw.choice(odd) + content[at:]
            case 1:
                content = content[:at] + content[at + draw.randint(1, 8) :]
            case 2:
                content = content[:at] + bytes([draw.randrange(256)]) + content[at + 1 :]
            case _:
                content = content[:at] + content[max(0, at - 20) : at] * 3 + content[at:]
    return content


# --- manifests --------------------------------------------------------------------------------------------------------


def coco(**changes: object) -> dict[str, object]:
    """Return a manifest of four images and two classes, with some of its lists replaced."""
    images = [{"id": i, "file_name": f"{i}.png", "width": 8, "height": 8} for i in range(1, 9)]
    boxes = [
        {"id": i, "image_id": i, "category_id": 1 + i % 2, "bbox": [1, 1, 4, 4], "area": 16, "iscrowd": 0}
        for i in range(1, 9)
    ]
    return {
        "images": images,
        "annotations": boxes,
        "categories": [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
    } | changes


_HUGE = 10**400
_BOXES: dict[str, object] = {
    "huge": [_HUGE, 1, 2, 2],
    "huge width": [1, 1, _HUGE, 2],
    "float overflow": [1e308, 1e308, 1e308, 1e308],
    "NaN": [float("nan"), 1, 2, 2],
    "infinite": [float("inf"), 1, 2, 2],
    "text": ["a", 1, 2, 2],
    "number": 5,
    "short": [1, 2],
    "nested": [[1, 2, 3, 4]],
    "null": None,
    "mapping": {"x": 1},
    "true": [True, True, True, True],
}
_IDS: dict[str, object] = {
    "huge": _HUGE,
    "text": "a",
    "float": 1.5,
    "null": None,
    "list": [1],
    "negative": -1,
    "NaN": float("nan"),
}


def _keypoint_documents() -> dict[str, object]:
    """Return manifests whose keypoints are damaged in the category, in an annotation or in kwcoco's table."""
    named = [{"id": i, "name": name, "keypoints": ["left", "right"]} for i, name in enumerate("ab", 1)]
    kinds = [{"id": 1, "name": "left", "reflection_id": 2}, {"id": 2, "name": "right", "reflection_id": 1}]
    documents: dict[str, object] = {}
    odd = _IDS | {"mapping": {"a": 1}, "mappings": [{}], "lists": [[1, 2], [3, 4]], "many": [1] * 99, "true": True}
    for name, value in odd.items():
        for key in ("keypoints", "skeleton", "sigmas"):
            documents[f"category {key} {name}"] = coco(categories=[dict(row, **{key: value}) for row in named])
        for place, row in {
            "keypoints": value,
            "x": [value, 1, 2, 0, 0, 0],
            "visibility": [1, 1, value, 0, 0, 0],
            "id": [{"xy": [1, 2], "keypoint_category_id": value}],
            "name": [{"xy": [1, 2], "keypoint_category": value}],
            "xy": [{"xy": value, "keypoint_category": "left"}],
        }.items():
            rows = [dict(a, keypoints=row) for a in coco()["annotations"]]  # type: ignore[union-attr, arg-type]
            documents[f"annotation {place} {name}"] = coco(
                annotations=rows, categories=named, keypoint_categories=kinds
            )
        for key in ("id", "name", "reflection_id"):
            table = [dict(row, **{key: value}) for row in kinds]
            documents[f"table {key} {name}"] = coco(categories=named, keypoint_categories=table)
        documents[f"table {name}"] = coco(categories=named, keypoint_categories=value)
    return documents


def manifest_cases() -> Iterator[Case]:
    """Yield COCO manifests that are damaged in one place, read as labels, as objects and as label maps."""
    documents: dict[str, object] = {}
    for name, box in _BOXES.items():
        annotations = [dict(a, bbox=box) for a in coco()["annotations"]]  # type: ignore[union-attr, arg-type]
        documents[f"box {name}"] = coco(annotations=annotations)
    for key in ("id", "image_id", "category_id", "iscrowd", "area", "segmentation"):
        for name, value in _IDS.items():
            annotations = [dict(a, **{key: value}) for a in coco()["annotations"]]  # type: ignore[union-attr, arg-type]
            documents[f"annotation {key} {name}"] = coco(annotations=annotations)
    for key in ("id", "file_name", "width", "height"):
        for name, value in {
            **_IDS,
            "outside": "../../etc/hostname",
            "absolute": "/etc/hostname",
            "NUL": "a\0.png",
            "empty": "",
            "folder": ".",
        }.items():
            images = [dict(a, **{key: value}) for a in coco()["images"]]  # type: ignore[union-attr, arg-type]
            documents[f"image {key} {name}"] = coco(images=images)
    for key in ("images", "annotations", "categories"):
        for name, value in {
            "null": None,
            "number": 5,
            "mapping": {},
            "list of null": [None],
            "list of lists": [[1]],
            "text": "x",
        }.items():
            documents[f"{key} {name}"] = coco(**{key: value})
    documents |= _keypoint_documents()
    documents["names are numbers"] = coco(categories=[{"id": 1, "name": 1}, {"id": 2, "name": None}])
    texts = {name: json.dumps(document).encode() for name, document in documents.items()}
    whole = json.dumps(coco()).encode()
    texts |= {
        "cut": whole[: len(whole) // 2],
        "deep": b'{"images": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "many digits": whole.replace(b'"width": 8', b'"width": ' + b"9" * 5000),
        "not UTF-8": whole.replace(b'"a"', b'"\xff"'),
        "half a character": whole.replace(b'"a"', b'"\\ud800"'),
        "NUL in a name": whole.replace(b'"a"', b'"a\\u0000b"'),
        "UTF-16": json.dumps(coco()).encode("utf-16"),
        "empty": b"",
        "binary": bytes(range(256)) * 10,
    }
    for name, text in texts.items():
        for way, words in {
            "labels": (*PIXELS, "--data", "m.json"),
            "objects": ("check-data", "m.json", "--boxes"),
            "crops": ("check-data", "m.json?unit=annotation"),
        }.items():
            yield f"manifest as {way}: {name}", _with_images({"m.json": text}, words)
    for name in ("box huge", "annotation segmentation huge", "cut", "deep"):
        yield (
            f"manifest as maps: {name}",
            _with_images({"m.json": texts[name]}, ("check-data", "m.json", "--label-maps")),
        )


def _with_images(files: dict[str, bytes], words: tuple[str, ...]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        for i in range(1, 9):
            (folder / f"{i}.png").write_bytes(picture(20 * i))
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return list(words)

    return write


# --- Pascal VOC -------------------------------------------------------------------------------------------------------

_VOC = """<annotation><filename>{name}</filename><size><width>{width}</width>
<height>{height}</height><depth>3</depth></size>
<object><name>{label}</name><difficult>{difficult}</difficult><bndbox><xmin>{x}</xmin><ymin>1</ymin><xmax>5</xmax>
<ymax>5</ymax></bndbox></object></annotation>"""
_VOC_VALUES = {"width": "8", "height": "8", "label": "a", "difficult": "0", "x": "1"}


def voc_cases() -> Iterator[Case]:
    """Yield Pascal VOC trees with one odd value in every annotation."""
    odd = {
        "digits": "9" * 31,
        "many digits": "9" * 5000,
        "negative": "-1",
        "overflow": "1e400",
        "NaN": "nan",
        "empty": "",
        "letters": "abc",
        "NUL": "&#0;",
        "control": "\x1b[31m",
    }
    for key in _VOC_VALUES:
        for kind, value in odd.items():
            for way, words in {
                "labels": (*PIXELS, "--data", "VOC2007"),
                "objects": ("check-data", "VOC2007", "--boxes"),
            }.items():
                yield f"VOC as {way}: {key} {kind}", _voc({**_VOC_VALUES, key: value}, words)
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY a{i} "{f"&a{i - 1 if i > 1 else str()};" * 10}">' for i in range(1, 12)
    )
    yield "VOC: entity bomb", _voc(_VOC_VALUES, ("check-data", "VOC2007", "--boxes"), before=bomb + "]>")


def _voc(values: dict[str, str], words: tuple[str, ...], before: str = "") -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        root = folder / "VOC2007"
        for name in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (root / name).mkdir(parents=True)
        names = [f"{i:06d}" for i in range(8)]
        for i, name in enumerate(names):
            (root / "JPEGImages" / f"{name}.jpg").write_bytes(picture(20 * i))
            label = values["label"] if values["label"] != "a" else "ab"[i % 2]
            text = before + _VOC.format(name=f"{name}.jpg", **{**values, "label": label})
            (root / "Annotations" / f"{name}.xml").write_text(text)
        for split, part in (("trainval", names[:4]), ("test", names[4:])):
            (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(part))
            for c in "ab":
                lines = "\n".join(f"{name} {1 if 'ab'[i % 2] == c else -1}" for i, name in enumerate(part))
                (root / "ImageSets" / "Main" / f"{c}_{split}.txt").write_text(lines)
        return list(words)

    return write


# --- YOLO and tables of boxes -----------------------------------------------------------------------------------------

_LINE = b"0 0.5 0.5 0.25 0.25\n"
_YOLO: dict[str, bytes] = {f"labels/{i}.txt": _LINE.replace(b"0", b"%d" % (i % 2), 1) for i in range(1, 9)}
_BOX_ROWS = b"filename,class,xmin,ymin,xmax,ymax\n" + b"".join(
    b"%d.png,%s,1,1,5,5\n" % (i, b"ab"[i % 2 :][:1]) for i in range(1, 9)
)
BOX_FILES: dict[str, tuple[str, bytes]] = {
    "YOLO: long number": ("labels/1.txt", b"0 " + b"9" * 5000 + b" 0.5 0.2 0.2\n"),
    "YOLO: long class": ("labels/2.txt", b"9" * 5000 + b" 0.5 0.5 0.2 0.2\n"),
    "YOLO: infinite": ("labels/2.txt", b"0 inf 1e400 -inf 0.2\n"),
    "YOLO: not UTF-8": ("labels/2.txt", b"0 0.5 0.5 0.2 \xff\n"),
    "YOLO: NUL": ("labels/2.txt", b"0 0.5 0.5 0.2\0 0.2\n"),
    "YOLO: long line": ("labels/2.txt", b"0 " + b"0.5 " * 200_000 + b"\n"),
    "YOLO: names not UTF-8": ("classes.txt", b"a\n\xff\n"),
    "YOLO: names empty": ("classes.txt", b""),
    "YOLO: names twice": ("classes.txt", b"a\na\n"),
    "YOLO: names of control": ("classes.txt", b"\x1b[31ma\nb\n"),
    "data.yaml: NUL": ("data.yaml", b'names: [a, b]\ntrain: "im\\0ages"\n'),
    "data.yaml: long path": ("data.yaml", b"names: [a, b]\ntrain: " + b"x" * 5000 + b"\n"),
    "data.yaml: list": ("data.yaml", b"names: [a, b]\ntrain: [1, [2]]\n"),
    "data.yaml: long number": ("data.yaml", b"names: {" + b"9" * 4000 + b": a}\ntrain: images\n"),
    "data.yaml: unicode digits": ("data.yaml", 'names: {"\u0663": a, "0": b}\ntrain: images\n'.encode()),
    "data.yaml: outside": ("data.yaml", b"names: [a, b]\npath: /etc\ntrain: ../../../etc\n"),
    "table: NUL in a name": ("t.csv", _BOX_ROWS.replace(b"1.png", b"1\0.png")),
    "table: long name": ("t.csv", _BOX_ROWS.replace(b"1.png", b"x" * 5000)),
    "table: outside": ("t.csv", _BOX_ROWS.replace(b"1.png", b"../../../etc/hostname")),
    "table: infinite": ("t.csv", _BOX_ROWS.replace(b",5,5", b",inf,1e400")),
    "table: quote open": ("t.csv", _BOX_ROWS + b'"9.png,a'),
    "table: short rows": ("t.csv", _BOX_ROWS + b"9.png\n"),
    "table: long cells": ("t.csv", _BOX_ROWS + b"9" * 200_000 + b",a,1,1,5,5\n"),
    "table: control": ("t.csv", _BOX_ROWS.replace(b",a,", b",\x1b[31m,")),
}


def box_cases() -> Iterator[Case]:
    """Yield YOLO folders and tables of boxes with one odd file."""
    for name, (file, content) in BOX_FILES.items():
        if file == "t.csv":
            yield name, _with_images({file: content}, ("check-data", "t.csv", "--boxes"))
            continue
        files = {**_YOLO, "classes.txt": b"a\nb\n", file: content}
        files |= {f"images/{i}.png": picture(20 * i) for i in range(1, 9)}
        yield name, _with_files({f"set/{path}": part for path, part in files.items()}, ("check-data", "set", "--boxes"))


def _with_files(files: dict[str, bytes], words: tuple[str, ...]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        return list(words)

    return write


# --- tables and embeddings --------------------------------------------------------------------------------------------

_TABLE = b"path,label\n" + b"".join(b"%d.png,%s\n" % (i, b"ab"[i % 2 : i % 2 + 1]) for i in range(1, 9))
TABLES: dict[str, bytes] = {
    "empty": b"",
    "head only": b"path,label\n",
    "not UTF-8": _TABLE.replace(b"a\n", b"\xff\n"),
    "NUL": _TABLE.replace(b"a\n", b"a\0\n"),
    "NUL in a path": _TABLE.replace(b"1.png", b"1\0.png"),
    "outside": _TABLE.replace(b"1.png", b"../../etc/hostname"),
    "long path": _TABLE.replace(b"1.png", b"x" * 5000),
    "quote open": _TABLE + b'"9.png,a',
    "more cells": _TABLE + b"1,2,3,4,5\n",
    "fewer cells": _TABLE + b"1.png\n",
    "escape sequence": _TABLE.replace(b"a\n", b"\x1b]0;owned\x07\n"),
    "formula": _TABLE.replace(b"a\n", b"=1+1\n"),
    "UTF-16": _TABLE.decode().encode("utf-16"),
    "carriage returns": _TABLE.replace(b"\n", b"\r"),
    "one long line": b"path,label," + b"x," * 200_000,
    "same column twice": _TABLE.replace(b"path,label", b"label,label"),
}
_ARRAYS: dict[str, Callable[[], object]] = {
    "N x 0": lambda: np.zeros((8, 0), np.float32),
    "0 x D": lambda: np.zeros((0, 4), np.float32),
    "scalar": lambda: np.float32(1),
    "vector": lambda: np.zeros(8, np.float32),
    "cube": lambda: np.zeros((8, 2, 2), np.float32),
    "complex": lambda: np.zeros((8, 4), np.complex64),
    "text": lambda: np.full((8, 4), "a"),
    "records": lambda: np.zeros(8, [("x", "f4"), ("y", "f4")]),
    "NaN": lambda: np.full((8, 4), np.nan, np.float32),
    "bool": lambda: np.zeros((8, 4), bool),
    "dates": lambda: np.zeros((8, 4), "datetime64[s]"),
}


def table_cases(seed: int = 0, n: int = 0) -> Iterator[Case]:
    """Yield damaged tables of labels, alone and beside embeddings, and odd arrays of embeddings."""
    contents = dict(TABLES)
    draw = random.Random(seed)
    contents |= {f"mutation {seed}/{i}": mutated(_TABLE, draw) for i in range(n)}
    for name, content in contents.items():
        yield f"table: {name}", _with_images({"t.csv": content}, (*PIXELS, "--data", "t.csv"))
        embeddings = io.BytesIO()
        np.save(embeddings, np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32))
        files = {"f.npy": embeddings.getvalue(), "t.csv": content}
        yield (
            f"labels of embeddings: {name}",
            _with_images(files, ("eval", "knn", "--features", "f.npy", "--labels", "t.csv", "k=1")),
        )
    for name, make in _ARRAYS.items():
        saved = io.BytesIO()
        np.save(saved, make())
        files = {"f.npy": saved.getvalue(), "t.csv": _TABLE}
        yield (
            f"embeddings: {name}",
            _with_images(files, ("eval", "knn", "--features", "f.npy", "--labels", "t.csv", "k=1")),
        )
    whole = saved_array()
    damaged = {
        "no bytes": b"",
        "head only": whole[:40],
        "cut": whole[:-7],
        "huge shape": whole.replace(b"(8, 4)", b"(8, 9999999999999999999)").replace(b"  \n", b"\n", 1),
        "objects": whole.replace(b"<f4", b"|O "),
    }
    for name, content in damaged.items():
        files = {"f.npy": content, "t.csv": _TABLE}
        yield (
            f"embeddings: {name}",
            _with_images(files, ("eval", "knn", "--features", "f.npy", "--labels", "t.csv", "k=1")),
        )


def saved_array() -> bytes:
    """Return the bytes of an .npy file of 8 embeddings."""
    saved = io.BytesIO()
    np.save(saved, np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32))
    return saved.getvalue()


# --- records ----------------------------------------------------------------------------------------------------------


def record_cases(record: dict[str, object], seed: int = 0, n: int = 0) -> Iterator[Case]:
    """Yield records with one value of a wrong type, each given to the leaderboard and to compare."""
    odd: dict[str, object] = {
        "null": None,
        "number": 5,
        "negative": -1.5,
        "text": "x",
        "list": [],
        "mapping": {},
        "nested": [[[]]],
        "mapping of mappings": {"a": {"b": {}}},
        "true": True,
        "huge": _HUGE,
        "control": "\x1b[2J",
        "NaN": float("nan"),
    }
    paths = list(_leaves(record))
    draw = random.Random(seed)
    chosen = [(path, kind) for path in paths if len(path) <= 2 for kind in odd]
    chosen = draw.sample(chosen, min(len(chosen), 120)) + [
        (draw.choice(paths), draw.choice(list(odd))) for _ in range(n)
    ]
    for path, kind in chosen:
        changed = _with_value(record, path, odd[kind])
        name = f"record: {'.'.join(map(str, path))} is {kind}"
        yield (
            name,
            _with_images(
                {"results/knn/x.json": json.dumps(changed).encode()},
                ("leaderboard", "results", "--csv", "b.csv", "--html", "b.html"),
            ),
        )
    deep = json.dumps(record)[:-1].encode() + b', "settings": ' + b'{"a": ' * 50_000 + b"1" + b"}" * 50_001
    for name, text in {
        "deep": deep,
        "cut": json.dumps(record).encode()[:500],
        "list": b"[]",
        "not UTF-8": b'{"id": "\xff"}',
        "digits": b'{"id": ' + b"9" * 5000 + b"}",
    }.items():
        yield f"record: {name}", _with_images({"results/knn/x.json": text}, ("leaderboard", "results"))


def _leaves(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _leaves(item, (*path, key))


def _with_value(value: object, path: tuple[object, ...], new: object) -> object:
    if not path:
        return new
    if isinstance(value, dict):
        return {k: _with_value(v, path[1:], new) if k == path[0] else v for k, v in value.items()}
    assert isinstance(value, list)
    return [_with_value(v, path[1:], new) if i == path[0] else v for i, v in enumerate(value)]
