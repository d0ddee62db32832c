"""Hugging Face data sets on disk: Parquet, save_to_disk, the hub's cache; never a download that nobody asked for."""

import json
import os
import subprocess

import pytest
from helpers.containers import CLASSES, FEATURES, hf_table, pictures, png, write_parquet, write_saved

from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled

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
