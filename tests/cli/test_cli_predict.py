"""`sslbench predict`, as a user runs it."""

import pytest
import torch


@pytest.fixture
def folder(tmp_path, monkeypatch, shared):
    """The current folder, with a small ResNet-18 and its classifier of three classes."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    state = torch.load(shared("weights") / "resnet18w0.25.pth", weights_only=True)
    torch.save({**state, "fc.weight": torch.rand(3, 128), "fc.bias": torch.rand(3)}, "r18.pth")
    (tmp_path / "empty.txt").write_text("a\n\nb\n")
    return tmp_path


BASE = ["predict", "--weights", "r18.pth", "--data", "sklearn:digits", "--csv", "out.csv", "--workers", "0"]


REFUSED = [
    (["--layers", "res4"], "--layers does not go with predict"),
    (["--on-error", "skip"], "--on-error does not go with predict"),
    (["--top-k", "9"], "--top-k 9: the classifier has 3 classes"),
    (["--threshold", "0.3"], "--threshold: this classifier predicts one class per image"),
    (["--classes", "missing.txt"], "cannot read the class names in missing.txt"),
    (["--classes", "empty.txt"], "empty.txt: line 2 is empty"),
    (["--weights", "random", "--backbone", "resnet18"], "'random' has no classifier"),
    (["--weights", "net.pt2"], "net.pt2 is a network for other programs"),
    (["--csv", "missing/out.csv"], "cannot write missing/out.csv"),
]


def test_options_without_effect_are_refused(folder, sslbench):
    for words, problem in REFUSED:
        (folder / "net.pt2").write_bytes(b"x")
        code, _, err = sslbench(*BASE, *words)
        assert code in (1, 2) and problem in err and not (folder / "out.csv").exists()


def test_the_command_writes_the_file_and_names_it(folder, sslbench):
    code, out, err = sslbench(*BASE, "--limit", "5", "--top-k", "3")
    assert code == 0 and out.strip() == str(folder / "out.csv") and "5 images" in err
    lines = (folder / "out.csv").read_text().splitlines()
    assert len(lines) == 6 and lines[0].startswith("split,id,class_1,probability_1,class_2")
