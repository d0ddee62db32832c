"""A published number is measured again by its protocol, with a verdict; what differs from a paper is one list."""

import json
import shutil
from pathlib import Path

from sslbench.results.records import read_tree

KNN = ("eval", "knn", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")
PUBLISHED = """benchmark,weights,backbone,metric,value,protocol,source,where
knn/shapes,Tiny,tiny,top1,{value},Tiny kNN,a paper (2026),Table 1
"""


def test_a_published_number_agrees_or_does_not(world, sslbench, monkeypatch):
    mine = world / "mine" / "benchmarks"
    (mine / "published").mkdir(parents=True)
    (mine / "presets" / "knn").mkdir(parents=True)
    (mine / "knn").mkdir()
    settings = "settings: {k: [3]}\n"
    (mine / "presets" / "knn" / "tiny.yaml").write_text(f"title: t\nsource: s\nprotocol: knn\n{settings}")
    (mine / "knn" / "shapes.yaml").write_text("title: t\nversion: 1\nprotocol: knn\nsamples: {train: 36, test: 15}\n")
    (mine / "published" / "_protocols.yaml").write_text("knn/tiny: {protocol: Tiny kNN, tolerance: 0.5}\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(mine.parent))
    assert sslbench(*KNN, "k=3", "--no-floors")[0] == 0
    [record] = read_tree(Path("results"))
    top1 = record.metrics["top1"].value
    ask = ("reproduce", "--published", "knn/shapes/tiny/tiny-tiny", *KNN[2:])
    for value, expected in ((top1 + 0.4, 0), (top1 - 0.6, 1)):
        (mine / "published" / "mine.csv").write_text(PUBLISHED.format(value=value))
        code, out, err = sslbench(*ask)
        assert code == expected, err
        assert ("does NOT agree" in out) == bool(expected) and "a paper (2026)" in out
    shutil.rmtree("photos/test/red")
    (Path("photos/test/red")).mkdir()
    shutil.copy("photos/train/red/0.png", "photos/test/red/0.png")
    code, out, err = sslbench(*ask)
    assert code == 1 and "no verdict" in err and not out


def test_a_preset_is_compared_with_a_record(world, sslbench):
    assert sslbench(*KNN, "k=3", "--no-floors")[0] == 0
    [record] = Path("results").rglob("knn/*.json")
    code, out, _ = sslbench("diff-preset", record, "knn/dino", "--json")
    found = json.loads(out)["differences"]
    assert code == 1 and found["k"] == {"a": [3], "b": [20]}
    assert "preprocessing.crop" in found and "layers" not in found
    code, out, _ = sslbench("diff-preset", record, record)
    assert code == 0 and "do not differ" in out
