"""What TFDS has prepared, read without TensorFlow: splits, parts of splits, names, and damage."""

import contextlib
import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from helpers.containers import CLASSES, crc32c, example, field, framed, pictures, varint, write_tfds
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.data.download import find_download
from sslbench.data.formats.tfds.tfrecord import _masked_crc, parse
from sslbench.data.loading.loader import scan
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled

NAMES = list(pictures())


def texts(source):
    return [source.target.text(i) for i in range(len(source))]


@pytest.fixture
def prepared(tmp_path):
    return write_tfds(tmp_path, pictures(), splits={"train": NAMES[:10], "validation": NAMES[10:]})


def info_file(spec, name="dataset_info.json"):
    return Path(spec.removeprefix("tfds:").partition("[")[0]) / name


def edit(path, **changes):
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(content))


def test_splits_labels_and_ids(prepared):
    sources = open_data(prepared)
    assert tuple(sources) == ("train", "val")
    assert sources["val"].ids == tuple(sorted(NAMES[10:]))
    assert texts(sources["val"]) == [pictures()[name][1] for name in sources["val"].ids]
    assert open_data(prepared.removeprefix("tfds:"))["train"].fingerprint() == sources["train"].fingerprint()


def test_a_part_of_a_split(prepared):
    for part, expected in (
        ("train", range(10)),
        ("train:20%", range(2)),
        ("train:3", range(3)),
        ("train[:25%]", range(2)),  # 2.5 records, rounded to the even number as Python and TFDS do
        ("train[2:4]", range(2, 4)),
        ("train[75%:]", range(8, 10)),
        ("train[-3:]", range(7, 10)),
        ("train[:-9]", range(1)),
        ("train[8:99]", range(8, 10)),
        ("validation", range(10, 12)),
    ):
        (source,) = open_data(f"{prepared}[{part}]").values()
        assert source.ids == tuple(sorted(NAMES[i] for i in expected))
        assert texts(source) == [pictures()[name][1] for name in source.ids]
        assert source.images.read(0) == pictures()[source.ids[0]][0]


def test_a_part_that_does_not_exist(prepared):
    for part, message in (
        ("trian", "has no split 'trian'\nDid you mean 'train'"),
        ("train[5:5]", "selects none of the 10 images"),
        ("train[a:5]", "neither a number nor a percentage"),
        ("train[5]", r"Write \[train\[100:200\]\]"),
        ("train[:120%]", "more than 100 %"),
        ("tr!", r"is not a part of a split\nWrite \[train\]"),
    ):
        with pytest.raises(UsageError, match=message):
            open_data(f"{prepared}[{part}]")
        with pytest.raises(UsageError, match="no closing one"):
            open_data(f"{prepared}[train")


def test_without_file_names_ids_are_split_and_number_and_a_part_keeps_them(tmp_path):
    spec = write_tfds(tmp_path, pictures(), with_names=False)
    assert open_data(spec)["train"].ids == tuple(f"train/{i:02d}" for i in range(12))
    (part,) = open_data(f"{spec}[train[6:8]]").values()
    assert part.ids == ("train/06", "train/07")
    assert part.images.read(1) == pictures()[NAMES[7]][0]


