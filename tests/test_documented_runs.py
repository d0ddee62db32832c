"""Commands of README and guides run as they are typed, on small files under the names that the guides use.

Evaluations get --dry-run behind: weights are loaded, data opened, settings and layers resolved, and nothing is
encoded. The data of publications and downloads are not here; commands that name them are left out by that. Trainings
want more images; tests/contracts/ and tests/test_own_parts.py run them.
"""

import re
import shutil

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from PIL import Image
from test_documented_commands import PAGES, commands

from sslbench.backbones.build import build
from sslbench.cli.main import main
from sslbench.evaluation import estimate

HERE = {"w.torch", "a.torch", "b.torch", "photos/", "labelled/", "imagenet/", "folder_without_classes/", "photos.csv"}
HERE |= {"moco_v2_800ep.pth.tar", "resnet50.pth", "products.csv", "trees.csv", "train.csv", "test.csv", "results/"}
HERE |= {
    "x.npy",
    "y.npy",
    "embeddings.npy",
    "labels.csv",
    "small.csv",
    "random",
    "pixels",
    "cifar10/",
    "birds/",
    "vit.torch",
}
HERE |= {"photos.parquet", "x.parquet", "textures:images", "'slides/?unit=tile&size=224&overlap=32'", "slides/"}
HERE |= {"runs/simclr-resnet50/weights.torch", "finetuned.weights.torch", "homography:photos/"}
FILES = ("--weights", "--data", "--test-data", "--features", "--labels", "--eval-data")
NOT_HERE = (
    "backbone my_",
    "classifier=file",
    "--launcher",
    "runs/*",
    "/checkpoints",
    "imagenet-",
    "--backbone resnet50",
    "corrupt=[main]",
    "=svhn/",
    "d2.",
)
"""Parts of commands that need a user's module, a cluster, a finished run, a file of 100 MB, or further data."""


def is_here(words):
    """Return whether a command needs only files that the fixture makes."""
    if any(part in " ".join(words) for part in NOT_HERE) or any(re.search("[A-Z]{4}|\\|", word) for word in words):
        return False
    for i, word in enumerate(words[:-1]):
        if word in FILES:
            values = words[i + 1 :]
            last = next((j for j, w in enumerate(values) if w.startswith("-") or "=" in w), len(values))
            if not set(values[: max(1, last)] if word == "--weights" else values[:1]) <= HERE:
                return False
    return True


def runnable(words):
    """Return the words to run, None where the command cannot run here."""
    if not is_here(words) or "--benchmark" in words or "--suite" in words or "d2" in words:
        return None
    if len(words) < 3 and words[-1] in ("show", "list", "eval", "check-data", "inspect", "--weights"):
        return None
    if words[0] == "eval" and "--weights" in words:
        return [*words, "--dry-run"]
    if (words[0] == "list" and len(words) == 2) or words[-1] == "--help":
        return words
    if words[0] in ("inspect", "check-data") and set(words[1:]) <= HERE:
        return words
    if words[0] in ("show", "diff-preset") and all("/" in word and "." not in word for word in words[1:]):
        return words
    return None


CASES = sorted({tuple(run) for page in PAGES for words in commands(page) if (run := runnable(words)) is not None})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guides")
    rng = np.random.default_rng(0)
    rows = []
    for name in ("photos", "labelled", "imagenet", "cifar10", "birds", "slides"):
        for i in range(24 if name == "slides" else 360):
            path = folder / name / "abc"[i % 3] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(
                rng.integers(0, 256, (240, 240, 3) if name == "slides" else (32, 32, 3), dtype=np.uint8)
            ).save(path)
            if name == "photos":
                rows.append(
                    {"path": path.relative_to(folder), "label": "abc"[i % 3], "product": i % 20, "site": i % 4}
                    | {"height": float(i), "lat": 50.0 - 30 * (i % 4), "lon": 7.0 + 20 * (i % 4)}
                )
    (folder / "folder_without_classes").mkdir()
    for i in range(12):
        shutil.copy(folder / "photos" / "abc"[i % 3] / f"{i}.png", folder / "folder_without_classes")
    for name in ("photos", "products", "trees", "small"):
        pd.DataFrame(rows).to_csv(folder / f"{name}.csv", index=False)
    pd.DataFrame(rows[:300]).to_csv(folder / "train.csv", index=False)
    pd.DataFrame(rows[300:]).to_csv(folder / "test.csv", index=False)
    weights = build("resnet18w0.125").module.state_dict()
    torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), folder / "vit.torch")
    (folder / "runs" / "simclr-resnet50").mkdir(parents=True)
    for name in ("w.torch", "a.torch", "b.torch", "moco_v2_800ep.pth.tar", "resnet50.pth"):
        torch.save(weights, folder / name)
    torch.save(weights, folder / "runs" / "simclr-resnet50" / "weights.torch")
    return folder


def test_many_commands_run():
    assert len(CASES) > 40


@pytest.mark.parametrize("words", CASES, ids=" ".join)
def test_a_documented_command_runs(words, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    monkeypatch.setattr(estimate, "_SECONDS", 0.0)  # the first images will do for the speed
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code in (0, None), capsys.readouterr().err
