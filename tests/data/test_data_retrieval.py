"""Retrieval sets: every layout gives the published queries and answers, and what is wrong is one message."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from sslbench.data.decode.handlers import picture_decoder
from sslbench.data.loading.loader import survey
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.targets.classes import Answers


def write(root, *names, size=(8, 6)):
    rng = np.random.default_rng(len(names))
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)).save(path)


GROUND_TRUTH = {
    "imlist": ["a_1", "a_2", "b_1", "b_2"],
    "qimlist": ["a_0", "b_0"],
    "gnd": [
        {"easy": [0], "hard": [1], "junk": [2], "bbx": [1.0, 2.0, 5.0, 6.0]},
        {"easy": [], "hard": [3], "junk": [], "bbx": [0.0, 0.0, 3.0, 3.0]},
    ],
}


@pytest.fixture
def revisited(tmp_path):
    write(tmp_path / "jpg", *(f"{n}.png" for n in GROUND_TRUTH["imlist"] + GROUND_TRUTH["qimlist"]))
    (tmp_path / "gnd_toy.pkl").write_bytes(pickle.dumps(GROUND_TRUTH, protocol=2))
    return tmp_path


@pytest.mark.parametrize("place", ["{}", "{}/gnd_toy.pkl", "{}/gnd_toy.pkl?images={}/jpg"])
def test_revisited_ground_truth(revisited, place):
    source = open_data(place.format(revisited, revisited))["all"]
    assert source.ids == ("a_1", "a_2", "b_1", "b_2", "query/a_0", "query/b_0")
    assert [source.target.text(i) for i in (0, 4, 5)] == ["database", "a_0", "b_0"]
    queries = source.target.queries
    assert queries.apart == {"query/a_0", "query/b_0"} and list(queries.tasks) == ["medium", "hard", "easy"]
    first = {task: answers["query/a_0"] for task, answers in queries.tasks.items()}
    assert first == {
        "medium": Answers(("a_1", "a_2"), ("b_1",)),
        "hard": Answers(("a_2",), ("a_1", "b_1")),
        "easy": Answers(("a_1",), ("a_2", "b_1")),
    }


def test_queries_are_cut_to_their_boxes_and_may_be_whole(revisited):
    def sizes(source):
        decoder = picture_decoder(None, source.images)
        if hasattr(source.images, "decoded"):
            return [tuple(source.images.decoded(i, decoder).image.shape[1:]) for i in range(len(source))]
        return [Image.open(source.images.path(i)).size[::-1] for i in range(len(source))]

    cut, whole = (open_data(f"{revisited}{options}")["all"] for options in ("", "?queries=whole"))
    assert sizes(cut) == [(6, 8)] * 4 + [(4, 4), (3, 3)] and sizes(whole) == [(6, 8)] * 6
    assert cut.fingerprint() != whole.fingerprint()


@pytest.mark.parametrize("entry", [{"easy": [0], "hard": [0], "junk": []}, {"easy": [0], "hard": [], "junk": [0]}])
def test_an_image_is_once_among_the_answers_to_a_query(revisited, entry):
    """A positive that is also ignored would have a negative rank."""
    other = {**GROUND_TRUTH, "gnd": [{**entry, "bbx": [0.0, 0.0, 3.0, 3.0]}, GROUND_TRUTH["gnd"][1]]}
    (revisited / "gnd_toy.pkl").write_bytes(pickle.dumps(other))
    with pytest.raises(DataError, match="a_1 is twice among the positives and ignored images of query/a_0"):
        open_data(str(revisited))


def test_a_box_outside_of_its_image_is_an_unreadable_query(revisited):
    wrong = {**GROUND_TRUTH["gnd"][1], "bbx": [8.0, 0.0, 12.0, 3.0]}
    other = {**GROUND_TRUTH, "gnd": [GROUND_TRUTH["gnd"][0], wrong]}
    (revisited / "gnd_toy.pkl").write_bytes(pickle.dumps(other))
    source = open_data(str(revisited))["all"]
    (bad,) = survey(source, np.arange(len(source)), workers=0).unreadable
    assert bad[0] == 5 and bad[2] == "has no pixel in its box 8 0 12 3: the image is 8 x 6 pixels"


def test_answers_are_part_of_the_fingerprint(revisited):
    before = open_data(str(revisited))["all"].fingerprint()
    other = {**GROUND_TRUTH, "gnd": [GROUND_TRUTH["gnd"][0], {**GROUND_TRUTH["gnd"][1], "junk": [0]}]}
    (revisited / "gnd_toy.pkl").write_bytes(pickle.dumps(other))
    assert open_data(str(revisited))["all"].fingerprint() != before


def test_rows_of_mat_files_are_numbered_from_one(tmp_path):
    write(tmp_path, "db/x.png", "db/y.png", "q/z.png")
    gnd = np.array([{"ok": np.array([2]), "bbx": np.array([1.0, 1, 4, 4])}], dtype=object)
    names = {"imlist": ["db/x.png", "db/y.png"], "qimlist": ["q/z.png"]}
    cells = {key: np.array(value, dtype=object) for key, value in names.items()}
    savemat(tmp_path / "gnd_INSTRE.mat", {**cells, "gnd": gnd})
    source = open_data(str(tmp_path))["all"]
    assert source.target.queries.tasks == {"": {"query/q/z.png": Answers(("db/y.png",))}}


def test_lists_of_oxford(tmp_path):
    write(tmp_path / "jpg", *(f"all_{i}.jpg" for i in range(4)))
    lists = tmp_path / "gt"
    lists.mkdir()
    for kind, lines in {"query": "oxc1_all_0 1 1 5 5", "good": "all_0\nall_1", "ok": "all_2", "junk": "all_3"}.items():
        (lists / f"all_1_{kind}.txt").write_text(lines)
    source = open_data(str(tmp_path))["all"]
    expected = Answers(("jpg/all_0.jpg", "jpg/all_1.jpg", "jpg/all_2.jpg"), ("jpg/all_3.jpg",))
    assert source.target.queries.tasks == {"": {"query/all_1": expected}} and len(source) == 5


def test_holidays_queries_are_in_the_database(tmp_path):
    write(tmp_path, "100000.jpg", "100001.jpg", "100002.jpg", "100100.jpg", "100101.jpg")
    source = open_data(str(tmp_path))["all"]
    answers = source.target.queries.tasks[""]
    assert answers["100000.jpg"] == Answers(("100001.jpg", "100002.jpg"), ("100000.jpg",))
    assert set(answers) == {"100000.jpg", "100100.jpg"} and not source.target.queries.apart


def test_copydays_has_a_task_per_folder_and_strong_copies_lead(tmp_path):
    write(tmp_path, "original/200000.jpg", "original/200100.jpg", "strong/200001.jpg", "strong/200901.jpg")
    write(tmp_path, "crops/50/200100.jpg", "crops/10/200000.jpg", "jpegqual/3/200000.jpg")
    write(tmp_path / "other", "x.jpg")
    source = open_data(f"{tmp_path}?distractors={tmp_path / 'other'}")["all"]
    assert list(source.target.queries.tasks) == ["strong", "crops_10", "crops_50", "jpegqual_3"]
    assert source.target.queries.tasks["strong"] == {
        "strong/200001.jpg": Answers(("original/200000.jpg",)),
        "strong/200901.jpg": Answers(()),
    }
    assert "distractors/x.jpg" in source.ids and "distractors/x.jpg" not in source.target.queries.apart


def test_pairs_of_disc(tmp_path):
    write(tmp_path, "references/R1.jpg", "references/R2.jpg", "queries/Q1.jpg", "queries/Q2.jpg", "queries/Q3.jpg")
    (tmp_path / "pairs.csv").write_text("query_id,reference_id\nQ1,R2\nQ2,\n")
    source = open_data(str(tmp_path))["all"]
    assert source.target.queries.tasks[""] == {
        "queries/Q1.jpg": Answers(("references/R2.jpg",)),
        "queries/Q2.jpg": Answers(()),
    }
    assert "queries/Q3.jpg" not in source.ids


class Code:
    def __reduce__(self):
        return Path, ("/tmp/never",)


def test_a_wrong_ground_truth_is_one_message(revisited):
    for content, message in (
        ({**GROUND_TRUTH, "imlist": ["a_1", "a_2", "b_1", "missing"]}, "1 of 4 images are not below"),
        ({**GROUND_TRUTH, "gnd": GROUND_TRUTH["gnd"][:1]}, "one entry per query"),
        (
            {**GROUND_TRUTH, "gnd": [{**GROUND_TRUTH["gnd"][0], "easy": [4]}, GROUND_TRUTH["gnd"][1]]},
            "outside of the 4",
        ),
        ({**GROUND_TRUTH, "gnd": [{**GROUND_TRUTH["gnd"][0], "bbx": [3, 3, 3, 9]}, {}]}, "is empty"),
        ({"imlist": "a"}, "should be a list of names"),
        ([1, 2], "it holds no dict"),
        (Code(), "gnd_toy.pkl"),
    ):
        (revisited / "gnd_toy.pkl").write_bytes(pickle.dumps(content))
        with pytest.raises(DataError, match=message):
            open_data(str(revisited))


def test_options_without_an_effect_and_joined_sets_are_refused(revisited, tmp_path):
    copydays = tmp_path / "copydays"
    write(copydays, "original/200000.jpg", "strong/200001.jpg")
    with pytest.raises(UsageError, match="queries has no effect on Copydays"):
        open_data(f"{copydays}?queries=whole")
    with pytest.raises(DataError, match="cannot be joined"):
        open_data(f"several:a={copydays},b={copydays}")
