"""Zip archives: class folders inside, and what is refused by name."""

import io
import stat
import tracemalloc
import zipfile

import numpy as np
import pytest
from helpers.containers import pictures, png, write_zip

from sslbench.data.formats import zip as zip_source
from sslbench.data.loading.loader import survey
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.targets.none import Unlabelled


@pytest.fixture
def archive(tmp_path):
    """`archive({"a/1.png": bytes, ...})` writes t.zip; names may be ZipInfo."""

    def write(members, method=zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / "t.zip", "w", method) as file:
            for name, content in members.items():
                file.writestr(name, content)
        return str(tmp_path / "t.zip")

    return write


def test_a_folder_around_the_classes_is_looked_into(archive):
    members = {f"photos/{name}": content for name, (content, _) in pictures().items()}
    members |= {"__MACOSX/photos/._a.png": b"x", "photos/read.me": b"x"}
    source = open_data(archive(members))["all"]
    assert source.target.classes == ("ant", "bee", "cat")
    said = "\n".join(source.notes)
    assert "all images lie in photos/" in said and "__MACOSX" in said and "1 file of other kinds (.me)" in said
    assert source.images.path(0).endswith("t.zip/photos/ant/00.png")


def test_split_folders_become_splits(archive):
    members = {f"{split}/{c}/{i}.png": png(i) for split in ("Train", "val") for c in "ab" for i in range(2)}
    sources = open_data(archive({**members, "loose.png": png(9)}))
    assert tuple(sources) == ("train", "val")
    assert sources["train"].ids == ("a/0.png", "a/1.png", "b/0.png", "b/1.png")
    assert "1 image beside the splits left out: loose.png" in "\n".join(sources["train"].notes)


def test_a_flat_archive_is_unlabelled(archive):
    source = open_data(archive({"photos/b.png": png(1), "photos/a.png": png(2)}))["all"]
    assert source.ids == ("a.png", "b.png") and isinstance(source.target, Unlabelled)


def linked(name):
    info = zipfile.ZipInfo(name)
    info.create_system, info.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return info


def test_what_is_refused_is_named(archive):
    for members, message in (
        ({"a/1.png": b"x", "../b/2.png": b"x"}, r"'\.\./b/2\.png' would lie outside"),
        ({"a/1.png": b"x", "/etc/2.png": b"x"}, r"'/etc/2\.png' would lie outside"),
        ({"a/1.png": b"x", "..\\b\\2.png": b"x"}, "would lie outside"),
        ({linked("a/l.png"): "/etc/passwd"}, r"'a/l\.png' is a link"),
        ({"a/1.pdf": b"x"}, "has no image"),
    ):
        with pytest.raises(DataError, match=message):
            open_data(archive(members))


def test_encrypted_members_are_refused(tmp_path):
    write_zip(tmp_path, pictures())
    content = bytearray((tmp_path / "t.zip").read_bytes())
    content[content.index(b"PK\1\2") + 8] |= 1
    (tmp_path / "t.zip").write_bytes(bytes(content))
    with pytest.raises(DataError, match="is encrypted\nUnpack the archive"):
        open_data(str(tmp_path / "t.zip"))


def test_other_methods_are_refused(archive):
    with pytest.raises(DataError, match="packed by the method bzip2"):
        open_data(archive({"a/1.png": png(1)}, zipfile.ZIP_BZIP2))


def test_a_bomb_is_refused_before_it_is_unpacked(archive, monkeypatch):
    monkeypatch.setattr(zip_source, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match=r"'a/1\.png' unpacks to 100,000 bytes, the limit is 1,000"):
        open_data(archive({"a/1.png": bytes(100_000)}))


def test_a_directory_that_lies_about_the_size_is_found_on_reading(tmp_path, archive):
    spec = archive({"a/1.png": bytes(100_000), "b/2.png": png(2)})
    content = bytearray((tmp_path / "t.zip").read_bytes())
    at = content.index(b"PK\1\2") + 24
    content[at : at + 4] = (500).to_bytes(4, "little")
    (tmp_path / "t.zip").write_bytes(bytes(content))
    source = open_data(spec)["all"]
    with pytest.raises(OSError, match="more than the 500 bytes announced"):
        source.images.read(0)
    assert source.images.read(1) == png(2)


def test_reading_a_bomb_takes_no_more_memory_than_its_directory_announces(tmp_path, archive):
    spec = archive({"a/1.png": bytes(64 << 20)})
    content = bytearray((tmp_path / "t.zip").read_bytes())
    at = content.index(b"PK\1\2") + 24
    content[at : at + 4] = (500).to_bytes(4, "little")
    (tmp_path / "t.zip").write_bytes(bytes(content))
    source = open_data(spec)["all"]
    tracemalloc.start()
    with pytest.raises(OSError, match="more than the 500 bytes announced"):
        source.images.read(0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_damaged_member_is_listed_by_its_name(tmp_path):
    spec = write_zip(tmp_path, pictures())
    content = bytearray((tmp_path / "t.zip").read_bytes())
    content[content.index(b"PNG") + 20] ^= 1  # of the first member, which is stored as it is
    (tmp_path / "t.zip").write_bytes(bytes(content))
    source = open_data(spec)["all"]
    ((_, path, reason),) = survey(source, np.arange(12), workers=0).unreadable
    assert path.endswith("t.zip/ant/00.png") and "check sum" in reason


def test_no_zip_at_all(tmp_path):
    (tmp_path / "t.zip").write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="is not a complete zip file"):
        open_data(str(tmp_path / "t.zip"))
    with pytest.raises(UsageError, match="has no column 'x'"):
        open_data(str(tmp_path / "t.zip"), image_column="x")


def test_arrays_are_images_where_there_are_no_others(tmp_path):
    file = io.BytesIO()
    np.save(file, np.zeros((6, 7, 5), dtype=np.uint8))
    with zipfile.ZipFile(tmp_path / "t.zip", "w") as archive:
        archive.writestr("a/1.npy", file.getvalue())
        archive.writestr("b/2.npy", file.getvalue())
    source = open_data(str(tmp_path / "t.zip"))["all"]
    assert source.ids == ("a/1.npy", "b/2.npy")
    assert source.images.read(1) == file.getvalue()
    with zipfile.ZipFile(tmp_path / "t.zip", "a") as archive:
        archive.writestr("b/3.png", pictures()["ant/00.png"][0])
    source = open_data(str(tmp_path / "t.zip"))["all"]
    assert len(source) == 1
    assert "2 NumPy files (.npy, .npz) beside images left out" in "\n".join(source.notes)
