"""What is chosen is chosen on train, and the record says where; test images that are all in train are an error."""

import shutil
from pathlib import Path

import pytest

from sslbench.results.records import read_tree

OWN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--workers", "0", "--no-floors")


@pytest.mark.parametrize("copied", [False, True])
def test_the_same_images_to_train_and_to_test_are_an_error(world, sslbench, copied):
    test = "photos/train"
    if copied:
        test = shutil.copytree("photos/train", "other")
    code, out, err = sslbench("eval", "knn", *OWN, "--data", "photos/train", "--test-data", test)
    assert (code, out) == (1, "") and "all 36 images" in err and "memorisation" in err
    assert not list(Path("results").rglob("*.json"))


def test_some_that_are_in_both_are_named_and_the_score_without_them_stands_beside(world, sslbench):
    for i in range(3):
        shutil.copy(f"photos/train/red/{i}.png", f"photos/test/red/copy{i}.png")
    code, out, err = sslbench("eval", "knn", *OWN, "--data", "photos", "k=3")
    assert code == 0
    assert "3 of 18 test images" in err and "without them" in out + err


def test_every_record_says_on_what_it_chose(world, sslbench):
    words = ("knn", "linear", "svm", "knn.k=[1,3]", "svm.costs=[0.1,1]")
    code, _, err = sslbench("eval", *words, *OWN, "--data", "photos")
    assert code == 0, err
    records = read_tree(Path("results"))
    assert len(records) == 3
    for record in records:
        assert "train" in record.selected["on"], record.selected


def test_choosing_on_test_is_asked_for_and_marked_in_every_table(world, sslbench):
    code, out, err = sslbench("eval", "linear", *OWN, "--data", "photos", "select_on=test")
    assert code == 0 and "selected on test" in out, err
    _, board, _ = sslbench("leaderboard", "results", "--csv", "board.csv")
    assert "selected on test" in board and "selected on test" in Path("board.csv").read_text()
