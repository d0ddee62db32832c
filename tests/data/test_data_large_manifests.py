"""Large manifests: read row by row, kept in the cache folder, read again when they change, shared by processes."""

import dataclasses
import json
import multiprocessing
import os
import pickle
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sslbench import paths
from sslbench.data.containers import listed
from sslbench.data.formats.coco import rows as rows_module
from sslbench.data.formats.coco.rows import json_rows
from sslbench.data.objects import view as view_module
from sslbench.data.open import open_data, open_objects
from sslbench.data.splits.objects import split_objects
from sslbench.errors import DataError
from sslbench.targets.objects import ObjectRows
from sslbench.text_rows import PackedTexts, TextRows, write_texts


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(view_module, "LARGE", 0)
    monkeypatch.setattr(view_module, "SETTLED_NS", 0)


def views():
    folder = paths.cache_dir() / "manifests"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def settle(path, seconds=60):
    then = time.time() - seconds
    os.utime(path, (then, then))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


MAPPINGS = st.dictionaries(st.sampled_from(["a", "}, {", "]"]), JSON, max_size=3)


@settings(max_examples=20, deadline=None)
@given(
    st.dictionaries(st.text(), JSON, max_size=5),
    st.lists(JSON, max_size=6) | st.lists(MAPPINGS | st.lists(MAPPINGS), max_size=12),
    st.sampled_from([1, 4, 9, 1 << 20]),
    st.sampled_from([None, 2]),
    st.booleans(),
)
def test_rows_are_those_that_the_whole_decoder_finds_wherever_the_text_is_cut(rest, rows, size, indent, ascii_only):
    import io

    content = {**rest, "images": rows, "after it": rows[::-1]}
    text = json.dumps(content, indent=indent, ensure_ascii=ascii_only)
    before, rows_module._CHUNK = rows_module._CHUNK, size
    try:
        found, listed = {}, []
        for key, value, is_row in json_rows(io.StringIO(text), ("images",)):
            listed.append(value) if is_row else found.__setitem__(key, value)
        for cut in range(len(text)):
            with pytest.raises(ValueError):
                list(json_rows(io.StringIO(text[:cut]), ("images",)))
            if cut > 12:
                break
    finally:
        rows_module._CHUNK = before
    assert found | {"images": listed} == content and list(found)[-1] == "after it"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0")), max_size=20), st.data())
def test_texts_come_back_one_by_one_selected_and_from_another_process(tmp_path_factory, texts, data):
    file = tmp_path_factory.mktemp("texts") / "t"
    write_texts(texts, file)
    chosen = data.draw(st.lists(st.integers(0, len(texts) - 1), max_size=8)) if texts else []
    begin, end = data.draw(st.integers(-3, 22)), data.draw(st.integers(-3, 22))
    in_file, in_memory = TextRows(str(file)), PackedTexts.of(texts)
    assert in_file == in_memory == tuple(texts) and tuple(texts) == in_memory and hash(in_memory) == hash(tuple(texts))
    for rows in (in_file, in_memory):
        assert list(rows) == [rows[i] for i in range(len(texts))] == texts and rows[begin:end] == tuple(
            texts[begin:end]
        )
        assert rows != (*texts, "") and (not texts or rows != (*texts[:-1], texts[-1] + "x"))
        some = pickle.loads(pickle.dumps(rows.select(np.array(chosen, dtype=np.int64))))  # noqa: S301 - our own bytes
        assert some == tuple(texts[i] for i in chosen) and some.select(np.arange(len(chosen))) == some


def test_a_view_gives_what_the_manifest_gives(tmp_path, manifest, monkeypatch):
    spec = str(
        manifest(
            tmp_path / "m.json",
            {"b.png": [1], "ä.png": [1, 2], "a.png": [{"category_id": 2, "iscrowd": 1}]},
            split=["train", "test", "train"],
            site=["n", "s", None],
        )
    )
    plain = open_data(spec, attribute_columns=["site"])
    monkeypatch.setattr(view_module, "LARGE", 0)
    monkeypatch.setattr(view_module, "SETTLED_NS", 0)
    first, later = (open_data(spec, attribute_columns=["site"]) for _ in range(2))
    for other in (first, later):
        assert list(other) == list(plain)
        for split, source in plain.items():
            assert isinstance(other[split].images.paths, TextRows)
            assert other[split].fingerprint() == source.fingerprint()
            assert other[split].name == source.name and other[split].notes == source.notes
            assert dict(other[split].attributes) == dict(source.attributes)
            assert other[split].select([0]).images.read(0) == source.images.read(0)


