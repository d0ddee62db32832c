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
        ("train.csv", f"{HEADER}\na,b,0,inf,train\n", r"train\.csv: line 2 is no video of Kinetics"),
        ("train.csv", f"{HEADER}\na,b,0,9,train\n ,b,0,10,train\n", "line 3 is no video of Kinetics"),
        ("train.csv", f"{HEADER}\na,,0,10,train\n", "line 2 is no video of Kinetics"),
        ("train.csv", f"{HEADER}\n{'a' * 200_000},b,0,10,train\n", "line 2 is no video of Kinetics"),
        ("train.csv", f"{HEADER}\n", r"train\.csv lists no video"),
        ("train.csv", "\0".join(f"{HEADER}\na,b,0,10,train\n"), r"train\.csv: line 1 is no header in UTF-8"),
        ("run_test_split1.txt", "\n", r"run_test_split1\.txt lists no video"),
        ("trainlist01.txt", "", r"trainlist01\.txt lists no video"),
        ("train.json", '[{"id": "", "template": "x"}]', "empty id or template"),
        ("train.json", '[{"template": "x"}]', "is no list of Something-Something v2"),
        ("run_test_split1.txt", "a.avi 3\n", "'a.avi 3' is no video of HMDB51"),
        ("trainlist01.txt", "a.avi 1\n", "'a.avi 1' is no video of UCF101"),
    ],
)
def test_wrong_lists_are_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        open_data(str(tmp_path))


ROW = "riding,a,0,10"


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"all.csv": f"{HEADER}\n{ROW},train\nx,b,0,9,test\nx,c,0,9,test\n"}, "none of the 2 videos of test is here"),
        (
            {"train.csv": f"{HEADER}\n{ROW},train\n", "val.csv": f"{HEADER}\n{ROW},validate\n"},
            r"a_000000_000010.mp4 is listed twice, as .* train by .*train\.csv and as .* val by .*val\.csv",
        ),
        (
            {"train.csv": f"{HEADER}\n{ROW},train\neating,a,0,10,train\n"},
            "'riding' of train .* and as 'eating' of train",
        ),
        (
            {"train.json": '[{"id": "a_000000_000010", "template": "x"}]', "validation.json": "[]"},
            r"validation\.json lists no video",
        ),
    ],
)
def test_splits_that_would_vanish_or_overlap_are_refused(tmp_path, lists, words):
    (tmp_path / "a_000000_000010.mp4").touch()
    for name, text in lists.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=words):
        open_data(str(tmp_path))


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("label, youtube_id, Time_Start, time_end, split", "utf-8"),
        ('"label","youtube_id","time_start","time_end","split"', "utf-16"),
        (HEADER, "latin-1"),
    ],
)
def test_kinetics_lists_are_read_as_spreadsheets_save_them(tmp_path, header, encoding):
    write_video(tmp_path / "a_000000_000010.mp4", counting(4))
    (tmp_path / "train.csv").write_text(f"{header}\nsauté,a,0,10,train\n", encoding)
    assert contents(open_data(f"{tmp_path}?frames=2")) == {"train": {"a_000000_000010.mp4": "sauté"}}


def test_constrained_validation_is_no_training(tmp_path):
    for number, name in enumerate(("constrained_train", "constrained_validation")):
        write_video(tmp_path / f"{number}.mp4", counting(4))
        (tmp_path / f"{name}.json").write_text(json.dumps([{"id": number, "template": "x"}]))
    assert contents(open_data(f"{tmp_path}?frames=2")) == {"train": {"0.mp4": "x"}, "val": {"1.mp4": "x"}}


def test_hmdb51_takes_the_file_of_its_class_where_two_have_its_name(tmp_path):
    for action, code in (("laugh", 1), ("smile", 2)):
        write_video(tmp_path / action / "a.avi", counting(4), codec="mpeg4")
        (tmp_path / f"{action}_test_split1.txt").write_text(f"a.avi {code}\n")
    assert contents(open_data(f"{tmp_path}?frames=2")) == {
        "train": {"laugh/a.avi": "laugh"},
        "test": {"smile/a.avi": "smile"},
    }
