"""Regions with texts: every layout gives the boxes and texts that were written, as objects, crops and batches."""

import json
import pickle

import numpy as np
import pytest
from helpers.annotated import (
    phrase,
    pictures,
    references,
    save,
    write_coco,
    write_genome,
    write_masks,
    write_references,
)
from helpers.serving import serving

from sslbench.cli.main import main
from sslbench.data import remote
from sslbench.data.decode.handlers import picture_decoder, picture_of
from sslbench.data.formats.coco.rows import json_list
from sslbench.data.objects import view
from sslbench.data.objects.regions import collate
from sslbench.data.open import open_as, open_data, open_objects
from sslbench.errors import DataError, UnreachableError, UsageError
from sslbench.metrics.detection import masks
from sslbench.targets.texts import Texts

SAMPLES = pictures()
CORNERS = [[box[1:] for box in boxes] for _, boxes in SAMPLES.values()]
PHRASES = [[phrase(stem, k) for k in range(len(boxes))] for stem, (_, boxes) in SAMPLES.items()]


def regions_of(sources):
    """Boxes and texts of every image of all parts, in the order of the images' numbers."""
    rows = {}
    for source in sources.values():
        for sample, objects in zip(source.ids, source.target.objects, strict=True):
            number = int("".join(c for c in sample.rpartition("/")[2] if c.isdigit()))
            rows[number] = (objects.boxes.tolist(), [list(own) for own in objects.texts or ()])
    return [rows[number] for number in sorted(rows)]


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0


def captioned(root):
    """A COCO manifest of the pictures; captions and points are keys of the annotations."""
    save(root, SAMPLES)
    write_coco(root / "m.json", SAMPLES)
    content = json.loads((root / "m.json").read_text())
    texts = [text for own in PHRASES for text in own]
    for i, (row, text) in enumerate(zip(content["annotations"], texts, strict=True)):
        row |= {"caption": text, "point_coords": [[row["bbox"][0] + 0.5, row["bbox"][1] + 1.5]]} if i else {}
        row |= {"captions": [text, " and\nagain "]} if i == 1 else {}
        row.pop("caption" if i == 1 else "", None)
    (root / "m.json").write_text(json.dumps(content))
    return str(root / "m.json")


def make(root, layout):
    if layout == "genome":
        write_genome(root, SAMPLES)
        return str(root)
    if layout == "refcoco":
        save(root / "train2014", SAMPLES)
        write_references(root, SAMPLES, ["train", "val", "testA"])
        return str(root)
    return str(write_masks(root / "sa_000000.tar", SAMPLES))


@pytest.mark.parametrize("layout", ["genome", "refcoco", "masks"])
def test_boxes_and_texts_are_those_that_were_written(tmp_path, layout):
    sources = open_objects(make(tmp_path, layout))
    found = regions_of(sources)
    for own in sources["all"].target.objects if layout == "masks" else ():
        np.testing.assert_array_equal(own.points, own.boxes[:, :2] + [0.5, 1.5])
    assert [[list(map(int, box)) for box in boxes] for boxes, _ in found] == [list(map(list, own)) for own in CORNERS]
    assert [[own[0] for own in texts] for _, texts in found] == PHRASES


@pytest.mark.parametrize("layout", ["genome", "refcoco", "masks"])
def test_crops_have_the_texts_of_their_region_and_are_grouped_by_image(tmp_path, layout):
    spec = make(tmp_path, layout)
    for split, crops in open_as(f"{spec}?min_size=1", Texts).items():
        objects = open_objects(spec)[split]
        assert crops.grouped_by == "image" and len(set(crops.attributes["image"])) == len(objects)
        for i, texts in enumerate(crops.target.texts):
            image, number = crops.ids[i].split("#")
            own = objects.target.objects[objects.ids.index(image)]
            assert texts == own.texts[int(number)]
            x1, y1, x2, y2 = own.boxes[int(number)]
            height, width, _ = crops.images.read(i).shape
            assert width >= x2 - x1 and height >= y2 - y1
    whole = open_as(f"{spec}?unit=image&most=1", Texts)
    assert {s: part.ids for s, part in whole.items()} == {s: part.ids for s, part in open_objects(spec).items()}
    assert all(len(own) == 1 for part in whole.values() for own in part.target.texts)


