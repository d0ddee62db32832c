"""Guides: files for their commands, and blocks of `console` with what commands print.

    sslbench demo    # trains the network of the guides
    PYTHONPATH=tests python -m helpers.guides sslbench-demo/pretrained-seed0/weights.torch [PAGE ...]

writes what the commands print now into the pages. An output that ends with `...` keeps its number of lines.
"""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pandas as pd
import timm
import torch
from PIL import Image

from helpers.clips import write_classes
from sslbench.cli.main import main
from sslbench.data.prepare.grey_digits import draw_digits

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
WIDTH = 84
"""Characters of a line of code that a page shows on a screen of 1280 pixels."""
AS_SHOWN = {"width": WIDTH, "subsequent_indent": "    ", "drop_whitespace": True, "replace_whitespace": False}


def write_files(folder, weights, *, tested=None):
    """Write digits as images, tables of them, and weights, by the guides' names.

    100 images to train on; to test 359, or at most `tested` of each digit.
    """
    draw_digits(folder / "photos", 0)
    for part, most in (("train", 10), ("val", tested)):  # few labels, where features are of use
        for digit in (folder / "photos" / part).iterdir():
            for image in sorted(digit.iterdir())[most:] if most else ():
                image.unlink()
    for name in ("labelled", "imagenet", "cifar10", "birds"):
        shutil.copytree(folder / "photos" / "val", folder / name)
    shutil.copytree(folder / "photos" / "val" / "3", folder / "folder_without_classes")
    for i, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (6, 240, 240, 3), dtype=np.uint8)):
        (folder / "slides" / "ab"[i % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "slides" / "ab"[i % 2] / f"{i}.png")
    write_classes(folder / "videos")
    rows = [
        {"path": path.relative_to(folder), "label": path.parent.name, "product": i % 20, "site": i % 4}
        | {"height": 10 * float(path.parent.name) + i % 3, "lat": 50.0 - 30 * (i % 4), "lon": 7.0 + 20 * (i % 4)}
        for i, path in enumerate(sorted((folder / "photos").glob("*/*/*.png")))
    ]
    # Embeddings "of texts" in the space of pixels: the mean image of each digit.
    digits = sorted((folder / "photos" / "train").iterdir())
    means = [
        np.mean(
            [np.asarray(Image.open(f).convert("RGB").resize((8, 8)), float) for f in sorted(digit.iterdir())], axis=0
        )
        for digit in digits
    ]
    words = np.transpose(means, (0, 3, 1, 2)).reshape(len(means), -1).astype(np.float32)
    np.savez(folder / "words.npz", features=words, names=[digit.name for digit in digits])
    parts = dict.fromkeys(("products", "trees", "small"), rows[::4])
    for name, some in (parts | {"photos": rows, "train": rows[::2], "test": rows[1::2]}).items():
        pd.DataFrame(some).to_csv(folder / f"{name}.csv", index=False)
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), folder / "vit.torch")
    (folder / "runs" / "simclr-resnet50").mkdir(parents=True)
    written = torch.load(weights, weights_only=True)
    metadata = written["metadata"]
    metadata["preprocessing"] = metadata["preprocessing"].replace("[16, 16]", "[32, 32]")  # corruptions need as many
    for name in ("w.torch", "a.torch", "moco_v2_800ep.pth.tar", "resnet50.pth", "runs/simclr-resnet50/weights.torch"):
        torch.save(written, folder / name)
    generator = torch.Generator().manual_seed(0)
    for tensor in written["state_dict"].values():
        if tensor.ndim == 4:  # convolutions that are hurt: a second network, a little worse
            tensor += 0.5 * tensor.std() * torch.randn(tensor.shape, generator=generator)
    torch.save(written, folder / "b.torch")
    return folder


def consoles(page):
    """Return (command, output) of the blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [pair for block in BLOCK.findall(text) for pair in _pairs(block)]


def _pairs(block):
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block, flags=re.M)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _expanded(word):
    """Return the files of a pattern, as a shell does."""
    return ("*" in word and sorted(map(str, Path().glob(word)))) or [word]


def printed(command):
    """Run a command here; return the lines of its standard output, long ones broken."""
    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            words = shlex.split(command.replace("\\\n", " "))
            main([found for word in words[1:] for found in _expanded(word)])
        except SystemExit as end:
            assert end.code in (0, None), f"{command}: {errors.getvalue()}"
    text = out.getvalue().replace(f"{Path.cwd()}{os.sep}", "").replace(f"{DOCS.parent}{os.sep}", "")
    return [row for line in text.splitlines() for row in textwrap.wrap(line, **AS_SHOWN) or [""]]


@contextlib.contextmanager
def folder_of(files, folder):
    """Make a folder the current one, with links to the files: what commands write stays in it."""
    for path in files.iterdir():
        (folder / path.name).symlink_to(path)
    with contextlib.chdir(folder):
        yield


def _renewed(block):
    text = ""
    for command, old in _pairs(block):
        new = printed(command)
        if old.endswith("...\n"):
            new = [*new[: old.count("\n") - 1], "..."]
        text += "".join(f"{line}\n" for line in (f"$ {command}", *new))
    return f"```console\n{text}```"


def write_outputs(weights, pages):
    """Run the blocks of pages, and write what the commands print."""
    os.environ["COLUMNS"] = "80"
    with tempfile.TemporaryDirectory() as name:
        files = write_files(Path(name), weights)
        for page in pages:
            with tempfile.TemporaryDirectory() as folder, folder_of(files, Path(folder)):
                text = page.read_text(encoding="utf-8")
                page.write_text(BLOCK.sub(lambda block: _renewed(block[1]), text), encoding="utf-8")


if __name__ == "__main__":
    given = [Path(page).resolve() for page in sys.argv[2:]]
    write_outputs(Path(sys.argv[1]).resolve(), given or [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))])
