"""Escape sequences in every kind of name that a command prints: classes, files, tensors, catalogs, records."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from hostile.campaign import Case
from hostile.text_cases import PIXELS, coco, photos, picture
from hostile.weights_cases import own, tensors, torch_file
from safetensors.torch import save as save_safetensors

SEQUENCES = {"clear": "\x1b[2J", "title": "\x1b]0;owned\x07", "C1": "\x9b31m", "link": "\x1b]8;;http://x\x1b\\"}


def _write(make: Callable[[Path], object], *words: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        make(folder)
        return list(words)

    return write


def _manifest(odd: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        document = coco(categories=[{"id": 1, "name": odd}, {"id": 2, "name": "b"}])
        (folder / "m.json").write_text(json.dumps(document))
        for i in range(1, 9):
            (folder / f"{i}.png").write_bytes(picture(20 * i))

    return make


def escape_cases() -> Iterator[Case]:
    """Yield an escape sequence in one place after another."""
    first = torch.zeros(16, 3, 7, 7)
    for kind, odd in SEQUENCES.items():

        def catalog(folder: Path, odd: str = odd) -> None:
            photos(folder)
            (folder / "sslbench-data.yaml").write_text(json.dumps({f"mine{odd}": "photos", odd: "nowhere"}))

        def damaged(folder: Path, odd: str = odd) -> None:
            (photos(folder) / "a" / f"{odd.replace('/', '')}.png").write_bytes(b"x")

        def benchmark(folder: Path, odd: str = odd) -> None:
            (folder / "mine.yaml").write_text(json.dumps({"title": odd, "protocol": odd, "data": odd}))

        classes = (f"a{odd.replace('/', '')}", "b")
        for way, words in {"eval": (*PIXELS, "--data", "photos"), "check": ("check-data", "photos")}.items():
            yield f"class, {way}: {kind}", _write(lambda folder, c=classes: photos(folder, c), *words)
            yield f"damaged image, {way}: {kind}", _write(damaged, *words)
        yield f"category: {kind}", _write(_manifest(odd), *PIXELS, "--data", "m.json")
        yield f"category, check: {kind}", _write(_manifest(odd), "check-data", "m.json", "--boxes")
        yield f"catalog: {kind}", _write(catalog, "data", "list")
        yield f"catalog, unknown name: {kind}", _write(catalog, *PIXELS, "--data", "mine")
        yield f"benchmark: {kind}", _write(benchmark, "eval", "--benchmark", "mine.yaml", "--weights", "pixels")
        for suffix, content in {
            "pth": torch_file(tensors() | {odd: first}),
            "safetensors": save_safetensors(tensors() | {odd: first}, metadata={"a": odd}),
            "torch": own(metadata={"method": odd, odd: odd}),
        }.items():
            for command in (("inspect", f"w.{suffix}"), ("diff", f"w.{suffix}", f"w.{suffix}")):
                yield (
                    f"{command[0]} {suffix}: {kind}",
                    _write(lambda folder, s=suffix, c=content: (folder / f"w.{s}").write_bytes(c), *command),
                )
        yield (
            f"backbone: {kind}",
            _write(lambda folder, o=odd: (folder / "w.torch").write_bytes(own(backbone=o)), "inspect", "w.torch"),
        )
        yield f"words: {kind}", _write(lambda folder: None, "eval", odd, "--weights", odd, "--data", odd)
