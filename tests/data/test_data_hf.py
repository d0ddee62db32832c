"""Data sets of Hugging Face and TensorFlow Datasets."""

import contextlib
import importlib.util
import json
import os
import re
import struct
import subprocess
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import numpy as np
import pytest
from helpers.containers import (
    CLASSES,
    FEATURES,
    crc32c,
    example,
    field,
    framed,
    hf_table,
    pictures,
    png,
    varint,
    write_parquet,
    write_saved,
    write_tfds,
)
from helpers.serving import serving
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench.data import remote
from sslbench.data.formats.hf import files as hub_files
from sslbench.data.formats.tfds.tfrecord import _masked_crc, parse
from sslbench.data.loading.loader import survey
from sslbench.data.open import open_data
from sslbench.data.prepare.download import find_download
from sslbench.data.remote import urls
from sslbench.data.sharded import shards_of
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.text import without_secrets

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def texts(source):
    return [source.target.text(i) for i in range(len(source))]


@pytest.fixture
def table(tmp_path):
    """`table({"image": [...], "label": [...]}, features)` writes one Parquet file; gives its string."""

    def write(columns, features=None, name="t.parquet"):
        content = pa.table(columns)
        if features is not None:
            declared = {"huggingface": json.dumps({"info": {"features": features}})}
            content = content.replace_schema_metadata(declared)
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(content, tmp_path / name)
        return f"hf:{tmp_path / name}"

    return write


def test_class_names_and_splits_of_parquet_files(tmp_path):
    spec = write_parquet(tmp_path, pictures())
    pq.write_table(hf_table(dict(list(pictures().items())[:3])), tmp_path / "data" / "test-00000-of-00001.parquet")
    sources = open_data(spec)
    assert sorted(sources) == ["test", "train"]
    assert sources["train"].target.classes == CLASSES
    assert sources["train"].images.path(0).endswith(".parquet[0]")


class TestStreaming:
    """Parquet files of the hub, here of a server in this process: fetched one by one when they are read."""

    SPEC = "hf:me/insects?streaming=1"

    @pytest.fixture
    def hub(self, tmp_path, monkeypatch):
        import huggingface_hub

        monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(remote, "PAUSES_S", (0.01,))
        write_parquet(tmp_path / "served", pictures())
        names = ["README.md", *(f"data/train-{k:05d}-of-00002.parquet" for k in (1, 0))]

        class Hub:
            def dataset_info(self, name, revision):
                assert (name, revision) == ("me/insects", None)
                return SimpleNamespace(sha="0a1b", siblings=[SimpleNamespace(rfilename=each) for each in names])

        with serving(tmp_path / "served") as served:
            monkeypatch.setattr(huggingface_hub, "HfApi", Hub)
            monkeypatch.setattr(hub_files, "_address", lambda name, commit, file: f"{served.address}/{file}")
            served.names = names
            yield served
        remote._HELD.clear()

    def test_it_is_the_data_set_on_the_disk_and_each_file_is_fetched_once(self, hub, tmp_path):
        local = open_data(f"hf:{tmp_path / 'served'}")["train"]
        streamed = open_data(self.SPEC)["train"]
        assert streamed.fingerprint() == local.fingerprint() and streamed.ids == local.ids
        assert texts(streamed) == texts(local) and survey(streamed, np.arange(12), 0).unreadable == ()
        assert streamed.images.path(0) == f"{hub.address}/data/train-00000-of-00002.parquet[0]"
        assert hub.fetched() == {f"data/train-{k:05d}-of-00002.parquet": 1 for k in range(2)}
        # The index is kept, so nothing is fetched to open it again.
        again = open_data(self.SPEC)["train"]
        assert again.images.digests().tolist() == local.images.digests().tolist()
        assert set(hub.fetched().values()) == {1}

    def test_the_files_may_be_larger_than_the_cache(self, hub, tmp_path, monkeypatch):
        sizes = [file.stat().st_size for file in (tmp_path / "served" / "data").iterdir()]
        monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", str(max(sizes) + 900))
        streamed = open_data(self.SPEC)["train"]
        local = open_data(f"hf:{tmp_path / 'served'}")["train"]
        assert [streamed.images.read(i) for i in (0, 11, 1)] == [local.images.read(i) for i in (0, 11, 1)]
        assert len(list((tmp_path / "cache" / "remote").rglob("*.parquet"))) == 1
        assert sorted(shards_of(streamed.images)) == [0] * 6 + [1] * 6

    def test_what_is_not_streamed_is_refused(self, hub, tmp_path):
        for spec, words in (
            (f"hf:{tmp_path / 'served'}?streaming=1", "is for data sets of the hub"),
            ("hf:me/insects?streaming=1&download=1", "exclude each other"),
            ("hf:me/insects?streaming=2", "streaming"),
        ):
            with pytest.raises(UsageError, match=words):
                open_data(spec)
        hub.names[:] = ["data/train.arrow"]
        with pytest.raises(DataError, match=r"hf:me/insects@refs/convert/parquet\?streaming=1"):
            open_data(self.SPEC)
        assert hub.fetched() == {}

    def test_without_a_network_it_is_a_message(self, monkeypatch):
        import huggingface_hub

        def cut_off(*_, **__):
            raise OSError("[Errno -2] Name or service not known")

        monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", cut_off)
        with pytest.raises(DataError, match=r"cannot be streamed from the hub: .*not known\nWithout a network"):
            open_data(self.SPEC)

    def test_the_address_is_one_of_fsspec(self):
        address = hub_files._address("me/insects", "0a1b", PurePosixPath("data/train.parquet"))
        system, path = urls.file_system(address)
        assert type(system).__name__ == "HfFileSystem" and path == "datasets/me/insects@0a1b/data/train.parquet"
        assert without_secrets(address) == address


