"""Valid documents of every role with one value replaced, keys nobody knows, code that they name, names as paths."""

import copy
import functools
import json
import operator
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from hostile.campaign import Case
from hostile.text_cases import PIXELS, coco, photos, picture, role
from hostile.weights_cases import WIDTH, own, tensors, torch_file

CODE = "helper:net"
"""Code that leaves a file 'ran' when it is imported; `role` puts it into the current folder."""

ODD: dict[str, Any] = {
    "null": None,
    "number": 5,
    "huge": 10**400,
    "text": "x",
    "list": [],
    "mapping": {},
    "nested": [[[{"a": {"b": [1]}}]]],
    "true": True,
    "deep": "DEEP",
    "code": CODE,
    "outside": "../../../../etc/hostname",
}

DOCUMENTS: dict[str, tuple[str, dict[str, Any], tuple[tuple[str, ...], ...]]] = {
    "benchmark": (
        "benchmarks/knn/mine.yaml",
        {
            "title": "a",
            "protocol": "knn",
            "version": 1,
            "data": "photos",
            "settings": {"k": [1], "metric": "cosine"},
            "preprocessing": {"resize": 8, "crop": [8, 8], "interpolation": "bilinear"},
            "layers": ["pixels"],
            "reference": {"weights": "w", "metric": "top1", "value": 90.0, "source": "b 2020", "tolerance": 1.0},
        },
        (("show", "knn/mine"), ("eval", "--benchmark", "knn/mine", "--weights", "pixels", "--no-floors")),
    ),
    "benchmark with a base": (
        "benchmarks/knn/mine.yaml",
        {"extends": ["knn/_base"], "title": "a", "data": "photos"},
        (("show", "knn/mine"),),
    ),
    "preset": (
        "benchmarks/presets/knn/mine.yaml",
        {
            "title": "a",
            "source": "b 2020",
            "published_for": "resnet50",
            "protocol": "knn",
            "version": 1,
            "settings": {"k": [1]},
            "preprocessing": {"resize": 8, "crop": [8, 8], "interpolation": "bilinear"},
        },
        (("show", "knn/mine"), ("eval", "--preset", "knn/mine", "--weights", "pixels", "--data", "photos")),
    ),
    "suite": (
        "benchmarks/suites/mine.yaml",
        {"title": "a", "benchmarks": ["knn/digits"]},
        (("show", "mine"), ("eval", "--suite", "mine", "--weights", "pixels", "--dry-run")),
    ),
    "format": (
        "model_converters/mine.yaml",
        {
            "title": "a",
            "source": "https://example.org",
            "input": {"space": "RGB", "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]},
            "strides": {"bottleneck": "3x3", "last": 2},
            "state_dict": ["", "model"],
            "prefix": ["net."],
            "detect": [{"present": ["net.conv1.weight"]}],
            "rules": [["{rest*}", "{rest*}"]],
            "heads": ["fc.{leaf}"],
            "drop": ["queue"],
            "variants": {"a": {"title": "b", "channels": 1}},
            "write": {"torch": {"a": True}},
        },
        (("show", "mine"), ("inspect", "w.pth"), ("inspect", "w.pth", "--format", "mine")),
    ),
    "recipe": (
        "configs/method/mine.yaml",
        {
            "defaults": [{"override /augment": "simclr"}, {"override /optimizer": "sgd"}],
            "method": {"name": "simclr", "temperature": 0.1},
            "backbone": WIDTH,
            "epochs": 1,
            "batch_size": 4,
            "optimizer": {"lr": 0.1},
        },
        (("pretrain", "mine", "--dry-run", "--data", "photos"),),
    ),
    "catalog": ("sslbench-data.yaml", {"mine": "photos", "other": "photos"}, ((*PIXELS, "--data", "mine"),)),
    "several": (
        "both.yaml",
        {"sources": {"a": "photos", "b": {"data": "others/photos", "weight": 2}}},
        (("check-data", "both.yaml"),),
    ),
}
"""Role -> where the document lies, the document, and the commands that read it."""


def changed_documents(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and the text of a document with one value replaced, or a key that nobody knows."""
    for path in _paths(document):
        for name, value in ODD.items():
            changed = copy.deepcopy(document)
            inner: Any = changed
            for step in path[:-1]:
                inner = inner[step]
            inner[path[-1]] = value
            text = json.dumps(changed)
            where = ".".join(map(str, path))
            yield f"{where} is {name}", text.replace('"DEEP"', "[" * 3000 + "]" * 3000)
    for key in ("unknown", "_target_", "<<", "../x", ""):
        yield f"further key {key!r}", json.dumps(document | {key: CODE})


def _paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of a document's values, those inside lists and mappings too."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from _paths(inner, (*before, key))


def document_cases() -> Iterator[Case]:
    """Yield every change of every document, in a folder of $SSLBENCH_PATH, which is the current one too."""
    for kind, (path, document, commands) in DOCUMENTS.items():
        for command in commands:
            yield f"{kind}: sound: {command[0]}", _with_photos(path, json.dumps(document), command)
        for i, (name, text) in enumerate(changed_documents(document)):
            yield f"{kind}: {name}", _with_photos(path, text, commands[i % len(commands)])
    yield "folders below each other", _deep_folders


def _with_photos(path: str, text: str, words: tuple[str, ...]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        photos(folder)
        for i, file in enumerate(sorted(photos(folder / "others").rglob("*.png"))):
            file.write_bytes(picture(20 * i + 9))  # none is in both folders
        if "w.pth" in words:
            (folder / "w.pth").write_bytes(torch_file({f"net.{name}": t for name, t in tensors().items()}))
        start = "# @package _global_\n" if path.startswith("configs") else ""
        (folder / "helper.py").write_text("open('ran', 'w')\ndef net(): pass\n")
        return role(path, (start + text).encode(), *words)(folder)

    return write


def _deep_folders(folder: Path) -> list[str]:
    """Benchmarks below more folders than Python lets functions call each other."""
    photos(folder)
    deep = str(folder / "benchmarks")
    for _ in range(1500):
        Path(deep).mkdir()
        deep += "/d"
    return role("benchmarks/knn/mine.yaml", b"extends: [knn/_base]\ntitle: a\ndata: photos\n", "show", "knn/mine")(
        folder
    )


# --- detectors --------------------------------------------------------------------------------------------------------


def detector_cases(about: dict[str, Any]) -> Iterator[Case]:
    """Yield files of a trained detector with one value of its description replaced.

    Args:
        about: description of a sound one, as its metadata hold it.
    """
    sound = {"detector": {"rpn.weight": torch.zeros(3)}}
    texts = {"sound": json.dumps(about), "no JSON": "{", "deep": "[" * 50_000, "list": "[]", "number": "5"}
    texts |= {"digits": '{"recipe": ' + "9" * 5000 + "}"} | dict(changed_documents(about))
    commands = (("inspect", "w.detector.torch"), ("convert", "w.detector.torch", "o.pth", "--to", "torchvision"))
    for i, (name, text) in enumerate(texts.items()):
        content = functools.partial(own, metadata={"detector": text}, **sound)
        yield f"detector: {name}", _file("w.detector.torch", content, commands[i % 2])
    for name, value in {"text": "x", "none": None, "list": [1], "names": {"../x": torch.zeros(1)}}.items():
        content = functools.partial(own, metadata={"detector": texts["sound"]}, detector=value)
        yield f"detector: tensors are {name}", _file("w.detector.torch", content, commands[0])


def _file(name: str, make: Callable[[], bytes], words: tuple[str, ...]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / name).write_bytes(make())
        return list(words)

    return write


# --- names ------------------------------------------------------------------------------------------------------------

NAMES = {
    "above": "../../x",
    "absolute": "/x",
    "slash": "a/b",
    "backslash": "..\\..\\x",
    "NUL": "a\0b",
    "300 characters": "x" * 300,
    "dots": "..",
    "empty": "",
    "blank": " ",
    "device": "CON",
    "line": "a\nb",
}
OUTPUTS = ("--out", "results", "--store", "store")


def name_cases(record: dict[str, Any]) -> Iterator[Case]:
    """Yield names that are also paths, wherever a name might become a file.

    Args:
        record: a sound record, as its file holds it.
    """
    network = ("--weights", "random", "--backbone", WIDTH, "--resize", "16", "--crop", "16", "--workers", "0")
    for kind, name in NAMES.items():
        document = {"extends": ["knn/_base"], "title": name, "data": "photos"}
        benchmark = json.dumps(document)
        yield f"class: {kind}", _manifest(name, (*PIXELS, "--data", "m.json", *OUTPUTS))
        yield (
            f"title: {kind}",
            _with_photos(
                "benchmarks/knn/mine.yaml",
                benchmark,
                ("eval", "--benchmark", "knn/mine", "--weights", "pixels", "--no-floors", *OUTPUTS),
            ),
        )
        for way, words in {
            "layer": ("eval", "knn", *network, "--layers", name, "--data", "photos", "k=1"),
            "benchmark": ("eval", "--benchmark", name, "--weights", "pixels"),
            "suite": ("eval", "--suite", name, "--weights", "pixels"),
            "preset": ("eval", "knn", "--preset", name, "--weights", "pixels", "--data", "photos"),
            "protocol": ("eval", name, "--weights", "pixels", "--data", "photos"),
            "data": (*PIXELS, "--data", name),
            "backbone": ("eval", "knn", "--weights", "random", "--backbone", name, "--data", "photos"),
        }.items():
            yield f"{way}: {kind}", _with_photos("unused", "", (*words, *OUTPUTS))
        yield f"method: {kind}", _with_photos("unused", "", ("pretrain", name, "--data", "photos", "--dry-run"))
        catalog = json.dumps({name: "photos"})
        yield f"catalog: {kind}", _with_photos("sslbench-data.yaml", catalog, (*PIXELS, "--data", name, *OUTPUTS))
        for key in ("protocol", "layer", "id", "weights", "benchmark"):
            changed = copy.deepcopy(record)
            inner = changed[key] if isinstance(changed.get(key), dict) else changed
            inner["name" if inner is not changed else key] = name
            text = json.dumps(changed)
            boards = ("leaderboard", "results", "--csv", "b.csv", "--html", "b.html", "--latex", "b.tex")
            yield f"record's {key}: {kind}", _file_below("results/knn/x.json", text, boards)


def _manifest(name: str, words: tuple[str, ...]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        document = coco(categories=[{"id": 1, "name": name}, {"id": 2, "name": "b"}])
        (folder / "m.json").write_text(json.dumps(document))
        for i in range(1, 9):
            (folder / f"{i}.png").write_bytes(picture(20 * i))
        return list(words)

    return write


def _file_below(path: str, text: str, words: tuple[str, ...]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        return list(words)

    return write


# --- pages ------------------------------------------------------------------------------------------------------------

SCRIPT = "<script>alert(1)</script>"
BREAKOUTS = (SCRIPT, f'">{SCRIPT}', f"'>{SCRIPT}", f"</script>{SCRIPT}", f"--></td>{SCRIPT}", "{{ 7 * 7 }}" + SCRIPT)


PAGE = ("leaderboard", "results", "--html", "board.html")
FIXED = ("labels", "headline", "probabilities")
"""Texts of a record that are one of a few words."""


def marked(record: dict[str, Any], text: str, paths: Iterable[tuple[Any, ...]]) -> str:
    """Return a record with this in place of several texts."""
    changed = copy.deepcopy(record)
    for path in paths:
        functools.reduce(operator.getitem, path[:-1], changed)[path[-1]] = text
    return json.dumps(changed)


def page_cases(record: dict[str, Any]) -> Iterator[Case]:
    """Yield records with markup in all that may be any text at once, and in one text after another."""
    paths = [path for path in _paths(record) if isinstance(functools.reduce(operator.getitem, path, record), str)]
    free = [path for path in paths if path[-1] not in FIXED]
    for i, text in enumerate(BREAKOUTS):
        yield f"page: all at once {'abcdef'[i]}", _file_below("results/x.json", marked(record, text, free), PAGE)
    for path in paths:
        for i, text in enumerate(BREAKOUTS):
            changed = marked(record, text, [path])
            yield f"page: {'.'.join(map(str, path))} {i}", _file_below("results/x.json", changed, PAGE)