def test_a_manifest_keeps_captions_and_points_and_its_copy_has_them_too(tmp_path):
    spec = captioned(tmp_path)
    (source,) = open_objects(spec).values()
    first = source.target.objects[0]
    assert first.texts is None and np.isnan(first.points).all()
    assert source.target.objects[1].texts == ((phrase("p1", 0), "and again"), (phrase("p1", 1),))
    boxes = source.target.objects[1]
    np.testing.assert_array_equal(boxes.points, boxes.boxes[:, :2] + [0.5, 1.5])
    copy = tmp_path / "copy.kwcoco.json"
    run("data", "to-kwcoco", spec, str(copy), "--boxes")
    (again,) = open_objects(str(copy)).values()
    for old, new in zip(source.target.objects, again.target.objects, strict=True):
        assert old.texts == new.texts
        np.testing.assert_array_equal(old.boxes, new.boxes)
        np.testing.assert_array_equal(old.points, new.points)
    (crops,) = open_as(f"{copy}?unit=annotation&min_size=1", Texts).values()
    assert len(crops) == 8 and "1 region without a text left out" in crops.notes[-1]


def test_texts_and_points_survive_the_cache_of_large_manifests_and_other_processes(tmp_path, monkeypatch):
    spec = captioned(tmp_path)
    (plain,) = open_objects(spec).values()
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(view, "LARGE", 0)
    monkeypatch.setattr(view, "SETTLED_NS", 0)
    (kept,) = open_objects(spec).values()
    (kept,) = pickle.loads(pickle.dumps([kept]))  # noqa: S301 - our own bytes
    assert kept.fingerprint() == plain.fingerprint()
    for old, new in zip(plain.target.objects, kept.target.objects, strict=True):
        assert old.texts == new.texts and old.select([]).texts == (() if old.texts is not None else None)
        np.testing.assert_array_equal(old.points, new.points)


@pytest.mark.parametrize("length", ["smallest", "largest"])
def test_a_batch_is_what_a_loop_over_the_regions_gives(tmp_path, length):
    (source,) = open_objects(str(write_masks(tmp_path / "sa_000000.tar", SAMPLES))).values()
    images, sizes = source.target.objects[:3], [tuple(map(int, size)) for size in source.target.sizes[:3]]
    sizes[1] = (sizes[1][0] + 3, sizes[1][1] + 2)
    images = [images[0], images[1].select([0, 1]), images[2]]
    images[1] = type(images[1])(**vars(images[1]) | {"masks": tuple(grown(m, 3, 2) for m in images[1].masks)})
    batch = collate(images, length, sizes)
    number = {"smallest": 1, "largest": 2}[length]
    assert batch.boxes.shape == (3, number, 4) and batch.masks.shape == (3, number, 33, 42)
    for i, one in enumerate(images):
        for k in range(number):
            there = k < len(one)
            assert batch.valid[i, k] == there
            assert batch.texts[i][k] == (one.texts[k] if there else ())
            assert batch.boxes[i, k].tolist() == (one.boxes[k].tolist() if there else [0, 0, 0, 0])
            assert batch.masks[i, k].sum() == (one.areas[k] if there else 0)
            assert np.isnan(batch.points[i, k]).any() != there
    with pytest.raises(ValueError, match="smallest or largest"):
        collate(images, "longest")
    with pytest.raises(ValueError, match="region 0 of image 0 has no mask"):
        collate([type(one)(**vars(one) | {"masks": None}) for one in images], sizes=sizes)


def grown(mask, rows, columns):
    return masks.text(masks.encode(np.pad(masks.decode(mask), ((0, rows), (0, columns)))))