def test_a_name_is_looked_up_and_the_newest_version_taken(tmp_path, monkeypatch):
    write_tfds(tmp_path, pictures())
    older = tmp_path / "insects" / "0.9.10"
    older.mkdir()
    (older / "dataset_info.json").write_text("{}")
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    for spec in ("tfds:insects", "tfds:insects/1.0.0", "tfds:insects:1.0.0", f"tfds:{tmp_path}/insects"):
        assert len(open_data(spec)["train"]) == 12
    (tmp_path / "insects" / "big" / "1.0.0").mkdir(parents=True)
    (tmp_path / "insects" / "big" / "1.0.0" / "dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match="several data sets or configurations: big, insects"):
        open_data("tfds:insects")
    with pytest.raises(UsageError, match="names no data set"):
        open_data("tfds:")
    with pytest.raises(DataError, match="TFDS has prepared no such data set in ") as caught:
        open_data("tfds:gone")
    fetched = re.search(r"sslbench data download (\S+)\.", str(caught.value))
    assert find_download(fetched[1]).data == "tfds:gone"
    with pytest.raises(DataError, match=r"in gone or .*\nIf it lies elsewhere"):
        open_data("tfds:./gone")


def test_several_labels_and_nested_keys(tmp_path):
    sequence = {"pythonClassName": "x.Sequence", "sequence": {"feature": {"pythonClassName": "x.ClassLabel"}}}
    record = example({"meta/photo": pictures()[NAMES[0]][0], "labels": [0, 2]})
    spec = write_tfds(tmp_path, pictures(), shards=1)
    info_file(spec, "insects-train.tfrecord-00000-of-00001").write_bytes(framed(record))
    edit(info_file(spec), splits=[{"name": "train", "shardLengths": ["1"]}])
    image = {
        "pythonClassName": "x.FeaturesDict",
        "featuresDict": {"features": {"photo": {"pythonClassName": "x.Image"}}},
    }
    edit(info_file(spec, "features.json"), featuresDict={"features": {"meta": image, "labels": sequence}})
    info_file(spec, "labels.labels.txt").write_text("\n".join(CLASSES))
    source = open_data(spec)["train"]
    assert isinstance(source.target, MultiLabel) and texts(source) == ["ant;cat"]


def test_labels_of_minus_one_are_no_labels(tmp_path):
    spec = write_tfds(tmp_path, pictures(), shards=1)
    records = [framed(example({"image": content, "label": [-1]})) for content, _ in pictures().values()]
    info_file(spec, "insects-train.tfrecord-00000-of-00001").write_bytes(b"".join(records))
    assert isinstance(open_data(spec)["train"].target, Unlabelled)


def test_array_records_need_their_package(tmp_path, monkeypatch):
    import sys

    spec = write_tfds(tmp_path, pictures(), form="array_record")
    monkeypatch.setitem(sys.modules, "array_record", None)
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    with pytest.raises(DataError, match=r"needs the package array_record\npip install 'sslbench\[tfds\]'"):
        open_data(spec)


def test_array_records(tmp_path):
    module = pytest.importorskip("array_record.python.array_record_module", reason="array_record is not installed")

    def write(path, records):
        writer = module.ArrayRecordWriter(str(path), "group_size:3")
        for record in records:
            writer.write(record)
        writer.close()

    spec = write_tfds(tmp_path, pictures(), form="array_record", records=write)
    (tmp_path / "same").mkdir()
    same = open_data(write_tfds(tmp_path / "same", pictures()))["train"]
    source = open_data(spec)["train"]
    assert source.fingerprint() == same.fingerprint()
    assert scan(source, np.arange(12), workers=2) == []
    path = info_file(spec, "insects-train.array_record-00000-of-00002")
    whole = path.read_bytes()
    for end in np.linspace(0, len(whole) - 1, 20).astype(int):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match="array_record-00000-of-00002"):
            open_data(spec)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fileFormat": "riegeli"}, "files of the format riegeli"),
        ({"splits": []}, "lists no records"),
        ({"splits": [{"name": "train"}]}, "is not in TFDS's form"),
        ({"splits": [{"name": "train", "shardLengths": ["5", "6"]}]}, "has 6 records, dataset_info.json says 5"),
        ({"splits": [{"name": "train", "shardLengths": ["4"] * 3}]}, "3 files of train missing"),
        ({"name": "../../x"}, "names a file that is not beside it"),
    ],
)
def test_descriptions_that_do_not_fit(tmp_path, changes, message):
    spec = write_tfds(tmp_path, pictures())
    edit(info_file(spec), **changes)
    with pytest.raises(DataError, match=message):
        open_data(spec)


def test_damaged_lengths_and_records_are_named(tmp_path):
    spec = write_tfds(tmp_path, pictures(), shards=1)
    path = info_file(spec, "insects-train.tfrecord-00000-of-00001")
    whole = path.read_bytes()
    path.write_bytes(whole[:1] + b"\xff" + whole[2:])
    with pytest.raises(DataError, match=r"tfrecord-00000-of-00001 is damaged at byte 0"):
        open_data(spec)
    path.write_bytes(whole[:-3])
    with pytest.raises(DataError, match="is truncated in the record at byte"):
        open_data(spec)
    path.write_bytes(framed(b"no example") * 12)
    with pytest.raises(DataError, match=r"record 0 does not match features.json"):
        open_data(spec)
    path.write_bytes(framed(example({"label": [1]})) * 12)
    with pytest.raises(DataError, match="it has 0 values of 'image'"):
        open_data(spec)


def test_the_check_sum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    for data in (b"", b"123456789", bytes(8), b"\xff" * 8):
        crc = crc32c(data)
        assert _masked_crc(data) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


@given(st.dictionaries(st.text(max_size=9), st.binary(max_size=200) | st.lists(st.integers(-(2**63), 2**63 - 1))))
@settings(max_examples=60, deadline=None)
def test_an_example_is_read_as_it_was_written(features):
    record = example(features)
    found = parse(record)
    assert found.keys() == features.keys()
    for key, value in features.items():
        if isinstance(value, bytes):
            ((start, stop),) = found[key].texts
            assert record[start:stop] == value
        else:
            assert list(found[key].numbers) == value


def test_floats_and_numbers_one_by_one():
    unpacked = b"".join(varint(1 << 3) + varint(n) for n in (5, -1))
    floats = field(1, field(1, b"f") + field(2, field(2, field(1, struct.pack("<2f", 1, 2)))))
    numbers = field(1, field(1, b"n") + field(2, field(3, unpacked)))
    found = parse(field(1, floats + numbers))
    assert found["n"].numbers == (5, -1) and found["f"].numbers == ()


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_an_example_or_a_value_error(content):
    found = None
    with contextlib.suppress(ValueError):
        found = parse(content)
    assert found is None or all(isinstance(name, str) for name in found)
