"""Which feature is scored is explicit: each is named, all come from one pass, and train alone says which is best."""

import csv
from pathlib import Path

import pytest
import torch

from sslbench.backbones.build import build
from sslbench.results.records import read_tree

VIT = "timm:vit_tiny_patch16_224,img_size=32,patch_size=8,depth=4,embed_dim=48,num_heads=3"
LOOK = ("--resize", "32x32", "--crop", "none", "--workers", "0")
CLASS = (
    "norm:cls",
    "norm:mean",
    "norm:cls+mean",
    "norm:gem",
    "concat(blocks.0:cls,blocks.1:cls,blocks.2:cls,norm:cls)",
)


@pytest.fixture
def weights(world):
    torch.save(build(VIT).module.state_dict(), "vit.pth")
    return ("--weights", "vit.pth", "--backbone", VIT, "--data", "photos", *LOOK)


def test_each_feature_has_a_name_and_a_record_and_the_best_is_told_by_the_hold_out(weights, sslbench):
    code, out, err = sslbench("eval", "linear", *weights, "--layers", ",".join(CLASS), "--no-floors", "--no-overlaps")
    assert code == 0, err
    assert err.count(" images in ") == 2, "one pass over each part"
    found = {record.layer: record.selected for record in read_tree(Path("results"))}
    assert len(found) == len(CLASS) and all("held-out" in selected["on"] for selected in found.values())
    order = sorted(found, key=lambda layer: -found[layer]["score"])
    [told] = [line for line in out.splitlines() if "best layers on held-out 20 % of train: " in line]
    assert [told.count(f" {layer} {found[layer]['score']:.3f}") for layer in order] == [1] * len(order)
    scores = [found[layer]["score"] for layer in order]
    assert told.index(f"{scores[0]:.3f}") <= told.index(f"{scores[-1]:.3f}")


def test_one_pass_stores_every_feature(weights, sslbench):
    code, _, err = sslbench("extract", *weights, "--layers", ",".join(CLASS), "--store", "store")
    assert code == 0 and err.count(" images in ") == 2, err
    assert len(list(Path("store").rglob("*.npy"))) == 2 * len(CLASS)
    [index, _] = Path("store").rglob("index.csv")
    assert {"row", "id", "path", "label"} <= set(next(csv.DictReader(index.read_text().splitlines())))


def test_heads_of_a_weights_file_are_features_too(shared, world, sslbench):
    [run] = (shared("simclr") / "a").glob("weights.torch")
    words = ("--weights", run, "--data", "photos", "--resize", "32x32", "--crop", "none", "--workers", "0")
    code, _, err = sslbench("eval", "knn", "k=3", *words, "--layers", "res5avg,head", "--no-floors", "--no-overlaps")
    assert code == 0, err
    assert {record.layer for record in read_tree(Path("results"))} == {"res5avg", "head"}