def test_references_by_json_and_pickle_are_the_same_and_a_part_is_chosen(tmp_path):
    for name in ("refs(unc).p", "refs(google).json"):
        folder = tmp_path / name
        save(folder / "images", SAMPLES)
        write_references(folder, SAMPLES, ["train", "testA", "testB"], name)
    pickled, written = (open_objects(str(tmp_path / name)) for name in ("refs(unc).p", "refs(google).json"))
    assert list(pickled) == ["train", "testA", "testB"]
    assert regions_of(pickled) == regions_of(written)
    chosen = open_as(f"{tmp_path / 'refs(unc).p'}?part=testB&min_size=1", Texts)
    assert list(chosen) == ["train", "test"]
    assert chosen["test"].ids == open_as(f"{tmp_path / 'refs(unc).p'}?min_size=1", Texts)["testB"].ids
    with pytest.raises(UsageError, match="the part that is tested would be train, too"):
        open_as(f"{tmp_path / 'refs(unc).p'}?part=train", Texts)
    with pytest.raises(UsageError, match="has no such part") as told:
        open_as(f"{tmp_path / 'refs(unc).p'}?part=testa", Texts)
    assert "testA" in str(told.value.remedy)
    (tmp_path / "refs(unc).p" / "refs(google).json").write_text(json.dumps(references(SAMPLES, ["train"])))
    with pytest.raises(UsageError, match=r"has references by google, unc") as told:
        open_objects(str(tmp_path / "refs(unc).p"))
    assert "?by=google" in str(told.value.remedy)
    assert list(open_objects(f"{tmp_path / 'refs(unc).p'}?by=google")) == ["train"]


class Hostile:
    def __reduce__(self):
        return print, ("run",)


def test_a_pickle_of_references_runs_nothing(tmp_path, capsys):
    save(tmp_path / "images", SAMPLES)
    write_references(tmp_path, SAMPLES, ["train"])
    (tmp_path / "refs(unc).p").write_bytes(pickle.dumps([Hostile()]))
    with pytest.raises(DataError, match=r"refs\(unc\).p"):
        open_objects(str(tmp_path))
    assert "run" not in capsys.readouterr().out.split()


@pytest.mark.parametrize("where", ["row", "split", "ann_id", "sent"])
def test_lists_that_share_lists_end_in_a_message(tmp_path, where):
    save(tmp_path / "images", SAMPLES)
    write_references(tmp_path, SAMPLES, ["train"])
    value = ["x"]
    for _ in range(60):
        value = [value, value]
    (row, *_) = references(SAMPLES, ["train"])
    if where == "sent":
        row["sentences"] = [{"sent": value}]
    elif where != "row":
        row[where] = value
    (tmp_path / "refs(unc).p").write_bytes(pickle.dumps([value if where == "row" else row]))
    with pytest.raises(DataError, match=r"refs\(unc\).p, reference 0: "):
        open_objects(str(tmp_path))


def test_regions_and_objects_of_visual_genome_are_chosen_by_use(tmp_path):
    write_genome(tmp_path, SAMPLES)
    assert open_data(str(tmp_path))["train"].target.classes == ("cat", "dog")
    assert open_objects(str(tmp_path))["train"].target.classes == ("region",)
    objects = open_objects(f"{tmp_path}?kind=objects")["train"]
    assert objects.target.objects[0].texts == (("dog", "thing"),) * 2  # VG_100K/2.jpg
    assert [len(part) for part in open_data(f"{tmp_path}?unit=annotation&min_size=1").values()] == [4, 5]
    (tmp_path / "objects.json").unlink()
    with pytest.raises(UsageError, match=r"\?kind=objects: there is no file of objects"):
        open_objects(f"{tmp_path}?kind=objects")
    with pytest.raises(UsageError, match="a file of Visual Genome") as told:
        open_objects(str(tmp_path / "region_descriptions.json"))
    assert "folder" in str(told.value.remedy)


def test_captions_of_masks_come_from_tables_or_annotations(tmp_path):
    tar = write_masks(tmp_path / "sa_000000.tar", SAMPLES, captions=False)
    with pytest.raises(DataError, match="no region has a text"):
        open_as(str(tar), Texts)
    rows = [(i, k) for i, own in enumerate(PHRASES, 1) for k in range(len(own))]
    lines = [f'{i}-{k}-{10 * i + k}\t[{{"caption": "a {i} {k}", "conf": 0.5}}]' for i, k in rows]
    (tmp_path / "one.tsv").write_text("\n".join(lines[:4]))
    (tmp_path / "two.tsv").write_text("\n".join(lines[4:]))
    (crops,) = open_as(f"{tar}?captions={{one,two}}.tsv&min_size=1", Texts).values()
    assert [own[0] for own in crops.target.texts] == [f"a {i} {k}" for i, k in rows]
    (tmp_path / "one.tsv").write_text("1-2\t[]")
    with pytest.raises(DataError, match=r"one.tsv, line 1: .* is no caption of a region"):
        open_as(f"{tar}?captions=one.tsv", Texts)
    (tmp_path / "one.tsv").write_text('99-0-990\t[{"caption": "x"}]')
    with pytest.raises(DataError, match="no caption is of a region of these images"):
        open_as(f"{tar}?captions=one.tsv", Texts)


