"""Images in tar files, packed ones too, and in rows of text."""

import base64
import bz2
import gzip
import io
import json
import lzma
import sys
import tarfile

import numpy as np
import pytest
from helpers.containers import add_to_tar, pictures, png, write_shards, write_tar, write_tsv

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


PACK = {"tar.gz": gzip.compress, "tgz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "remote"


@pytest.mark.parametrize("suffix", [*PACK, "tar"])
def test_a_compressed_archive_is_unpacked_once_into_the_cache(tmp_path, cache, suffix):
    plain = open_data(write_tar(tmp_path, pictures()))["all"]
    (tmp_path / "packed").mkdir()
    packed = tmp_path / "packed" / f"t.{suffix}"  # .tar: told by what is in it
    packed.write_bytes(PACK.get(suffix, gzip.compress)((tmp_path / "t.tar").read_bytes()))
    source = open_data(str(packed))["all"]
    assert source.ids == plain.ids and source.fingerprint() == plain.fingerprint()
    assert source.images.path(0) == f"{packed}/{plain.ids[0]}"
    assert list(packed.parent.iterdir()) == [packed]
    (copy,) = cache.glob(f"*/t.{suffix}")
    assert copy.read_bytes() == (tmp_path / "t.tar").read_bytes()
    before = copy.stat().st_ino
    assert open_data(str(packed))["all"].images.read(3) == plain.images.read(3)
    assert copy.stat().st_ino == before
    copy.unlink()
    assert source.images.read(3) == plain.images.read(3)


def test_compressed_shards_with_the_same_names_inside_have_the_ids_of_plain_ones(tmp_path, cache):
    for k in range(2):
        with tarfile.open(tmp_path / f"s{k}.tar", "w") as archive:
            add_to_tar(archive, "1.png", png(k))
            add_to_tar(archive, "1.cls", b"ab"[k : k + 1])
        (tmp_path / f"s{k}.tar.gz").write_bytes(gzip.compress((tmp_path / f"s{k}.tar").read_bytes()))
    source = open_data(f"{tmp_path}/s{{0..1}}.tar.gz")["all"]
    assert source.ids == open_data(f"{tmp_path}/s{{0..1}}.tar")["all"].ids == ("s0/1.png", "s1/1.png")


def test_an_archive_that_unpacks_to_more_than_the_cache_holds_stops_there(tmp_path, cache, monkeypatch):
    (tmp_path / "t.tar.gz").write_bytes(gzip.compress(bytes(50_000_000)))
    monkeypatch.setenv("SSLBENCH_REMOTE_CACHE", "3MB")
    with pytest.raises(DataError, match=r"t.tar.gz has more than [\d,]+ bytes, and the cache may hold 3,000,000"):
        open_data(str(tmp_path / "t.tar.gz"))
    assert sum(p.stat().st_size for p in cache.rglob("*") if p.is_file()) == 0


@pytest.mark.parametrize("damage", [lambda c: c[: len(c) // 2], lambda c: c[:300] + bytes(50) + c[350:]])
@pytest.mark.parametrize("suffix", ["tar.gz", "tar.bz2", "tar.xz"])
def test_a_damaged_compressed_archive_is_named(tmp_path, cache, suffix, damage):
    write_tar(tmp_path, pictures())
    packed = tmp_path / f"t.{suffix}"
    packed.write_bytes(damage(PACK[suffix]((tmp_path / "t.tar").read_bytes())))
    with pytest.raises(DataError, match=rf"{packed} is damaged or truncated"):
        open_data(str(packed))
    assert list(cache.glob("*/t.*")) == []


def test_zstandard_is_named_where_it_is_missing(tmp_path, cache, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    (tmp_path / "t.tar.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(DataError, match=r"needs the package zstandard\npip install zstandard"):
        open_data(str(tmp_path / "t.tar.zst"))


def test_zstandard_unpacks(tmp_path, cache):
    zstandard = pytest.importorskip("zstandard")
    plain = open_data(write_tar(tmp_path, pictures()))["all"]
    content = zstandard.ZstdCompressor().compress((tmp_path / "t.tar").read_bytes())
    (tmp_path / "t.tar.zst").write_bytes(content)
    assert open_data(str(tmp_path / "t.tar.zst"))["all"].fingerprint() == plain.fingerprint()
    (tmp_path / "half.tar.zst").write_bytes(content[: len(content) // 2])
    with pytest.raises(DataError, match="damaged or truncated"):
        open_data(str(tmp_path / "half.tar.zst"))


@pytest.fixture
def rows(tmp_path):
    """`rows([["key", bytes, "label"], ...])` writes r.tsv; bytes are written as base64."""

    def write(lines, encode=base64.b64encode, end="\n"):
        text = "\n".join("\t".join(encode(c).decode() if isinstance(c, bytes) else c for c in cells) for cells in lines)
        (tmp_path / "r.tsv").write_text(text + end)
        return str(tmp_path / "r.tsv")

    return write


@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
@pytest.mark.parametrize("end", ["", "\n", "\n\n"])
def test_key_image_label(rows, encode, end):
    source = open_data(rows([["b", png(1), "cat"], ["a", png(2), "dog"]], encode, end))["all"]
    assert source.ids == ("a", "b") and texts(source) == ["dog", "cat"]
    assert [source.images.read(i) for i in range(2)] == [png(2), png(1)]
    assert source.images.path(0).endswith("r.tsv/a")


def test_the_image_may_be_last_and_the_label_may_be_missing(rows):
    assert texts(open_data(rows([["a", "cat", png(1)], ["b", "dog", png(2)]]))["all"]) == ["cat", "dog"]
    assert isinstance(open_data(rows([["a", png(1)], ["b", png(2)]]))["all"].target, Unlabelled)


def test_several_labels_and_a_header(rows):
    source = open_data(rows([["key", "image", "label"], ["a", png(1), "x;y"], ["b", png(2), "x"]]))["all"]
    assert texts(source) == ["x;y", "x"]
    assert "header" in source.notes[0]


def test_a_table_of_paths_is_still_a_table(tmp_path):
    (tmp_path / "a.png").write_bytes(png(1))
    (tmp_path / "t.tsv").write_text("path\tlabel\na.png\tcat\n")
    assert open_data(str(tmp_path / "t.tsv"))["all"].images.read(0) == png(1)


def test_rows_that_cannot_be_used_are_named(rows):
    for lines, message in (
        ([["a", png(1), "x"], ["b", png(2)]], "line 2: 2 cells, should be 3 as before"),
        ([["a", png(1), "x"], ["b", png(2), ""]], "line 2: the label is empty"),
        ([["a", png(1), "x"], ["", png(2), "x"]], "line 2: the key is empty"),
        ([["a", png(1), "x", "y"]], "4 cells, should be 2 or 3"),
        ([["a", png(1), "x"], ["a", png(2), "x"]], "1 image more than once: a"),
    ):
        with pytest.raises(DataError, match=message):
            open_data(rows(lines))


def test_a_cell_that_is_no_base64_is_an_unreadable_image(tmp_path):
    spec = write_tsv(tmp_path, pictures())
    lines = (tmp_path / "rows.tsv").read_text().splitlines()
    key, image, label = lines[3].split("\t")
    lines[3] = f"{key}\t{image[:50]}!{image[51:]}\t{label}"
    (tmp_path / "rows.tsv").write_text("\n".join(lines) + "\n")
    source = open_data(spec)["all"]
    with pytest.raises(OSError, match="damaged in"):
        source.images.read(source.ids.index(key))
    assert not source.images.digests()[source.ids.index(key)].any()
