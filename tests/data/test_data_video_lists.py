"""Layouts of Kinetics, Something-Something v2, UCF101 and HMDB51."""

import json

import pytest
from helpers.clips import counting, write_video
from sample_data import video_lists

from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError

HEADER = "label,youtube_id,time_start,time_end,split"


def contents(sources):
    """Return the ids and classes of every split."""
    return {
        split: {name: source.target.text(row) for row, name in enumerate(source.ids)}
        for split, source in sources.items()
    }


def test_kinetics_finds_videos_by_id_and_time_and_counts_those_that_vanished(tmp_path):
    write_video(tmp_path / "train" / "riding a bike" / "a-_b_000003_000013.mp4", counting(4))
    write_video(tmp_path / "val" / "zz9_000000_000010.mkv", counting(4))
    (tmp_path / "annotations").mkdir()
    rows = ["riding a bike,a-_b,3,13,train", '"cooking, eggs",gone,1,11,train']
    (tmp_path / "annotations" / "train.csv").write_text("\n".join([HEADER, *rows]))
    (tmp_path / "annotations" / "val.csv").write_text(f"{HEADER}\nriding a bike,zz9,0,10,validate\n")
    sources = open_data(f"{tmp_path}?frames=2")
    assert contents(sources) == {
        "train": {"train/riding a bike/a-_b_000003_000013.mp4": "riding a bike"},
        "val": {"val/zz9_000000_000010.mkv": "riding a bike"},
    }
    assert "1 of 2 listed videos not there: gone_000001_000011" in " ".join(sources["train"].notes)


def test_something_something_has_templates_as_classes(tmp_path):
    for number in (7, 12):
        write_video(tmp_path / "20bn-something-something-v2" / f"{number}.webm", counting(4), codec="libvpx-vp9")
    row = {"label": "putting cup on table", "template": "Putting [something] on [something]", "placeholders": []}
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "train.json").write_text(json.dumps([{"id": "7", **row}]))
    (tmp_path / "labels" / "validation.json").write_text(json.dumps([{"id": "12", **row}]))
    (tmp_path / "labels" / "labels.json").write_text(json.dumps({"Putting something on something": "0"}))
    name = "Putting something on something"
    assert contents(open_data(f"{tmp_path}?frames=2")) == {
        "train": {"20bn-something-something-v2/7.webm": name},
        "val": {"20bn-something-something-v2/12.webm": name},
    }
    with pytest.raises(UsageError, match="Something-Something v2 has no folds"):
        open_data(f"{tmp_path}?fold=2")


def test_ucf101_has_groups_of_one_scene_and_three_folds(tmp_path):
    place = video_lists.make(tmp_path)
    sources = open_data(f"{place}?frames=4")
    assert {split: len(source) for split, source in sources.items()} == {"train": 8, "test": 4}
    assert sources["train"].grouped_by == "group" and sources["train"].attributes["group"][0] == "v_Archery_g02"
    assert sources["train"].images.options.frames == 4
    with pytest.raises(DataError, match=r"there is no list .*trainlist02\.txt"):
        open_data(f"{tmp_path}?fold=2")


def test_hmdb51_leaves_out_what_a_fold_does_not_use(tmp_path):
    for name in ("a", "b", "c"):
        write_video(tmp_path / "videos" / "brush_hair" / f"{name}.avi", counting(4), codec="mpeg4")
    (tmp_path / "splits").mkdir()
    for fold, codes in ((1, (1, 2, 0)), (2, (2, 1, 1))):
        lines = [f"{name}.avi {code} " for name, code in zip("abc", codes, strict=True)]
        (tmp_path / "splits" / f"brush_hair_test_split{fold}.txt").write_text("\n".join(lines))
    found = {fold: contents(open_data(f"{tmp_path}?fold={fold}")) for fold in (1, 2)}
    assert {split: [*part] for split, part in found[1].items()} == {
        "train": ["videos/brush_hair/a.avi"],
        "test": ["videos/brush_hair/b.avi"],
    }
    assert [*found[2]["train"]] == ["videos/brush_hair/b.avi", "videos/brush_hair/c.avi"]
    assert {*found[1]["train"].values()} == {"brush_hair"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("train.csv", f"{HEADER}\na,b,zero,10,train\n", r"train\.csv: line 2 is no video of Kinetics"),
        ("train.csv", f"{HEADER}\na,b,0,10,train\n", "none of the listed videos of Kinetics"),
        ("train.json", '[{"template": "x"}]', "is no list of Something-Something v2"),
        ("run_test_split1.txt", "a.avi 3\n", "'a.avi 3' is no video of HMDB51"),
        ("trainlist01.txt", "a.avi 1\n", "'a.avi 1' is no video of UCF101"),
    ],
)
def test_wrong_lists_are_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        open_data(str(tmp_path))
