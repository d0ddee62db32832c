"""Objects365, V3Det and PACO: COCO's form, with the folders, keys and categories that their files have."""

import json

import numpy as np
import pytest
from helpers.annotated import pictures

from sslbench.data.formats.coco import CocoOptions
from sslbench.data.formats.coco import open as open_manifest
from sslbench.data.open import open_data, open_objects
from sslbench.errors import DataError
from sslbench.metrics.detection import masks

SAMPLES = pictures()


def manifest(file, names, categories, of_boxes=lambda row: {}, of_images=lambda row: {}, keep=lambda name: name):
    """Write pictures at `keep(name)` beside a manifest that calls them `name`; boxes are of two categories."""
    images, annotations = [], []
    for number, (name, (picture, boxes)) in enumerate(zip(names, SAMPLES.values(), strict=False), 1):
        place = keep(name)
        place.parent.mkdir(parents=True, exist_ok=True)
        picture.save(place)
        about = {"id": number, "file_name": name, "width": picture.width, "height": picture.height}
        images.append(about | of_images(about))
        for kind, x1, y1, x2, y2 in boxes:
            row = {"id": len(annotations) + 1, "image_id": number, "bbox": [x1, y1, x2 - x1, y2 - y1]}
            row |= {"area": (x2 - x1) * (y2 - y1), "category_id": categories[kind == "dog"]["id"]}
            annotations.append(row | of_boxes(row))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"images": images, "annotations": annotations, "categories": categories}))
    return str(file)


def corners(source):
    """Boxes of each image, in the order in which the images were written."""
    rows = zip(source.target.numbers, source.target.objects, strict=True)
    return [own.boxes.astype(int).tolist() for _, own in sorted(rows, key=lambda row: row[0])]


WANTED = [[list(box[1:]) for box in boxes] for _, boxes in SAMPLES.values()]


@pytest.mark.parametrize("patches", [True, False])
def test_objects365_is_found_in_its_patches(tmp_path, patches):
    """images/v1/patch8/NAME of the JSON lies in train/patch8/NAME, or as it is written below train/."""
    names = [f"images/v{1 + i // 4}/patch{i % 3}/objects365_v{1 + i // 4}_{i:08d}.jpg" for i in range(6)]

    def keep(name):
        return tmp_path / "train" / (name.split("/", 2)[2] if patches else name)

    flags = {"iscrowd": 0, "isfake": 0, "isreflected": 0}
    kinds = [{"id": 365, "name": "Table Tennis "}, {"id": 1, "name": "Person"}]
    spec = manifest(tmp_path / "annotations/zhiyuan_objv2_train.json", names, kinds, lambda _: flags, keep=keep)
    (source,) = open_objects(spec).values()
    assert corners(source) == WANTED and source.target.classes == ("Person", "Table Tennis ")
    assert list(open_objects(str(tmp_path))) == ["train"]
    keep(names[4]).unlink()
    with pytest.raises(DataError, match=r"1 of 6 image files missing: .*objects365_v2_00000004\.jpg"):
        open_objects(spec)


def test_names_in_two_folders_are_never_read_as_one_file(tmp_path):
    names = [f"images/v{1 + i % 2}/patch0/{i // 2}.png" for i in range(6)]
    spec = manifest(
        tmp_path / "annotations/o_train.json",
        names,
        [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}],
        keep=lambda name: tmp_path / "train/patch0" / name.rpartition("/")[2],
    )
    with pytest.raises(DataError, match=r"would both be patch0/0\.png"):
        open_objects(spec)


def test_v3det_has_images_by_category_and_a_tree_beside_it(tmp_path):
    names = [f"images/a{i % 2:08d}/{i}_{i}.jpg" for i in range(6)]
    kinds = [
        {"id": i, "name": name, "name_zh": "x", "cat_info": "A word.", "cat_info_gpt": "", "novel": bool(i % 2)}
        for i, name in ((1, "zucchini"), (13204, "aardvark"))
    ]
    folder = tmp_path / "annotations"
    for part in ("train", "val"):
        spec = manifest(folder / f"v3det_2023_v1_{part}.json", names, kinds, keep=lambda name: tmp_path / name)
    tree = {"id2name": {"a00000000": "zucchini"}, "categoryid2treeid": {"1": "a00000000"}, "siblings": [], "nodes": {}}
    (folder / "v3det_2023_v1_category_tree.json").write_text(json.dumps(tree))
    (folder / "category_name_13204_v3det_2023_v1.txt").write_text("zucchini\naardvark\n")
    (source,) = open_objects(spec).values()
    assert source.ids == tuple(sorted(names)) and source.target.classes == ("zucchini", "aardvark")
    assert list(open_objects(str(tmp_path))) == ["train", "val"]


def paco(tmp_path):
    """Objects and parts, with attributes; images of all parts lie in COCO's folders."""
    names = [f"{'train' if i % 2 else 'val'}2017/{i:012d}.jpg" for i in range(6)]
    kinds = [
        {
            "supercategory": "OBJECT",
            "id": 1,
            "name": "trash_can",
            "frequency": "f",
            "image_count": 3,
            "synset": "a.n.1",
        },
        {"supercategory": "PART", "id": 76, "name": "trash_can:lid", "frequency": "", "image_count": 3, "synset": ""},
    ]

    def about_box(row):
        x, y, width, height = row["bbox"]
        bitmap = np.zeros((30, 40), dtype=bool)
        bitmap[y : y + height, x : x + width] = True
        unknown = dict.fromkeys(("unknown_color", "unknown_pattern_marking", "unknown_material"), 0)
        attributes = {"attribute_ids": [2, 41], "dom_color_ids": [2], "obj_ann_id": row["image_id"]}
        # Boxes without a mask have an empty list.
        mask = masks.text(masks.encode(bitmap)) if row["id"] > 1 else []
        return {"segmentation": mask, **attributes, **unknown}

    absent = {"neg_category_ids": [76], "not_exhaustive_category_ids": [], "neg_category_ids_attrs": [1]}
    file = tmp_path / "annotations/paco_lvis_v1_val.json"
    spec = manifest(file, names, kinds, about_box, lambda _: absent, lambda name: tmp_path / name)
    content = json.loads(file.read_text())
    content |= {"part_categories": [{"supercategory": "PART", "id": 0, "name": "lid"}]}
    content |= {"attributes": [{"supercategory": "ATTR", "id": 2, "name": "blue"}], "attr_type_to_attr_idxs": {}}
    file.write_text(json.dumps(content))
    return spec


def test_paco_has_objects_and_parts_in_the_folders_of_coco(tmp_path):
    spec = paco(tmp_path)
    (source,) = open_objects(spec).values()
    assert source.target.classes == ("trash_can", "trash_can:lid") and sum(map(len, source.target.objects)) == 9
    assert source.target.federated.frequencies == ("f", "") and len(source.target.federated.negative) == 6
    number = next(i for i, own in enumerate(source.target.objects) if 4 in own.numbers)
    assert [int(mask.sum()) for mask in map(masks.decode, source.masks_of(number))] == [
        int(area) for area in source.target.objects[number].areas
    ]
    (kinds,) = open_data(f"{spec}?unit=annotation&classes=supercategory&min_size=1").values()
    assert set(kinds.target.classes) == {"OBJECT", "PART"}
    of_object = CocoOptions(unit="annotation", min_size=1, group="obj_ann_id")
    (crops,) = open_manifest(spec, options=of_object).values()
    assert crops.grouped_by == "obj_ann_id" and set(crops.attributes["obj_ann_id"]) == {str(i) for i in range(1, 7)}