def test_masks_are_streamed_from_an_address(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    with serving(tmp_path / "served") as server:
        local = open_as(str(write_masks(tmp_path / "served" / "sa_000000.tar", SAMPLES)), Texts)["all"]
        far = open_as(f"{server.address}/sa_000000.tar", Texts)["all"]
        assert far.ids == local.ids and far.target.texts == local.target.texts
        assert far.name == f"{server.address}/sa_000000.tar"
        for file in remote.folder().rglob("*.tar"):
            file.unlink()
        shown = [picture_of(each.images, 0, picture_decoder(None, each.images)) for each in (local, far)]
        assert shown[0].image.equal(shown[1].image)
        assert server.fetched()["sa_000000.tar"] == 2
        assert len(open_data(f"{server.address}/sa_000000.tar")["all"]) == len(SAMPLES)  # as any tar file of images
        for file in remote.folder().rglob("*.tar"):
            file.unlink()
    monkeypatch.setattr(remote, "PAUSES_S", ())
    with pytest.raises(UnreachableError, match=r"sa_000000\.tar cannot be read: it cannot be reached"):
        open_as(f"{server.address}/sa_000000.tar", Texts)
    remote._HELD.clear()


def test_damage_is_named_with_its_file(tmp_path):
    write_genome(tmp_path, SAMPLES)
    file = tmp_path / "region_descriptions.json"
    rows = json.loads(file.read_text())
    for broken, message in (
        ({"phrase": 7}, "region_id 10: 7 is missing or of another kind"),
        ({"x": "left"}, "region_id 10"),
        ({"x": float("nan")}, "region 10: its box is .* not four numbers"),
        ({"region_id": "a"}, "region_id is 'a', not a whole number"),
        ({"region_id": 10**30}, "region_id is 10{30}, not a whole number"),
        ({"x": "1", "width": "2"}, "region 10: its box is .* not four numbers"),
    ):
        changed = [rows[0] | {"regions": [rows[0]["regions"][0] | broken]}, *rows[1:]]
        file.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=message):
            open_objects(str(tmp_path))
    file.write_text(json.dumps(rows))
    for parts, message in (
        ({"train": [1, 2], "test": [2]}, "names an image twice"),
        ({"train": [[1]]}, "no whole num"),
    ):
        (tmp_path / "densecap_splits.json").write_text(json.dumps(parts))
        with pytest.raises(DataError, match=f"densecap_splits.json .*{message}|densecap_splits.json: .*{message}"):
            open_objects(str(tmp_path))
    (tmp_path / "densecap_splits.json").unlink()
    file.write_text(json.dumps(rows)[:-40])
    with pytest.raises(DataError, match=r"region_descriptions.json is not a list of mappings"):
        list(json_list(file))
    spec = captioned(tmp_path / "coco")
    text = (tmp_path / "coco" / "m.json").read_text()
    (tmp_path / "coco" / "m.json").write_text(text.replace(f'"{phrase("p2", 0)}"', "3.5"))
    with pytest.raises(DataError, match=r"its caption is 3\.5, not a text"):
        open_objects(spec)


def test_names_of_an_object_are_a_list(tmp_path):
    write_genome(tmp_path, SAMPLES)
    file = tmp_path / "objects.json"
    rows = json.loads(file.read_text())
    rows[0]["objects"][0]["names"] = "cat"
    file.write_text(json.dumps(rows))
    with pytest.raises(DataError, match="object_id 10: 'cat' is missing or of another kind"):
        open_objects(f"{tmp_path}?kind=objects")


