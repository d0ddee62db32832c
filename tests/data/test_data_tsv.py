"""Rows with the images inside, and the .tsv that is a table of paths."""

import base64

import pytest
from helpers.containers import pictures, png, write_tsv

from sslbench.data.open import open_data
from sslbench.errors import DataError
from sslbench.targets.none import Unlabelled


@pytest.fixture
def rows(tmp_path):
    """`rows([["key", bytes, "label"], ...])` writes r.tsv; bytes are written as base64."""

    def write(lines, encode=base64.b64encode, end="\n"):
        text = "\n".join("\t".join(encode(c).decode() if isinstance(c, bytes) else c for c in cells) for cells in lines)
        (tmp_path / "r.tsv").write_text(text + end)
        return str(tmp_path / "r.tsv")

    return write


def texts(source):
    return [source.target.text(i) for i in range(len(source))]


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
