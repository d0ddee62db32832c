"""`sslbench eval robustness` from the command line."""

import json

import numpy as np
import pytest
from PIL import Image

NETWORK = ("--weights", "random", "--backbone", "resnet18w0.125", "--resize", "32", "--crop", "none")
OWN = (*NETWORK, "--data", "photos", "--out", "results", "c=[0.1]")
FEW = ("corrupt=[contrast]", "severities=[1,5]", "rotations=[90]", "scales=[]", "crops=[]")


def write_pictures(folder, classes, n):
    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True)
        colour = rng.integers(0, 255, 3)
        for i in range(n):
            array = np.clip(colour + rng.integers(-90, 90, (32, 32, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(array).save(folder / name / f"{i}.png")


def records(folder):
    return [json.loads(file.read_text()) for file in sorted(folder.rglob("*.json"))]


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_pictures(tmp_path / "photos" / "train", ["ant", "bee", "cat"], 8)
    write_pictures(tmp_path / "photos" / "test", ["ant", "bee", "cat"], 4)
    write_pictures(tmp_path / "sketches", ["ant", "cat"], 3)
    write_pictures(tmp_path / "unknown", ["dog"], 5)
    return tmp_path


def test_a_run_prints_its_parts_and_the_leaderboard_shows_any_of_them(world, sslbench):
    words = (*FEW, "sets={sketches: sketches}", "unknown=unknown", "neighbours=2")
    code, out, err = sslbench("eval", "robustness", *OWN, *words)
    assert code == 0, err
    for text in ("corruption_error", "severity 5", "top1 on sketches", "rotation 90", "other images", "mahalanobis"):
        assert text in out, text
    summary, of_set = sorted(records(world / "results"), key=lambda r: len(r["metrics"]), reverse=True)
    assert summary["headline"] == "corruption_error" and of_set["data"]["test"]["name"] == "sketches"
    assert {part["name"] for part in summary["data"]["further"]} == {"versions", "unknown", "sketches"}
    assert len(list((world / "results").rglob("*.corruptions.png"))) == 1
    code, out, err = sslbench("leaderboard", "results", "--metric", "corruption_error(contrast,5)")
    assert code == 0, err
    assert f"{summary['metrics']['corruption_error(contrast,5)']['value']:.2f}" in out


def test_beside_other_protocols_the_images_are_encoded_once(world, sslbench):
    code, _, err = sslbench("eval", "linear", "robustness", *OWN, *FEW, "--no-floors")
    assert code == 0, err
    linear, robustness = sorted(records(world / "results"), key=lambda r: r["protocol"]["name"])
    assert linear["metrics"]["top1"] == robustness["metrics"]["top1"]
    assert err.count("(train): 24 images in") == 1


def test_a_dry_run_names_the_sets_and_decodes_nothing(world, sslbench):
    code, out, err = sslbench("eval", "robustness", *OWN, *FEW, "--dry-run")
    assert code == 0, err
    assert "3 versions  to be extracted" in out and not (world / "results").exists()


def test_several_weights_are_not_computed_again(world, sslbench):
    suite = world / "benchmarks" / "suites"
    suite.mkdir(parents=True)
    settings = "{c: [0.1], corrupt: [contrast], severities: [1], rotations: [], scales: [], crops: []}"
    text = f"title: t\nprotocol: robustness\nversion: 1\nfolder: photos\nsettings: {settings}\n"
    (world / "benchmarks" / "photos.yaml").write_text(text)
    words = ("eval", "--benchmark", "benchmarks/photos.yaml", *OWN[:-1])
    for expected in ("version: 12 images", "already computed"):
        code, _, err = sslbench(*words, "--weights", "random", "pixels:40")
        assert code == 0, err
        assert expected in err


def test_a_file_does_not_choose_the_code_that_reads_images(world, sslbench):
    (world / "evil_source.py").write_text("raise SystemExit('it ran')\n")
    text = "title: t\nprotocol: robustness\nsource: s 2020\nsettings: {sets: {x: 'evil.source:y'}}\n"
    (world / "preset.yaml").write_text(text)
    code, _, err = sslbench("eval", "--preset", "preset.yaml", *OWN)
    assert code == 2 and "settings.sets.x names the Python code 'evil.source'" in err and "sets.x=evil.source:y" in err


MISTAKES = [
    (["corrupt=[fogg]"], "there is no corruption 'fogg'"),
    (["sets={a: nowhere}"], "nowhere"),
    (["unknown=photos/test", "neighbours=2"], "are not unknown: ant"),
    (["corrupted=photos"], "has no folder gaussian_noise/1"),
    (["sets={imagenet-real: real.json}"], "cannot read real.json"),
    (["--test-classes", "subset"], "cannot be scored on test data with a subset"),
]


def test_mistakes_are_one_message(world, sslbench):
    for words, message in MISTAKES:
        code, _, err = sslbench("eval", "robustness", *OWN, *words)
        assert code in (1, 2) and message in err and "Traceback" not in err
        assert not records(world / "results")


def test_embeddings_are_refused(world, sslbench):
    np.save(world / "x.npy", np.eye(6, dtype=np.float32))
    (world / "y.csv").write_text("label\n" + "a\nb\n" * 3)
    code, _, err = sslbench("eval", "robustness", "--features", "x.npy", "--labels", "y.csv")
    assert code == 2 and "robustness takes images and cannot run on features" in err