def test_sides_that_no_image_has_are_named(tmp_path):
    write_genome(tmp_path / "vg", SAMPLES)
    file = tmp_path / "vg" / "image_data.json"
    rows = json.loads(file.read_text())
    file.write_text(json.dumps([rows[0] | {"height": 10**30}, *rows[1:]]))
    with pytest.raises(DataError, match=r"image_data.json, image 1: height and width are 10{30} and"):
        open_objects(str(tmp_path / "vg"))
    folder = tmp_path / "sa"
    folder.mkdir()
    next(iter(SAMPLES.values()))[0].save(folder / "sa_1.jpg")
    about = {"image_id": 1, "width": 10**30, "height": 4, "file_name": "sa_1.jpg"}
    row = {"id": 1, "bbox": [0, 0, 2, 2], "segmentation": [[0, 0, 2, 0, 2, 2]]}
    (folder / "sa_1.json").write_text(json.dumps({"image": about, "annotations": [row]}))
    with pytest.raises(DataError, match=r"sa_1.json is no annotation of SA-1B: ValueError: height and width"):
        open_objects(str(folder))


def test_regions_and_their_texts_are_ranked_with_the_image_as_the_unit(tmp_path):
    write_genome(tmp_path / "vg", SAMPLES)
    (crops,) = [part for split, part in open_as(f"{tmp_path / 'vg'}?min_size=1", Texts).items() if split == "test"]
    texts = [text for own in crops.target.texts for text in own]
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "words.npz", features=rng.normal(size=(len(texts), 192)), names=np.array(texts))
    words = ("eval", "image-text", "--weights", "pixels:8", "--data", f"{tmp_path / 'vg'}?min_size=1")
    run(*words, f"text_features={tmp_path / 'words.npz'}", "--out", str(tmp_path / "r"))
    (file,) = (tmp_path / "r").rglob("*.json")
    record = json.loads(file.read_text())
    assert record["data"]["test"]["n"] == len(crops) == 5 and record["data"]["test"]["groups"] == 3
    run("show", str(file), "--out", str(tmp_path / "show"))
    assert "first answers" in (tmp_path / "show" / "index.html").read_text()
    assert (tmp_path / "show" / "best-median-and-worst-queries.png").is_file()


def test_texts_of_several_layouts_are_joined(tmp_path):
    parts = {"vg": make(tmp_path / "vg", "genome"), "ref": f"{make(tmp_path / 'ref', 'refcoco')}?part=testA"}
    parts = {name: open_as(f"{place}{'&' if '?' in place else '?'}min_size=4", Texts) for name, place in parts.items()}
    text = f"several:vg={tmp_path / 'vg'}?min_size=4,ref={tmp_path / 'ref'}?part=testA&min_size=4"
    joined = open_as(text, Texts)
    for split, source in joined.items():
        own = {name: sources[split] for name, sources in sorted(parts.items()) if split in sources}
        assert source.ids == tuple(f"{name}/{sample}" for name, each in own.items() for sample in each.ids)
        assert source.target.texts == tuple(text for each in own.values() for text in each.target.texts)
        assert source.grouped_by and len(set(source.attributes[source.grouped_by])) < len(source)
    assert len(joined["test"]) == sum(len(sources["test"]) for sources in parts.values())
    (tmp_path / "two.yaml").write_text("sources:\n  a: {data: vg/, label_column: species}\n")
    with pytest.raises(UsageError, match="a: columns have no effect on data with texts"):
        open_as(str(tmp_path / "two.yaml"), Texts)


def test_check_data_counts_the_texts_of_regions_and_shows_them_with_the_images(tmp_path, capsys):
    write_genome(tmp_path / "vg", SAMPLES)
    file = tmp_path / "vg" / "region_descriptions.json"
    rows = json.loads(file.read_text())
    rows[1]["regions"][1]["phrase"] = rows[1]["regions"][0]["phrase"]
    rows[2]["regions"][0]["phrase"] = " "
    file.write_text(json.dumps(rows))
    run("check-data", str(tmp_path / "vg"), "--boxes", "--html", str(tmp_path / "page.html"))
    said = capsys.readouterr()
    assert "(train): 3 of 4 objects have texts, 3 in all; 1 are equal to another one" in said.out + said.err
    assert f"region: {phrase('p1', 0)} | {phrase('p1', 0)}" in (tmp_path / "page.html").read_text()