def test_the_view_is_used_and_renewed_when_the_manifest_changes(tmp_path, manifest, monkeypatch, all_are_large):
    path = manifest(tmp_path / "m.json", {"a.png": [1], "b.png": [2]})
    open_data(str(path))
    (view,) = views()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setattr("sslbench.data.formats.coco.read_columns", lambda *_, **__: pytest.fail("it was read again"))
    assert open_data(str(path))["all"].ids == ("a.png", "b.png")
    monkeypatch.undo()
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(view_module, "LARGE", 0)
    monkeypatch.setattr(view_module, "SETTLED_NS", 0)
    manifest(path, {"a.png": [1], "c.png": [2]})
    assert open_data(str(path))["all"].ids == ("a.png", "c.png")
    assert len(views()) == 1 and views() != [view]


def test_a_manifest_that_was_just_written_is_not_kept_and_small_ones_never_are(tmp_path, manifest, monkeypatch):
    path = manifest(tmp_path / "m.json", {"a.png": [1], "b.png": [2]})
    open_data(str(path))
    assert views() == []
    monkeypatch.setattr(view_module, "LARGE", 0)
    open_data(str(path))
    assert views() == []


def test_a_damaged_view_is_made_again(tmp_path, manifest, all_are_large, caplog):
    path = manifest(tmp_path / "m.json", {"a.png": [1], "b.png": [2]})
    expected = open_data(str(path))["all"].fingerprint()
    for damage in ("ids", "labels.npy", "meta.json"):
        (file,) = (paths.cache_dir() / "manifests").rglob(damage)
        content = bytearray(file.read_bytes())
        content[-3] ^= 1
        file.write_bytes(content)
        assert open_data(str(path))["all"].fingerprint() == expected
        assert "rebuilt" in caplog.text
        caplog.clear()
    assert open_data(str(path))["all"].fingerprint() == expected and not caplog.text


def test_without_a_cache_folder_it_works_and_says_so(tmp_path, manifest, all_are_large, monkeypatch, caplog):
    path = manifest(tmp_path / "m.json", {"a.png": [1], "b.png": [2]})
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "file"))
    assert open_data(str(path))["all"].ids == ("a.png", "b.png")
    assert "cannot be cached" in caplog.text


def test_images_that_went_missing_since_are_reported_and_nothing_is_written_beside_the_manifest(
    tmp_path, manifest, all_are_large
):
    path = manifest(tmp_path / "data" / "m.json", {"a.png": [1], "b.png": [2]})
    before = sorted(p.name for p in path.parent.iterdir())
    open_data(str(path))
    assert sorted(p.name for p in path.parent.iterdir()) == before
    (path.parent / "b.png").unlink()
    with pytest.raises(DataError, match=r"1 of 2 image files missing: b\.png"):
        open_data(str(path))


def _open_and_count(spec, start, results):
    view_module.LARGE = view_module.SETTLED_NS = 0
    start.wait()
    results.put(open_data(spec)["all"].fingerprint())