def test_without_paths_ids_are_split_and_number(tmp_path):
    source = open_data(write_parquet(tmp_path, pictures(), with_names=False))["train"]
    assert source.ids == tuple(f"train/{i:02d}" for i in range(12))


def test_a_dict_of_splits_as_save_to_disk_writes_it(tmp_path):
    for split in ("train", "validation"):
        write_saved(tmp_path / split, pictures())
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "validation"]}))
    assert tuple(open_data(str(tmp_path))) == ("train", "val")
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["../x"]}))
    with pytest.raises(DataError, match="no name of a file in it"):
        open_data(str(tmp_path))


def test_an_image_may_be_a_file_and_a_column_may_be_bytes(tmp_path, table):
    (tmp_path / "a.png").write_bytes(png(1))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": None, "path": "a.png"}, {"bytes": png(2), "path": "b.png"}, {"bytes": None, "path": "gone.png"}]
    source = open_data(table({"image": pa.array(rows, kind), "label": ["x", "y", "x"]}))["all"]
    assert [source.images.read(i) for i in range(2)] == [png(1), png(2)]
    with pytest.raises(OSError, match="gone"):
        source.images.read(2)
    assert texts(source) == ["x", "y", "x"]
    source = open_data(table({"jpg": [png(1), png(2)], "target": [3, 12]}))["all"]
    assert source.images.read(1) == png(2) and texts(source) == ["3", "12"]


def test_several_labels_and_their_names(table):
    features = {"image": {"_type": "Image"}, "tags": {"feature": FEATURES["label"], "_type": "List"}}
    source = open_data(table({"image": [png(1), png(2)], "tags": [[0, 2], []]}, features))["all"]
    assert isinstance(source.target, MultiLabel) and texts(source) == ["ant;cat", ""]


def test_columns_can_be_named(table):
    columns = {"front": [png(1), png(2)], "back": [png(3), png(4)], "kind": ["u", "v"]}
    with pytest.raises(UsageError, match=r"several columns with images: front, back\nName one with --image-col"):
        open_data(table(columns))
    source = open_data(table(columns), image_column="back", label_column="kind")["all"]
    assert source.images.read(0) == png(3) and texts(source) == ["u", "v"]
    with pytest.raises(UsageError, match="has no column 'bak'\nDid you mean 'back'"):
        open_data(table(columns), image_column="bak")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a"], "label": [1]}, "no column holds images, there are: text, label"),
        ({"image": [b"x", b"y"], "label": [1, None]}, "a label .column 'label'. is None"),
        ({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}, "has no rows"),
    ],
)
def test_tables_that_cannot_be_used(table, columns, message):
    with pytest.raises(DataError, match=message):
        open_data(table(columns))


