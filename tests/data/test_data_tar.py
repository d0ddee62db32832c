"""Tar shards: webdataset's keys and labels, ranges of shards, and what is refused."""

import io
import json
import tarfile

import numpy as np
import pytest
from helpers.containers import add_to_tar, pictures, png, write_shards, write_tar

from sslbench.data.decode.handlers import make_decoder
from sslbench.data.decode.picture import Wanted
from sslbench.data.loading.loader import read
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled


def texts(source):
    return [source.target.text(i) for i in range(len(source))]


@pytest.fixture
def tar(tmp_path):
    """`tar({"a.png": bytes, ...})` writes t.tar; a tuple is content and fields of the member."""

    def write(members, name="t.tar"):
        with tarfile.open(tmp_path / name, "w") as archive:
            for member, value in members.items():
                content, fields = value if isinstance(value, tuple) else (value, {})
                add_to_tar(archive, member, content, **fields)
        return str(tmp_path / name)

    return write


def test_the_label_is_in_a_member_of_the_same_key(tmp_path):
    for part, text in (
        ("cls", str),
        ("txt", str),
        ("json", lambda label: json.dumps({"width": 3, "label": label})),
        ("cls", lambda label: json.dumps([label])),
    ):
        samples = {name.replace("/", "_"): sample for name, sample in pictures().items()}
        source = open_data(write_shards(tmp_path, samples, part=part, text=text))["all"]
        assert source.ids == tuple(sorted(samples))
        assert texts(source) == [samples[name][1] for name in source.ids]
        assert source.images.path(0).endswith(f".tar/{source.ids[0]}")


def test_cls_comes_before_json_and_txt(tar):
    members = {"1.png": png(1), "1.txt": b"a", "1.json": b'{"label": "b"}', "1.cls": b"c"}
    assert texts(open_data(tar(members))["all"]) == ["c"]


def test_class_numbers_are_named_by_a_list_beside_the_shards(tmp_path, tar):
    spec = tar({"1.png": png(1), "1.cls": b"1", "2.png": png(2), "2.cls": b"0"})
    (tmp_path / "classnames.txt").write_text("ant\nbee\n")
    assert texts(open_data(spec)["all"]) == ["bee", "ant"]
    (tmp_path / "classnames.txt").write_text("ant\n")
    with pytest.raises(DataError, match="names 1 classes, but there is a class number 1"):
        open_data(spec)


def test_several_labels_in_one_member(tar):
    source = open_data(tar({"1.png": png(1), "1.cls": b'["a", "b"]', "2.png": png(2), "2.cls": b"[]"}))["all"]
    assert isinstance(source.target, MultiLabel)
    assert texts(source) == ["a;b", ""]


def test_captions_are_no_classes(tar):
    members = {}
    for i in range(4):
        members |= {f"x/{i}.png": png(i), f"x/{i}.txt": f"a photo of number {i} in the garden".encode()}
    source = open_data(tar(members))["all"]
    assert isinstance(source.target, Unlabelled)
    assert "look like captions" in "\n".join(source.notes)


def test_a_mask_beside_the_image_is_left_out(tar):
    source = open_data(tar({"1.png": png(1), "1.mask.png": png(2), "1.cls": b"a"}))["all"]
    assert source.ids == ("1.png",)
    assert "1.mask.png" in "\n".join(source.notes)
    with pytest.raises(DataError, match=r"several images for one label: 1\.png, 1\.jpg"):
        open_data(tar({"1.png": png(1), "1.jpg": png(2), "1.cls": b"a"}))


def test_without_labels_folders_are_classes_and_splits(tar):
    members = {f"photos/{split}/{c}/v1.{i}.png": png(i) for i in range(3) for c in "ab" for split in ("train", "val")}
    sources = open_data(tar(members))
    assert tuple(sources) == ("train", "val")
    assert sources["val"].ids[:2] == ("a/v1.0.png", "a/v1.1.png")
    assert sources["val"].target.classes == ("a", "b")
    assert "all images lie in photos/" in "\n".join(sources["train"].notes)


def test_shards_with_the_same_names_inside(tmp_path, tar):
    for k in range(2):
        tar({"1.png": png(k), "1.cls": b"ab"[k : k + 1]}, name=f"s{k}.tar")
    for spec in ("s{0..1}.tar", "s{0,1}.tar", "s*.tar"):
        source = open_data(f"{tmp_path}/{spec}")["all"]
        assert source.ids == ("s0/1.png", "s1/1.png")
        assert texts(source) == ["a", "b"]
        assert source.images.read(1) == png(1)


def test_a_range_that_cannot_be_used(tmp_path):
    for spec, error, message in (
        ("s-{0000..0003}.tar", DataError, "1 of 4 shards missing: .*s-0003.tar"),
        ("s-{0003..0000}.tar", UsageError, "is not an ascending range"),
        ("s-{0..}.tar", UsageError, r"Write \{0000..0099\}"),
        ("s-{0..99999}{0..99999}.tar", UsageError, "the limit is 100,000"),
        ("t-*.tar", UsageError, "no file matches"),
        ("s-{0000,0000}.tar", UsageError, "names a shard twice"),
    ):
        write_shards(tmp_path, pictures())
        with pytest.raises(error, match=message):
            open_data(f"{tmp_path}/{spec}")


def test_a_missing_label_is_named(tar):
    with pytest.raises(DataError, match=r"'2\.png' has no label: others have a \.cls"):
        open_data(tar({"1.png": png(1), "1.cls": b"a", "2.png": png(2)}))


