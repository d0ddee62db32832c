"""Exports of annotation tools: named with a way to use them, or read."""

import json
import pickle
import tarfile
import unicodedata
import zipfile

import numpy as np
import pytest
from helpers.containers import add_to_tar, hf_table, pictures, png

from sslbench.data.checks.samples import check
from sslbench.data.containers.exports import _EXPORTS, export_of
from sslbench.data.containers.sniff import read_text
from sslbench.data.labels import multi_labels
from sslbench.data.open import open_as, open_data, open_objects
from sslbench.data.splits import label_problems
from sslbench.errors import DataError, UsageError
from sslbench.targets.classes import Classes
from sslbench.targets.label_maps import LabelMaps

BOX = {"x": 1, "y": 2, "width": 3, "height": 4}
FILES = {
    "CVAT for images": (
        "annotations.xml",
        '<?xml version="1.0"?>\n<annotations>\n  <version>1.1</version>\n  <image id="0" name="p.png">',
    ),
    "CVAT for video": (
        "annotations.xml",
        '<annotations>\n  <version>1.1</version>\n  <track id="0" label="cat" source="manual">',
    ),
    "labelme": ("p.json", {"version": "5.2.1", "flags": {}, "shapes": [{"label": "cat"}], "imagePath": "p.png"}),
    "file of labelme": ("q.json", {"version": "4.0.0", "imageData": "A" * 5000, "shapes": [], "imagePath": "p.png"}),
    "VoTT": (
        "p-export.json",
        {"name": "p", "assets": {"a": {"asset": {"name": "p.png"}, "regions": [{"tags": ["cat"]}]}}},
    ),
    "VIA": ("via.json", {"_via_settings": {}, "_via_img_metadata": {"p.png1": {"filename": "p.png", "regions": []}}}),
    "VGG": ("regions.json", {"p.png99": {"filename": "p.png", "size": 99, "regions": [], "file_attributes": {}}}),
    "VIA (VGG": ("via.csv", "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes\n"),
    "Datumaro": ("default.json", {"info": {}, "categories": {"label": {"labels": [{"name": "cat"}]}}, "items": []}),
    "Label Studio": ("ls.json", [{"id": 1, "annotations": [{"result": [{"value": BOX, "from_name": "label"}]}]}]),
    "Studio in its own": ("min.json", [{"image": "/data/p.png", "label": [{**BOX, "rectanglelabels": ["cat"]}]}]),
    "Labelbox": ("export.ndjson", {"data_row": {"id": "a", "row_data": "https://x/p.png"}, "projects": {}}),
    "an export of Labelbox": ("export.json", [{"DataRow ID": "x", "Labeled Data": "https://x/p.png", "Label": {}}]),
    "Supervisely": ("p.png.json", {"size": {"height": 4, "width": 4}, "objects": [{"classTitle": "cat"}]}),
    "file of Supervisely": (
        "meta.json",
        {"classes": [{"title": "cat", "shape": "rectangle"}], "projectType": "images"},
    ),
    "FiftyOne": ("samples.json", {"samples": [{"filepath": "data/p.png", "tags": []}]}),
    "data set of FiftyOne": ("labels.json", {"classes": ["cat"], "labels": {"p": 0}}),
    "CreateML": ("x.createml.json", [{"image": "p.png", "annotations": [{"label": "cat", "coordinates": BOX}]}]),
    "Darwin": ("p.json", {"version": "2.0", "schema_ref": "https://x", "item": {"slots": []}, "annotations": []}),
    "BDD100K": ("bdd.json", [{"name": "p.png", "labels": [{"category": "car", "box2d": {"x1": 1}}]}]),
    "FiftyOne in its own": ("labels.json", {"classes": None, "labels": {"p": {"label": "cat"}}}),
    "Hasty": ("h.json", {"project_name": "p", "export_format_version": "1.1", "images": [{"image_name": "p.png"}]}),
    "Encord": ("e.json", [{"label_hash": "a", "data_title": "p.png", "data_units": {"a": {"labels": {}}}}]),
    "Prodigy": ("a.jsonl", {"image": "p.png", "_input_hash": 1, "spans": [{"label": "cat"}], "answer": "accept"}),
    "RectLabel": ("p.json", {"filename": "p.png", "objects": [{"label": "cat", "x_y_w_h": [1, 2, 3, 4]}]}),
    "Scale": ("s.json", [{"task_id": "a", "params": {"attachment": "https://x/p.png"}, "response": {}}]),
    "Scale AI": ("n.json", [{"label": "cat", "geometry": {"x": 1}, "reference_id": "p", "annotation_id": "a"}]),
    "SuperAnnotate": ("p.png___objects.json", {"metadata": {"name": "p.png"}, "instances": [{"className": "cat"}]}),
    "Kili": ("k.json", [{"externalId": "p", "labels": [{"jsonResponse": {}}]}]),
    "MegaDetector": ("m.json", {"images": [{"file": "p.png", "detections": []}], "detection_categories": {}}),
    "Roboflow for models of language": ("annotations.jsonl", {"image": "p.png", "prefix": "<OD>", "suffix": "cat"}),
    "CrowdHuman": ("a.odgt", {"ID": "p", "gtboxes": [{"tag": "person", "fbox": [1, 2, 3, 4]}]}),
    "KITTI": ("p.txt", "Car 0.00 0 -1.57 1 2 3 4 2.85 2.63 12.34 0.47 1.49 69.44 -1.56\n"),
    "DOTA": ("p.txt", "imagesource:GoogleEarth\ngsd:0.14\n1 2 3 2 3 4 1 4 plane 0\n"),
    "an annotation of DOTA": ("p.txt", "1.0 2.0 3.0 2.0 3.0 4.0 1.0 4.0 plane 0\n"),
    "MOT": ("gt.txt", "1,1,1,2,3,4,1,1,1\n2,1,1,2,3,4,1,1,1\n"),
    "the MOT challenge": ("seqinfo.ini", "[Sequence]\nname=MOT17-02\n"),
    "WIDER": ("wider_face_train_bbx_gt.txt", "0--Parade/p.jpg\n1\n1 2 3 4 0 0 0 0 0 0 \n"),
    "ICDAR": ("gt_p.txt", "1,2,3,2,3,4,1,4,word\n"),
    "VisDrone": ("p.txt", "1,2,3,4,1,4,0,0\n"),
    "MIT's LabelMe": ("p.xml", "<annotation><filename>p.png</filename><imagesize><nrows>4</nrows></imagesize>"),
    "run lengths": ("train.csv", "ImageId_ClassId,EncodedPixels\np.png_1,1 5\n"),
    "boxes in a cell": ("LOC_train_solution.csv", "ImageId,PredictionString\np,n01 1 2 3 4\n"),
    "VIAME": ("p.csv", "# 1: Detection or Track-id,2: Video or Image Identifier\n"),
    "classes of masks": ("_classes.csv", "Pixel Value, Class\n0, background\n"),
    "RetinaNet": ("_classes.csv", "cat,0\ndog,1\n"),
    "Visual Genome": ("regions.json", [{"regions": [{"region_id": 1, "x": 1, "phrase": "the clock"}], "id": 1}]),
    "GeoJSON": ("p.geojson", {"type": "FeatureCollection", "features": []}),
    "detections": ("dets.json", [{"image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "score": 0.5}]),
}


def write(folder, name, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / name)


@pytest.mark.parametrize("title", FILES)
def test_an_export_is_named_with_a_way_to_use_it(tmp_path, title):
    spec = write(tmp_path / "photos", *FILES[title])
    for opened in (open_data, open_objects, lambda place: open_as(place, LabelMaps)):
        with pytest.raises(UsageError, match=title.replace("(", r"\(")) as error:
            opened(spec)
        assert error.value.remedy
    if title != "VIA (VGG":
        (tmp_path / "photos" / "p.png").write_bytes(png(0))
        with pytest.raises(UsageError, match=title.replace("(", r"\(")):
            open_objects(str(tmp_path / "photos"))
        if title != "detections":
            source = open_data(str(tmp_path))["all"]
            assert any(title in note for note in source.notes) and not source.target.labelled
            assert not any("as --data instead" in note for note in source.notes)
            assert title in label_problems(source, source)[0]


def test_files_of_other_programs_are_named_by_their_suffix(tmp_path):
    for suffix in (
        ".xlsx",
        ".pkl",
        ".tfrecord",
        ".rec",
        ".mdb",
        ".mat",
        ".h5",
        ".pt",
        ".rar",
        ".csv.gz",
        ".mp4",
        ".nii.gz",
    ):
        (tmp_path / f"a{suffix}").write_bytes(b"\0\1\2")
        with pytest.raises(UsageError, match=r"which sslbench does not read\n."):
            open_data(str(tmp_path / f"a{suffix}"))
    (tmp_path / "db").mkdir()
    (tmp_path / "db" / "data.mdb").write_bytes(b"\0")
    with pytest.raises(DataError, match=r"has no image .*data\.mdb is an LMDB database"):
        open_data(str(tmp_path / "db"))


def test_manifests_and_tables_are_no_exports(tmp_path):
    for name, content in (
        ("m.json", {"info": {}, "images": [{"id": 1, "file_name": "p.png", "regions": []}], "annotations": []}),
        ("t.json", [{"image": "p.png", "label": "cat", "score": 0.5}]),
        ("t.csv", "path,label\np.png,cat\n"),
        ("voc.json", {"categories": [{"id": 1, "name": "label"}], "images": [], "annotations": []}),
    ):
        write(tmp_path, name, content)
        assert export_of(tmp_path / name) is None
    assert all(export.remedy and export.title for export in _EXPORTS)


def test_tables_of_other_encodings_and_separators(tmp_path):
    (tmp_path / "a.png").write_bytes(png(0))
    (tmp_path / "b.png").write_bytes(png(1))
    text = "path,label\r\na.png,café\r\nb.png,naïve\r\n"
    for encoding, spelled in (
        *((encoding, text) for encoding in ("utf-8-sig", "utf-16", "utf-32", "latin-1", "cp1252")),
        ("utf-8", text.replace(",", ";")),
        ("utf-8", "sep=;\r\n" + text.replace(",", ";")),
        ("utf-16", text.replace(",", "\t")),
        ("utf-8", text.replace(",", "|")),
    ):
        (tmp_path / "t.csv").write_bytes(spelled.encode(encoding))
        source = open_data(str(tmp_path / "t.csv"))["all"]
        assert source.target.classes == ("café", "naïve") and source.ids == ("a.png", "b.png")
        assert any("not in UTF-8" in note for note in source.notes) == (not encoding.startswith("utf-8"))
    (tmp_path / "classes.txt").write_bytes("café\nthé\n".encode("cp1252"))
    assert read_text(tmp_path / "classes.txt")[0].split() == ["café", "thé"]
    (tmp_path / "t.csv").write_bytes(text.encode("utf-16-le"))
    with pytest.raises(DataError, match="UTF-16 without its mark"):
        open_data(str(tmp_path / "t.csv"))


def test_a_table_of_boxes_in_another_encoding(tmp_path):
    (tmp_path / "a.png").write_bytes(png(0))
    rows = "filename;class;xmin;ymin;xmax;ymax\na.png;café;1;1;3;3\n"
    for encoding in ("utf-8-sig", "utf-16", "latin-1"):
        (tmp_path / "t.csv").write_bytes(rows.encode(encoding))
        assert open_objects(str(tmp_path / "t.csv"))["all"].target.classes == ("café",)


def chexpert(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    cells = ["1.0,-1.0,", "0.0,,1.0", ",1.0,0.0"]
    rows = [f"{tmp_path.name}/{i}.png,Male,6{i},{cell}" for i, cell in enumerate(cells)]
    return write(tmp_path, "train.csv", "\n".join(["Path,Sex,Age,Edema,Effusion,Pneumonia", *rows]))


def test_empty_cells_of_columns_of_classes_are_absent_or_ignored_as_asked(tmp_path):
    spec = chexpert(tmp_path)
    with pytest.raises(DataError, match=r"'Edema' is empty in line 4\n.*\?blank=absent.*\?blank=ignore"):
        open_data(spec)
    absent, ignored = (open_data(f"{spec}?blank={how}")["all"] for how in ("absent", "ignore"))
    assert absent.target.values.tolist() == [[1, -1, 0], [0, 0, 1], [0, 1, 0]]
    assert ignored.target.values.tolist() == [[1, -1, -1], [0, -1, 1], [-1, 1, 0]]
    assert any("3 empty cells are 0" in note for note in absent.notes)
    assert any("1 cell of -1 do not count" in note for note in ignored.notes)


def test_several_columns_of_classes_are_chosen_by_their_names(tmp_path):
    spec = f"{chexpert(tmp_path)}?blank=absent"
    source = open_data(spec, label_column="Pneumonia,Edema")["all"]
    assert source.target.classes == ("Pneumonia", "Edema")
    assert source.target.values.tolist() == [[0, 1], [1, 0], [0, 0]]
    assert open_data(spec, label_column="Effusion,")["all"].target.values.tolist() == [[-1], [0], [1]]
    for column, message in (("Edema,Efusion", "no column 'Efusion'.*\n.*'Effusion'"), ("Edema,Sex", "'Sex' has Male")):
        with pytest.raises(UsageError, match=message):
            open_data(spec, label_column=column)
    with pytest.raises(UsageError, match=r"\?blank=absent is for columns of 0 and 1, and 'Sex' is another"):
        open_data(spec, label_column="Sex")
    write(tmp_path, "t.csv", "path,edema\n0.png,1\n1.png,0\n2.png,-1\n")
    with pytest.raises(UsageError, match=r"-1 is no class\n--label-col edema, \(with the comma\)"):
        open_data(str(tmp_path / "t.csv"), label_column="edema")


def test_the_column_of_names_without_suffix_is_found_by_its_files(tmp_path):
    (tmp_path / "train").mkdir()
    for i in range(4):
        (tmp_path / "train" / f"k{i}.png").write_bytes(png(i))
    spec = write(tmp_path, "labels.csv", "id_code,diagnosis\n" + "".join(f"k{i},{i % 2}\n" for i in range(4)))
    source = open_data(spec, label_column="diagnosis")["all"]
    assert source.ids == ("k0.png", "k1.png", "k2.png", "k3.png") and source.target.classes == ("0", "1")
    assert any("cells of 'id_code' are image files" in note for note in source.notes)
    with pytest.raises(UsageError, match=r"no column for the images was recognised among: who, what\n.*--image-col"):
        open_data(write(tmp_path, "other.csv", "who,what\nx,y\n"))


def test_classes_of_roboflow(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "a.png").write_bytes(png(0))
        write(tmp_path / split, "_classes.csv", "filename, cat, dog\na.png, 1, 0\n")
    found = open_data(str(tmp_path))
    assert list(found) == ["train", "val"] and found["val"].target.classes == ("cat", "dog")


def arrays(split, shape=(6, 8, 8, 3)):
    rng = np.random.default_rng(len(split))
    return rng.integers(0, 255, shape, dtype=np.uint8), (np.arange(shape[0]) % 3).astype(np.uint8)[:, None]


def test_medmnist(tmp_path):
    content = {}
    for split in ("train", "val", "test"):
        content[f"{split}_images"], content[f"{split}_labels"] = arrays(split)
    np.savez_compressed(tmp_path / "bloodmnist.npz", **content)
    found = open_data(str(tmp_path / "bloodmnist.npz"))
    assert list(found) == ["train", "val", "test"]
    for split, source in found.items():
        assert np.array_equal(source.images.read(4), content[f"{split}_images"][4])
        assert isinstance(source.target, Classes) and source.target.values.tolist() == [0, 1, 2, 0, 1, 2]
    assert not [finding for finding in check(found["train"], found["test"]) if finding.level == "error"]


def test_arrays_of_several_labels_of_keras_and_without_splits(tmp_path):
    images, labels = arrays("x")
    several = np.eye(6, 4, dtype=np.uint8)
    for name, content, kind in (
        ("chest", {"train_images": images[..., 0], "train_labels": several}, "multi"),
        ("keras", {"x_train": images, "y_train": labels[:, 0], "x_test": images, "y_test": labels[:, 0]}, "single"),
        ("plain", {"images": images, "labels": np.array(list("aabbcc"))}, "single"),
        ("unlabelled", {"X": images}, "none"),
    ):
        np.savez(tmp_path / f"{name}.npz", **content)
        assert next(iter(open_data(str(tmp_path / f"{name}.npz")).values())).target.name == kind


def test_arrays_that_are_no_images_say_so(tmp_path):
    images, labels = arrays("x")
    for content, message in (
        ({"features": np.zeros((6, 4))}, r"no arrays of images of known names: it has features\n.*--features"),
        ({"train_images": np.zeros((2, 9, 9, 9), np.uint8)}, "holds volumes"),
        ({"images": images.transpose(0, 3, 1, 2)}, r"channels before height and width\n.*x\.transpose\(0, 2, 3, 1\)"),
        ({"images": images / 255.0}, r"images are uint8.*\n.*\(255 \* x\)\.round\(\)\.astype\('uint8'\)"),
        ({"images": images, "labels": labels[:5]}, "6 images and 5 labels"),
        ({"images": np.array([{}], dtype=object)}, "a.npz, images holds objects of Python"),
        ({"images": images, "labels": labels.astype(object)}, r"a.npz, labels .*\n.*x\.astype\(str\)"),
    ):
        np.savez(tmp_path / "a.npz", **content)
        with pytest.raises((UsageError, DataError), match=message):
            open_data(str(tmp_path / "a.npz"))


def test_pickles_without_a_suffix_are_named(tmp_path):
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps({b"labels": [0]}))
    for spec in (tmp_path / "data_batch_1", tmp_path):
        with pytest.raises((UsageError, DataError), match=r"is a pickle[\s\S]*torchvision:CIFAR10@FOLDER"):
            open_data(str(spec))


def test_files_of_rows_need_no_prefix(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    samples = pictures()
    (tmp_path / "data").mkdir()
    parquet.write_table(hf_table(samples), tmp_path / "data" / "train-00000-of-00001.parquet")
    expected = sorted(samples)
    assert list(open_data(str(tmp_path))["train"].ids) == expected
    assert list(open_data(str(tmp_path / "data" / "train-00000-of-00001.parquet"))["all"].ids) == expected


def test_keys_of_shards_with_dots(tmp_path):
    members = {f"22.{i:02d}.png": png(i) for i in range(4)}
    for suffix, content in (("cls", "{}"), ("json", '{{"label": {}}}')):
        labels = {f"22.{i:02d}.{suffix}": content.format(i % 2).encode() for i in range(4)}
        spec = tmp_path / f"{suffix}.tar"
        write_members(spec, members | labels)
        source = open_data(str(spec))["all"]
        assert source.ids == tuple(members) and [source.target.text(i) for i in range(4)] == ["0", "1", "0", "1"]
    write_members(tmp_path / "both.tar", members | {"22.00.cls": b"1", "1.png": png(9), "1.cls": b"0"})
    with pytest.raises(DataError, match=r"22\.00\.cls belongs to a key with a dot"):
        open_data(str(tmp_path / "both.tar"))
    write_members(tmp_path / "parts.tar", {"1.png": png(9), "1.mask.png": png(8), "1.cls": b"0", "1.mask.json": b"{}"})
    assert open_data(str(tmp_path / "parts.tar"))["all"].ids == ("1.png",)


def write_members(path, members):
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            add_to_tar(archive, name, content)


def manifest(root, image=int, category=int, refer=None, mask=()):
    for i in range(3):
        (root / f"p{i}.png").write_bytes(png(i, (12, 12)))
    row = {"bbox": [1, 1, 8, 8], "segmentation": list(mask)}
    content = {
        "images": [{"id": image(i), "file_name": f"p{i}.png", "width": 12, "height": 12} for i in range(3)],
        "annotations": [
            {"id": f"a{i}", "image_id": (refer or image)(i), "category_id": category(i % 2), **row} for i in range(3)
        ],
        "categories": [{"id": category(i), "name": name} for i, name in enumerate(("cat", "dog"))],
    }
    return write(root, "m.json", content)


def test_ids_of_manifests_may_be_texts(tmp_path):
    for image, category, refer in (
        ("uuid-{}".format, "c{}".format, None),
        ("p{}.png".format, int, None),
        ("00{}".format, float, None),
        (int, int, str),
        (float, str, int),
    ):
        spec = manifest(tmp_path, image, category, refer)
        source, objects = open_data(spec)["all"], open_objects(spec)["all"]
        assert [source.target.text(i) for i in range(3)] == ["cat", "dog", "cat"]
        assert objects.target.classes == ("cat", "dog") and [len(o) for o in objects.target.objects] == [1, 1, 1]
    with pytest.raises(DataError, match="image_id v0, v1, v2, which is not in 'images'"):
        open_data(manifest(tmp_path, "u{}".format, refer="v{}".format))
    with pytest.raises(DataError, match="ids of 'images' are numbers and texts"):
        open_data(manifest(tmp_path, lambda i: i if i else "x"))


def test_polygons_that_are_not_in_a_list_or_are_lists_of_points(tmp_path):
    usual = open_objects(manifest(tmp_path, mask=[[1, 1, 9, 1, 9, 9, 1, 9]]))["all"]
    for mask in ([1, 1, 9, 1, 9, 9, 1, 9], [[1, 1], [9, 1], [9, 9], [1, 9]]):
        found = open_objects(manifest(tmp_path, mask=mask))["all"]
        assert [o.masks for o in found.target.objects] == [
            o.masks for o in usual.target.objects
        ] and found.target.has_masks
    with pytest.raises(DataError, match="a polygon is a list of numbers"):
        open_objects(manifest(tmp_path, mask=[1, 1, 9]))


def test_label_studios_table_is_read_with_its_choices_and_not_with_its_annotators(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    rows = [f"/data/local-files/?d={i}.png,{i},{'ab'[i % 2]},1,3.5" for i in range(4)]
    (tmp_path / "t.csv").write_text("\n".join(["image,id,choice,annotator,lead_time", *rows]))
    assert open_data(str(tmp_path / "t.csv"))["all"].target.classes == ("a", "b")


def test_numbers_of_classes_are_not_taken_for_file_names(tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    (tmp_path / "t.csv").write_text("image_id,healthy,rust\n" + "".join(f"{i},{i % 2},{1 - i % 2}\n" for i in range(4)))
    source = open_data(str(tmp_path / "t.csv"))["all"]
    assert source.target.classes == ("healthy", "rust") and len(source.ids) == 4


def test_lists_inside_of_an_archive_are_named_with_a_way_to_use_them(tmp_path):
    with zipfile.ZipFile(tmp_path / "p.zip", "w") as archive:
        archive.writestr("images/p.png", png(0))
        archive.writestr("annotations/instances_default.json", "{}")
    assert any("unpack it and give the folder" in note for note in open_data(str(tmp_path / "p.zip"))["all"].notes)


def test_boxes_without_a_header_and_utf16_without_its_mark_are_told(tmp_path):
    (tmp_path / "b.csv").write_text("0.png,1,1,5,5,a\n")
    with pytest.raises(UsageError, match="has no header: its first line is 0"):
        open_data(str(tmp_path / "b.csv"))
    for encoding in ("utf-16-le", "utf-16-be"):
        (tmp_path / "u.csv").write_bytes("path,label\nGrößen.png,a\n".encode(encoding))
        with pytest.raises(DataError, match="UTF-16 without its mark"):
            open_data(str(tmp_path / "u.csv"))


def test_a_folder_that_is_not_there_is_not_asked_of_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="neither a path nor the name"):
        open_data("hf:./none")


def test_exports_in_archives_are_named_and_images_folders_are_no_classes(tmp_path):
    name, content = FILES["Supervisely"]
    members = {"meta.json": json.dumps(FILES["file of Supervisely"][1]), f"ds/ann/{name}": json.dumps(content)}
    with zipfile.ZipFile(tmp_path / "s.zip", "w") as archive, tarfile.open(tmp_path / "s.tar", "w") as tar:
        for i in range(2):
            archive.writestr(f"ds/img/{i}.png", png(i))
            add_to_tar(tar, f"ds/img/{i}.png", png(i))
        for member, text in members.items():
            archive.writestr(member, text)
    source = open_data(str(tmp_path / "s.zip"))["all"]
    assert not source.target.labelled and any("Supervisely, which is not read" in note for note in source.notes)
    assert not any("unpack it" in note for note in source.notes)
    with pytest.raises(UsageError, match="is a file of Supervisely"):
        open_objects(str(tmp_path / "s.zip"))
    with pytest.raises(UsageError, match="annotations are not read in archives") as error:
        open_objects(str(tmp_path / "s.tar"))
    assert error.value.remedy == "Unpack it, and give the folder."


def test_a_single_folder_of_a_usual_name_is_no_class(tmp_path):
    for number, name in enumerate(("images", "image_2", "train2017", "cats")):
        (tmp_path / str(number) / name).mkdir(parents=True)
        (tmp_path / str(number) / name / "0.png").write_bytes(png(0))
        labels = open_data(str(tmp_path / str(number)))["all"].target
        assert labels.labelled == (name == "cats")
    for name in ("cat", "dog"):
        (tmp_path / "0" / "images" / name).mkdir()
        (tmp_path / "0" / "images" / name / "1.png").write_bytes(png(1))
    (tmp_path / "0" / "images" / "0.png").unlink()
    nested = open_data(str(tmp_path / "0"))["all"]
    assert nested.target.classes == ("cat", "dog") and nested.ids == ("images/cat/1.png", "images/dog/1.png")
    assert any("all images lie in images/, whose folders are taken as the classes" in note for note in nested.notes)


def test_accents_as_characters_of_their_own_make_no_other_class(tmp_path):
    name = "H\u00fcndchen"
    for split, form in (("train", "NFC"), ("test", "NFD")):
        folder = tmp_path / split / unicodedata.normalize(form, name)
        folder.mkdir(parents=True)
        (folder / "0.png").write_bytes(png(0))
    assert {source.target.classes for source in open_data(str(tmp_path)).values()} == {(name,)}
    decomposed = unicodedata.normalize("NFD", name)
    assert multi_labels([[name], [decomposed]], [[decomposed], []]).values.tolist() == [[1], [1]]


def test_a_manifest_in_the_folder_is_named(tmp_path):
    (tmp_path / "train2017").mkdir()
    (tmp_path / "train2017" / "0.png").write_bytes(png(0))
    write(tmp_path, "lvis_v1_train.json", {"images": [{"id": 1, "file_name": "0.png"}], "annotations": []})
    with pytest.raises(UsageError, match="no images with boxes of objects were found") as error:
        open_objects(str(tmp_path))
    assert error.value.remedy.endswith("lvis_v1_train.json is a COCO manifest: give that file.")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '[{"image_name": "p.png", "label": "cat", "task_id": 3, "externalId": "x"}]'),
        ("a.csv", "ImageID,LabelName\np.png,cat\n"),
        ("a.csv", "image,label,rle\np.png,cat,1 2\n"),
        ("a.txt", "p.png 3\n"),
    ],
)
def test_tables_are_no_exports(tmp_path, name, text):
    write(tmp_path, name, text)
    assert export_of(tmp_path / name) is None
