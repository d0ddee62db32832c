"""Triplets of images: NIGHTS' table, tables of other columns, triplets made by classes."""

import csv
import dataclasses

import numpy as np
import pytest
from PIL import Image

from sslbench.data.formats.triplets import made_triplets
from sslbench.data.images import Arrays
from sslbench.data.open import open_as
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.features.extract import side_by_side
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled
from sslbench.targets.triplets import Triplets

NIGHTS = "id left_vote right_vote votes ref_path left_path right_path split is_imagenet".split()


def write_table(path, columns, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def nights(root, rows):
    """NIGHTS' folder with the rows (left vote, right vote, votes, reference number, split)."""
    for number in {row[3] for row in rows}:
        for name in (f"ref/{number}.png", f"distort/{number}_0.png", f"distort/{number}_1.png"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (number, 0, 0)).save(root / name)
    files = [(f"ref/{n}.png", f"distort/{n}_0.png", f"distort/{n}_1.png") for *_, n, _ in rows]
    listed = [(i, *row[:3], *files[i], row[4], "FALSE") for i, row in enumerate(rows)]
    write_table(root / "data.csv", NIGHTS, listed)
    return root


ROWS = [(1, 0, 6, 3, "train"), (0, 1, 8, 1, "test"), (1, 0, 5, 2, "test"), (1, 0, 6, 0, "test"), (0, 1, 7, 1, "test")]


def test_nights_splits_choices_and_votes(tmp_path):
    parts = open_as(str(nights(tmp_path, ROWS)), Triplets)
    assert list(parts) == ["train", "test"]
    test = parts["test"]
    assert isinstance(test.target, Triplets) and [test.target.text(i) for i in range(3)] == ["left", "right", "right"]
    assert [i.split()[0] for i in test.ids] == ["ref/0.png", "ref/1.png", "ref/1.png"]
    paths = [[test.target.images.path(row) for row in test.target.rows(i)] for i in range(3)]
    assert [[path.removeprefix(f"{tmp_path}/") for path in row] for row in paths] == [
        [f"ref/{n}.png", f"distort/{n}_0.png", f"distort/{n}_1.png"] for n in (0, 1, 1)
    ]
    assert test.notes == (f"{tmp_path} (test): 1 triplets with fewer than 6 equal votes are left out",)
    assert test.grouped_by == "reference" and len(set(test.attributes["reference"])) == 2
    assert len(open_as(f"{tmp_path}?min_votes=5", Triplets)["test"]) == 4


def test_a_table_of_choices_and_of_numbers_of_votes(tmp_path):
    nights(tmp_path, ROWS)
    files = ("ref/0.png", "ref/1.png", "ref/2.png")
    write_table(tmp_path / "own.csv", ["ref", "left", "right", "choice"], [(*files, "Right"), (*files[::-1], "left")])
    (part,) = open_as(str(tmp_path / "own.csv"), Triplets).values()
    assert part.target.values.tolist() == [1, 0] and len(part.target.images) == 3
    columns = ["ref", "left", "right", "left_vote", "right_vote"]
    write_table(tmp_path / "votes.csv", columns, [(*files, 3, 2), (*files, 1, 1)])
    (part,) = open_as(str(tmp_path / "votes.csv"), Triplets).values()
    assert part.target.values.tolist() == [0] and "as many votes for both" in part.notes[0]


def test_selected_triplets_keep_their_images_and_the_fingerprint_has_the_places(tmp_path):
    test = open_as(str(nights(tmp_path, ROWS)), Triplets)["test"]
    one = test.select([2])
    assert [one.target.images.path(r) for r in one.target.rows(0)] == [
        test.target.images.path(r) for r in test.target.rows(2)
    ]
    assert len(one.target.images) == 3 and isinstance(one.every_image().target, Unlabelled)
    turned = dataclasses.replace(test, target=test.target.changed(places=test.target.places[:, [0, 2, 1]]))
    assert turned.fingerprint() != test.fingerprint()


def test_features_of_triplets_are_those_of_their_images_and_unread_ones_are_left_out(tmp_path):
    test = open_as(str(nights(tmp_path, ROWS)), Triplets)["test"]
    every = test.every_image()
    x = np.arange(2 * len(every), dtype=np.float32).reshape(-1, 2)
    features = Features(x, every.target, every.ids)
    found = side_by_side(features, test)
    assert found.regions == 3 and found.ids == test.ids
    for i in range(3):
        assert found.x[i].tolist() == x[list(test.target.rows(i))].ravel().tolist()
    lost = test.target.rows(0)[1]
    kept = np.array([row for row in range(len(every)) if row != lost])
    assert side_by_side(features.select(kept), test).ids == test.ids[1:]


def test_the_keys_have_the_content_and_not_the_place_of_the_data(tmp_path):
    found = []
    for name in ("here", "there"):
        nights(tmp_path / name, ROWS)
        source = open_as(str(tmp_path / name), Triplets)["test"]
        found.append((source.fingerprint(), source.every_image().images_fingerprint()))
    assert found[0] == found[1]
    Image.new("RGB", (4, 4), (99, 0, 0)).save(tmp_path / "there" / "ref" / "1.png")
    changed = open_as(str(tmp_path / "there"), Triplets)["test"]
    assert changed.fingerprint() != found[0][0] and changed.every_image().images_fingerprint() != found[0][1]


def test_of_two_candidates_made_by_classes_one_has_the_class_of_the_reference():
    values = np.array([0, 0, 0, 1, 1, 2])
    images = Arrays(np.arange(6, dtype=np.uint8)[:, None, None, None] + np.zeros((6, 4, 4, 3), np.uint8), "x")
    source = Source("x", tuple("abcdef"), Classes(("a", "b", "c"), values), images)
    made = made_triplets(source)
    assert len(made) == 5 * 4, "the only image of its class is no reference"
    for i in range(len(made)):
        ref, *candidates = made.target.rows(i)
        same = [values[row] == values[ref] for row in candidates]
        assert same.index(True) == made.target.values[i] and sum(same) == 1 and ref not in candidates
    assert 0 < made.target.values.mean() < 1 and made_triplets(source).fingerprint() == made.fingerprint()
    with pytest.raises(DataError, match="no two classes"):
        made_triplets(source.select([0, 1]))


def test_tables_that_cannot_be_used_are_one_message(tmp_path):
    for columns, row, message in (
        (["ref", "left", "choice"], ("a", "b", "left"), "no column 'right'"),
        (["ref", "left", "right"], ("a", "b", "c"), "no column 'choice', and no left_vote and right_vote"),
        (["ref", "left", "right", "choice"], ("a", "b", "c", "middle"), "'middle', which is neither left nor right"),
        (["ref", "left", "right", "choice"], ("a.png", "b", "c", "left"), "3 of 3 image files missing: a.png, b"),
        (["ref", "left", "right", "left_vote", "right_vote"], ("a", "b", "c", "x", 1), "left_vote is 'x', which is no"),
        (["ref", "left", "right", "left_vote", "right_vote"], ("a", "b", "c", "nan", 1), "left_vote is 'nan', which"),
        (["ref", "left", "right", "choice"], ("a", "b", "c", ""), "line 2: the choice is missing"),
        (["ref", "left", "right", "choice", "votes"], ("a", "b", "c", "left", ""), "line 2: votes is missing"),
        (["ref", "left", "right", "choice"], ("a", "b", "c", "left", "d"), "5 cells, but the header has 4"),
        (["ref", "left", "right", "choice"], ("a" * 200_000, "b", "c", "left"), "field larger than field limit"),
    ):
        write_table(tmp_path / "t.csv", columns, [row])
        with pytest.raises((UsageError, DataError), match=message):
            open_as(str(tmp_path / "t.csv"), Triplets)


def test_locations_without_triplets_are_one_message(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match="has no triplets of images"):
        open_as(str(tmp_path), Triplets)
    nights(tmp_path, ROWS)
    with pytest.raises(DataError, match=r"no triplet .*\nGive a smaller \?min_votes="):
        open_as(f"{tmp_path}?min_votes=9", Triplets)
    with pytest.raises(UsageError, match="min_votes should be at least 1, not -1"):
        open_as(f"{tmp_path}?min_votes=-1", Triplets)
    with pytest.raises(UsageError, match="unknown key 'votes'"):
        open_as(f"{tmp_path}?votes=9", Triplets)