def test_a_class_number_without_a_name_is_refused(table):
    with pytest.raises(DataError, match="'label' has the value 3, but there are 3 classes"):
        open_data(table({"image": [b"x"], "label": [3]}, FEATURES))
    source = open_data(table({"image": [b"x"], "label": [-1]}, FEATURES))["all"]
    assert isinstance(source.target, Unlabelled) and "all empty or -1" in source.notes[-1]


def test_configurations_are_not_mixed(tmp_path, table):
    for name in ("small/train-00000-of-00001.parquet", "large/train-00000-of-00001.parquet"):
        table({"image": [png(1)], "label": [1]}, name=name)
    with pytest.raises(DataError, match=r"several configurations: large, small\nName one: .*large"):
        open_data(f"hf:{tmp_path}")
    assert tuple(open_data(f"hf:{tmp_path}/small")) == ("train",)


def test_names_are_looked_for_in_the_cache_and_fetched_only_on_request(tmp_path, monkeypatch):
    import huggingface_hub

    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    write_parquet(snapshot, pictures())
    asked = []

    def download(name, **options):
        asked.append((name, options["revision"], options["local_files_only"]))
        if options["local_files_only"] and name != "me/insects":
            raise huggingface_hub.errors.LocalEntryNotFoundError("not cached")
        return str(snapshot)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert len(open_data("hf:me/insects")["train"]) == 12
    assert len(open_data("hf:me/insects/data@v2")["train"]) == 12
    with pytest.raises(DataError, match=r"To download it: hf:me/other\?download=1"):
        open_data("hf:me/other")
    assert len(open_data("hf:me/other?download=1")["train"]) == 12
    last = [("me/other", None, True), ("me/other", None, False)]
    assert asked == [("me/insects", None, True), ("me/insects", "v2", True), *last]
    for spec in ("hf:me/other?download=yes", "hf:me/other?download=2", "hf:me/other?downlod=1"):
        with pytest.raises(UsageError, match="options of hf:me/other"):
            open_data(spec)
    for spec in ("hf:insects", "hf:"):
        with pytest.raises(UsageError, match="neither a path nor the name"):
            open_data(spec)


def test_a_missing_package_is_said(tmp_path, monkeypatch):
    import sys

    spec = write_parquet(tmp_path, pictures())
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"needs pyarrow\npip install 'sslbench\[parquet\]'"):
        open_data(spec)


def test_a_folder_without_data_files(tmp_path):
    with pytest.raises(DataError, match=r"has no .parquet or .arrow file"):
        open_data(f"hf:{tmp_path}")
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    with pytest.raises(DataError, match=r"are missing: gone.arrow"):
        open_data(f"hf:{tmp_path}")


def test_deep_folders_and_links_to_a_folder_around_them_are_walked_once(tmp_path):
    spec = write_parquet(tmp_path / "set", pictures())
    (tmp_path / "set" / "again").symlink_to(tmp_path / "set", target_is_directory=True)
    deep = str(tmp_path / "set")
    for _ in range(1100):  # more than Python lets functions call each other
        deep += "/d"
        os.mkdir(deep)  # noqa: PTH102 - a Path of so many parts is slow
    try:
        assert len(open_data(spec)["train"]) == 12
    finally:
        subprocess.run(["rm", "-rf", str(tmp_path / "set" / "d")], check=True)  # shutil cannot


NAMES = list(pictures())


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
    if importlib.util.find_spec("tensorflow_datasets") is None:
        assert "pip install 'sslbench[tfds]', then" in str(caught.value)
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
    assert survey(source, np.arange(12), workers=2).unreadable == ()
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