def test_processes_that_open_it_at_once_agree(tmp_path, manifest):
    path = manifest(tmp_path / "m.json", {f"{i}.png": [i % 3 + 1] for i in range(30)})
    settle(path)
    expected = open_data(str(path))["all"].fingerprint()
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    workers = [context.Process(target=_open_and_count, args=(str(path), start, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
    assert {results.get() for worker in workers if not worker.exitcode} == {expected}
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert len(views()) == 1


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_twenty_thousand_images_are_sent_to_workers_as_a_file_name(tmp_path, picture, monkeypatch, all_are_large, kind):
    n = 20_000
    monkeypatch.setattr(listed, "MOST_CHECKED", 3)
    for i in (0, (n - 1) // 2, n // 2, n - 1):
        picture(tmp_path / f"images/{i:05d}.png")
    names = [f"images/{i:05d}.png" for i in reversed(range(n))]
    if kind == "csv":
        path = tmp_path / "m.csv"
        path.write_text("path,label\n" + "".join(f"{name},{i % 7}\n" for i, name in enumerate(names)))
    else:
        path = tmp_path / "m.json"
        content = {
            "annotations": [{"id": i, "image_id": i, "category_id": i % 7} for i in range(n)],
            "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
            "categories": [{"id": i, "name": str(i)} for i in range(7)],
        }
        path.write_text(json.dumps(content))
    source = open_data(str(path))["all"]
    assert source.ids == tuple(sorted(names))
    assert [source.target.text(i) for i in (0, 1, n - 1)] == [str((n - 1) % 7), str((n - 2) % 7), "0"]
    assert len(pickle.dumps(source.images)) < 2000
    part = source.select(range(0, n, 2))
    assert part.images.path(1) == str(tmp_path / "images/00002.png")


def test_a_view_of_objects_gives_what_the_manifest_gives(tmp_path, manifest, monkeypatch):
    square, rle = [[0, 0, 3, 0, 3, 3]], {"size": [5, 6], "counts": "0"}
    rows = {
        "b.png": [1, {"category_id": 2, "segmentation": square}],
        "c.png": [],
        "a.png": [{"category_id": 2, "iscrowd": 1, "segmentation": rle}, {"category_id": 3, "ignore": 1}],
        "d.png": [{"category_id": 1, "bbox": [0, 0, 0, 2]}, {"category_id": 1, "bbox": [-9, 0, 12, 2], "area": 5.5}],
    }
    sizes = {"width": [6] * 4, "height": [5] * 4}
    spec = str(manifest(tmp_path / "m.json", rows, split=["train", "train", "train", "test"], **sizes))
    plain = open_objects(spec)
    monkeypatch.setattr(view_module, "LARGE", 0)
    monkeypatch.setattr(view_module, "SETTLED_NS", 0)
    first = open_objects(spec)
    monkeypatch.setattr("sslbench.data.formats.coco.read_columns", lambda *_, **__: pytest.fail("it was read again"))
    for other in (first, open_objects(spec), pickle.loads(pickle.dumps(first))):  # noqa: S301 - our own bytes
        assert list(other) == list(plain)
        for split, source in plain.items():
            viewed = other[split]
            assert isinstance(viewed.target.objects, ObjectRows) and isinstance(viewed.images.paths, TextRows)
            assert_same_objects(viewed, source)
            assert_same_objects(viewed.select([0]), source.select([0]))
            order = tuple(reversed(source.target.classes))
            numbers = tuple(reversed(source.target.class_numbers))
            assert_same_objects(viewed.with_classes(order, numbers), source.with_classes(order, numbers))
    train = other["train"]
    assert_same_objects(train.select([0, 2]).select([1]), plain["train"].select([2]))
    with pytest.raises(ValueError, match="that is not among"):
        train.with_classes(("cat",), (1,))


def assert_same_objects(a, b):
    assert (a.ids, a.target.classes, a.target.class_numbers, a.target.numbers, a.notes) == (
        b.ids,
        b.target.classes,
        b.target.class_numbers,
        b.target.numbers,
        b.notes,
    )
    assert a.fingerprint() == b.fingerprint() and a.target.has_masks == b.target.has_masks
    assert np.array_equal(a.target.sizes, b.target.sizes)
    for crowds in (False, True):
        assert a.target.counts(crowds=crowds).tolist() == b.target.counts(crowds=crowds).tolist()
    for one, other in zip(a.target.objects, b.target.objects, strict=True):
        assert not len(one) or np.array_equal(one.numbers, other.numbers)
        assert (one.masks is None) == (other.masks is None) and (one.masks is None or one.masks == other.masks)
    truths = [dataclasses.asdict(part.truth()) for part in (a, b)]
    for name in truths[0]:
        assert np.array_equal(truths[0][name], truths[1][name]) and type(truths[0][name]) is type(truths[1][name]), name


def test_a_viewed_manifest_trains_and_splits_like_any_other(tmp_path, manifest, all_are_large, monkeypatch):
    rows = {f"{i}.png": [1 + i % 2, 3, {"category_id": 3, "iscrowd": 1}] for i in range(10)}
    spec = str(manifest(tmp_path / "m.json", rows))
    parts = split_objects(spec, seed=2)
    monkeypatch.setattr(view_module, "LARGE", 1 << 30)
    plain = split_objects(spec, seed=2)
    assert parts.how == plain.how and parts.train.target.classes == plain.train.target.classes
    for a, b in ((parts.train, plain.train), (parts.test, plain.test)):
        assert a.fingerprint() == b.fingerprint()


def test_ids_of_many_samples_lie_in_one_piece_with_the_paths_and_every_key_is_the_same(tmp_path, monkeypatch):
    from sslbench import text_rows
    from sslbench.data import source as sources

    for i in range(12):
        file = tmp_path / "data" / f"c{i % 3}" / (f"{i:02d}.png" if i else "x\udcff.png")  # bytes that are no UTF-8
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes([i]))
    few = open_data(str(tmp_path / "data"))["all"]
    monkeypatch.setattr(text_rows, "PACKED_FROM", 1)
    monkeypatch.setattr(sources, "_IDS", 5)
    many = open_data(str(tmp_path / "data"))["all"]
    assert type(few.ids) is tuple and isinstance(many.ids, PackedTexts) and many.ids == few.ids
    assert many.fingerprint() == few.fingerprint() and many.rank.tolist() == few.rank.tolist()
    chosen = [1, 4, 11]
    assert (
        many.select(chosen).ids == few.select(chosen).ids
        and many.images.select(chosen).paths[2] == few.images.paths[11]
    )
    assert many.images.read(3) == few.images.read(3)
    (tmp_path / "data" / "c0" / "x\udcff.png").unlink()
    same = open_data(str(tmp_path / "data"))["all"]
    assert same.ids is same.images.paths, "one copy, where names are printable"
