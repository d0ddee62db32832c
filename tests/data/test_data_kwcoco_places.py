"""kwcoco's sqlite view of a manifest, and addresses in place of file names."""

import json
import sqlite3

import numpy as np
import pytest
from helpers.serving import serving
from PIL import Image

from sslbench.data.open import open_data, open_objects
from sslbench.errors import DataError


@pytest.fixture
def manifest(tmp_path):
    """Write six images and return a function from the beginning of their names to a manifest of them."""
    folder = tmp_path / "served"
    folder.mkdir()
    for i in range(6):
        Image.fromarray(np.full((12, 20, 3), 30 * i, np.uint8)).save(folder / f"{i}.png")

    def write(beginning, place=tmp_path / "lists" / "m.kwcoco.json"):
        images = [
            {"id": i + 1, "file_name": f"{beginning}{i}.png", "width": 20, "height": 12, "split": "train", "site": "a"}
            for i in range(6)
        ]
        boxes = [{"id": i + 1, "image_id": i + 1, "category_id": 1 + i % 2, "bbox": [1, 2, 9, 8]} for i in range(6)]
        categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps({"images": images, "categories": categories, "annotations": boxes}))
        return place

    return folder, write


def same(found, expected):
    assert found.keys() == expected.keys()
    for split, part in found.items():
        assert list(part.ids) == list(expected[split].ids)
        assert part.images.digests().tobytes() == expected[split].images.digests().tobytes()


def test_the_sqlite_view_is_read_as_the_manifest(manifest):
    kwcoco = pytest.importorskip("kwcoco")
    folder, write = manifest
    plain = write("", folder / "m.kwcoco.json")
    view = kwcoco.CocoDataset(str(plain)).view_sql().fpath
    assert str(view).endswith(".sqlite")
    found, expected = (open_data(str(place), attribute_columns=["site"]) for place in (view, plain))
    same(found, expected)
    assert found["train"].target.classes == ("cat", "dog") and set(found["train"].attributes["site"]) == {"a"}
    assert (found["train"].target.values == expected["train"].target.values).all()
    boxes, others = (open_objects(str(place)) for place in (view, plain))
    same(boxes, others)
    assert all((boxes["train"].boxes_of(i) == others["train"].boxes_of(i)).all() for i in range(6))


def test_a_damaged_view_is_named(tmp_path):
    with sqlite3.connect(tmp_path / "other.sqlite") as database:
        database.execute("CREATE TABLE things (id INTEGER)")
    database.close()
    with pytest.raises(DataError, match=r"other.sqlite is not a COCO manifest: it has no list 'images'"):
        open_data(str(tmp_path / "other.sqlite"))
    content = (tmp_path / "other.sqlite").read_bytes()
    (tmp_path / "torn.sqlite").write_bytes(content[:60])
    with pytest.raises(DataError, match=r"torn.sqlite is not a COCO manifest: damaged sqlite view"):
        open_data(str(tmp_path / "torn.sqlite"))


def test_addresses_of_files_here_are_read(manifest):
    folder, write = manifest
    for beginning in (f"file://{folder}/", f"file://localhost{folder}/"):
        source = open_data(str(write(beginning)))["train"]
        assert len(source) == 6
        assert source.images.digests().tobytes() == open_data(str(folder))["all"].images.digests().tobytes()


def test_images_at_addresses_are_copied_into_the_cache(manifest, tmp_path, monkeypatch):
    folder, write = manifest
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    with serving(folder) as served:
        source = open_data(str(write(f"{served.address}/")))["train"]
        assert source.images.digests().tobytes() == open_data(str(folder))["all"].images.digests().tobytes()
        assert list(source.ids) == [f"{i}.png" for i in range(6)]
        assert "are read from the addresses in it" in " ".join(source.notes)
        assert len(served.fetched()) == 6
    with pytest.raises(DataError, match=r"127\.0\.0\.1"):
        open_data(str(write("http://127.0.0.1:9/gone/")))