def test_links_and_names_that_lead_outside_are_left_out_and_said(tar):
    members = {
        "a/1.png": png(1),
        "b/2.png": png(2),
        "../../etc/a.png": png(3),
        "/abs.png": png(4),
        "a/link.png": (b"", {"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}),
        "a/hard.png": (b"", {"type": tarfile.LNKTYPE, "linkname": "a/1.png"}),
        "a/pipe.png": (b"", {"type": tarfile.FIFOTYPE}),
        "a/.hidden.png": png(5),
    }
    source = open_data(tar(members))["all"]
    assert source.ids == ("a/1.png", "b/2.png")
    said = "\n".join(source.notes)
    for what in (
        "2 members with a name outside the archive",
        "2 members that are links",
        "not regular files",
        ".hidden",
    ):
        assert what in said


def test_long_names_and_names_that_are_no_utf8(tar):
    long, odd = "d" * 120 + "/" + "x" * 150 + ".png", "a/\udcff.png"
    source = open_data(tar({long: png(1), odd: png(2)}))["all"]
    assert source.ids == (r"a/\xff.png", long)
    assert source.images.read(1) == png(1)


def array(seed, channels=5):
    file = io.BytesIO()
    np.save(file, np.random.default_rng(seed).integers(0, 256, (6, 7, channels), dtype=np.uint8))
    return file.getvalue()


def test_arrays_are_images_where_there_are_no_others(tar):
    source = open_data(tar({"1.npy": array(1), "1.cls": b"a", "2.npy": array(2), "2.cls": b"b"}))["all"]
    assert source.ids == ("1.npy", "2.npy") and texts(source) == ["a", "b"]
    pixels = read(source.images, 1, make_decoder((), Wanted(5), source.images)).image
    assert pixels.shape == (5, 6, 7)
    assert np.array_equal(pixels.permute(1, 2, 0).numpy(), np.load(io.BytesIO(array(2))))
    beside = open_data(tar({"1.png": png(1), "1.npy": array(1), "1.cls": b"a"}, name="beside.tar"))["all"]
    assert beside.ids == ("1.png",)
    assert "1 NumPy file (.npy, .npz) beside images left out" in "\n".join(beside.notes)


def test_arrays_beside_images_in_another_shard_are_left_out(tmp_path, tar):
    tar({"a/1.png": png(1)}, name="s0.tar")
    tar({"a/2.npy": array(1)}, name="s1.tar")
    assert open_data(f"{tmp_path}/s{{0..1}}.tar")["all"].ids == ("1.png",)


def test_a_truncated_shard_is_named_with_the_place(tmp_path):
    spec = write_shards(tmp_path, pictures())
    path = tmp_path / "s-0001.tar"
    whole = path.read_bytes()
    member = tarfile.open(path).getmembers()[2]  # noqa: SIM115
    for end in (member.offset, member.offset + 100, member.offset_data + 50, 0):
        path.write_bytes(whole[:end])
        with pytest.raises(DataError, match=r"s-0001.tar is (not a tar file, or is )?damaged or truncated"):
            open_data(spec)
    path.write_bytes(whole + whole)
    with pytest.raises(DataError, match="continues after its end mark"):
        open_data(spec)


def test_a_damaged_header_in_the_middle_does_not_end_the_archive_silently(tmp_path):
    spec = write_tar(tmp_path, pictures())
    content = bytearray((tmp_path / "t.tar").read_bytes())
    content[tarfile.open(spec).getmembers()[5].offset + 3] ^= 1  # noqa: SIM115
    (tmp_path / "t.tar").write_bytes(bytes(content))
    with pytest.raises(DataError, match="damaged or truncated"):
        open_data(spec)


def test_odd_archives(tmp_path, tar):
    with pytest.raises(DataError, match="has no image"):
        open_data(tar({"a.pdf": b"x"}))
    with pytest.raises(DataError, match=r"holds 'a/1\.png' twice"):
        open_data(tar({"a/1.png": png(1), "./a/1.png": png(2)}))
    with pytest.raises(DataError, match=r"t\.tar/1\.json cannot be read as a label"):
        open_data(tar({"1.png": png(1), "1.json": b"{"}))
    with pytest.raises(DataError, match=r"the label is \{'b': 1\}"):
        open_data(tar({"1.png": png(1), "1.json": b'{"label": {"b": 1}}'}))
    with pytest.raises(UsageError, match="has no column 'x'"):
        open_data(tar({"1.png": png(1)}), label_column="x")
    (tmp_path / "text.tar").write_text("no archive at all" * 100)
    with pytest.raises(DataError, match="not a tar file"):
        open_data(str(tmp_path / "text.tar"))


def test_a_tar_of_another_tool_is_read(tmp_path):
    """The formats that tarfile itself can write: old, GNU and POSIX."""
    for i, form in enumerate((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w", format=form) as archive:
            for name in ("a/1.png", "b/ü.png"):
                add_to_tar(archive, name, png(i), mtime=1.5 if form == tarfile.PAX_FORMAT else 1)
        (tmp_path / "t.tar").write_bytes(file.getvalue())
        assert open_data(str(tmp_path / "t.tar"))["all"].ids == ("a/1.png", "b/ü.png")


def test_texts_without_an_image_of_their_key_are_no_labels(tar):
    members = {"cat/1.png": png(1), "dog/2.png": png(2), "labels.txt": b"cat dog", "cat/notes.json": b"not JSON"}
    source = open_data(tar(members))["all"]
    assert texts(source) == ["cat", "dog"]
    assert "2 files of other kinds (.txt, .json) left out" in "\n".join(source.notes)
