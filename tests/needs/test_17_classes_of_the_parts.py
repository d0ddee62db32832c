"""Classes of train and test are matched by name, and what is wrong with them is one plain sentence before the score."""

import shutil
from pathlib import Path

import pytest

from sslbench.results.records import read_tree

EVAL = ("eval", "knn", "k=3", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")


def evaluate(sslbench):
    return sslbench(*EVAL, "--workers", "0", "--no-floors", "--no-overlaps")


def copied(source, target):
    shutil.copytree(f"photos/{source}", f"photos/{target}")
    for path in Path(f"photos/{target}").iterdir():  # other images
        path.write_bytes(path.read_bytes() + target.encode())


def test_a_class_that_test_lacks_is_named_and_the_others_are_scored_by_name(world, sslbench):
    shutil.rmtree("photos/test/blue")
    code, _, err = evaluate(sslbench)
    assert code == 0 and "in photos/ (train) but not in photos/ (test): blue" in err, err
    [record] = read_tree(world / "results")
    assert record.metrics["top1"].value > 90


def test_a_class_that_train_lacks_stops_and_is_named(world, sslbench):
    copied("test/blue", "test/yellow")
    code, out, err = evaluate(sslbench)
    assert (code, out) == (1, "") and "'yellow'" in err
    code, out, _ = sslbench("check-data", "photos", "--workers", "0")
    assert code == 1 and "'yellow'" in out


def checkpoints_of_notebooks():
    copied("train/blue", "train/.ipynb_checkpoints")


def an_empty_folder():
    Path("photos/train/pink").mkdir()


def a_flat_part():
    for path in sorted(Path("photos/test").rglob("*.png")):
        path.rename(f"photos/test/{path.parent.name}{path.name}")
    for path in Path("photos/test").iterdir():
        if path.is_dir():
            path.rmdir()


def another_case():
    copied("train/blue", "train/Blue")


def one_image_of_a_class():
    for path in sorted(Path("photos/train/blue").iterdir())[1:]:
        path.unlink()


def numbers_as_names():
    for part in ("train", "test"):
        for name, number in (("blue", 2), ("green", 10), ("red", 1)):
            Path(f"photos/{part}/{name}").rename(f"photos/{part}/{number}")


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (checkpoints_of_notebooks, 0, "3 classes"),
        (an_empty_folder, 0, "pink"),
        (a_flat_part, 1, "test"),
        (another_case, 0, "'Blue'"),
        (one_image_of_a_class, 0, "blue"),
        (numbers_as_names, 0, "3 classes"),
    ],
)
def test_what_folders_have_is_one_sentence_of_check_data(world, sslbench, change, code, words):
    change()
    found, out, err = sslbench("check-data", "photos", "--workers", "0")
    assert found == code and words in out + err, out + err
    assert "Traceback" not in err
