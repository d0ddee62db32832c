"""Every benchmark that names a folder reads a tiny tree of the official layout below $SSLBENCH_DATA."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.offenders import offenders
from PIL import Image
from sample_data import ade20k, cityscapes, coco_stuff, davis, hpatches, jhmdb, pf_pascal, spair, tss, vip

from sslbench.data.open import (
    open_data,
    open_label_maps,
    open_masks_as_data,
    open_objects,
    open_pairs,
    open_videos,
)
from sslbench.library.benchmarks import data_of, load_benchmark
from sslbench.names import list_names

OPENERS = {
    **dict.fromkeys(("detection", "discovery"), open_objects),
    **dict.fromkeys(("segmentation", "segmentation-knn"), open_label_maps),
    "correspondence": open_pairs,
    "tracking": open_videos,
    "saliency": open_masks_as_data,
}
ELSEWHERE = ("depth", "normals", "geolocation", "retrieval")
"""Protocols whose layouts have tests of their own."""
CLASS_FOLDERS = (
    *("diabetic_retinopathy", "dmlab", "dsprites_location", "dsprites_orientation", "NWPU-RESISC45", "places205"),
    *("small_norb_azimuth", "small_norb_elevation", "ucf101"),
    *("caltech101", "dsprites_location", "dsprites_orientation", "eurosat", "kitti_dist", "patch_camelyon", "resisc45"),
)


def picture(path, value=0, channels=3):
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (12, 20, channels) if channels > 1 else (12, 20)
    Image.fromarray(np.full(shape, value, np.uint8)).save(path)


def class_folders(root, splits=("train", "test"), classes=("n01440764", "n01443537")):
    for split in splits:
        for number, name in enumerate(classes):
            for i in range(2):
                picture(root / split / name / f"{split}{i}.jpg", 60 * number + i)


def coco(root, year, kinds=("instances",)):
    """COCO as it is unpacked: annotations/ beside train2017/ and val2017/."""
    for split in ("train", "val"):
        names = [f"{number:012d}.jpg" for number in (9, 25)]
        for name in names:
            picture(root / f"{split}{year}" / name)
        for kind in kinds:
            points = {"keypoints": [3, 3, 2], "num_keypoints": 1} if kind == "person_keypoints" else {}
            boxes = [
                {"id": i + 1, "image_id": i + 1, "category_id": 1, "bbox": [1, 1, 9, 9], "area": 81, "iscrowd": 0}
                | points
                for i in range(2)
            ]
            category = {"id": 1, "name": "person"} | ({"keypoints": ["nose"], "skeleton": []} if points else {})
            images = [{"id": i + 1, "file_name": name, "height": 12, "width": 20} for i, name in enumerate(names)]
            text = json.dumps({"images": images, "annotations": boxes, "categories": [category]})
            file = root / "annotations" / f"{kind}_{split}{year}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


def lvis(root):
    """LVIS's manifests have no file names; coco_url ends in the folder and the name."""
    for split in ("train", "val"):
        images = [
            {"id": i, "coco_url": f"http://images.cocodataset.org/{split}2017/{i:012d}.jpg", "height": 12, "width": 20}
            | {"neg_category_ids": [], "not_exhaustive_category_ids": []}
            for i in (9, 25)
        ]
        boxes = [{"id": i, "image_id": i, "category_id": 1, "bbox": [1, 1, 9, 9], "area": 81} for i in (9, 25)]
        category = {"id": 1, "name": "cat", "frequency": "f"}
        content = {"images": images, "annotations": boxes, "categories": [category]}
        (root / "annotations" / f"lvis_v1_{split}.json").write_text(json.dumps(content))


VOC_XML = """<annotation><filename>{}.jpg</filename><size><width>20</width><height>12</height><depth>3</depth></size>
<object><name>{}</name><difficult>0</difficult><bndbox><xmin>2</xmin><ymin>2</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>
</object></annotation>"""


def voc(root, splits):
    for number, split in enumerate(splits):
        names = [f"{10 * number + i:06d}" for i in range(2)]
        (root / "ImageSets" / "Main").mkdir(parents=True, exist_ok=True)
        (root / "Annotations").mkdir(exist_ok=True)
        (root / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
        for kind, name in zip(("cat", "dog"), names, strict=True):
            picture(root / "JPEGImages" / f"{name}.jpg")
            (root / "Annotations" / f"{name}.xml").write_text(VOC_XML.format(name, kind))
            rows = [f"{each} {1 if each == name else -1:2d}" for each in names]
            (root / "ImageSets" / "Main" / f"{kind}_{split}.txt").write_text("\n".join(rows) + "\n")


def voc_maps(root, lists, **maps):
    """Maps by the folder's name, and lists of their names."""
    for folder, names in maps.items():
        for name in names:
            picture(root / "JPEGImages" / f"{name}.jpg")
            picture(root / folder / f"{name}.png", 1, channels=1)
    for split, names in lists.items():
        file = root / "ImageSets" / f"{split}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(names) + "\n")


def inaturalist(root):
    for split in ("train", "val"):
        name = f"train_val2018/Aves/2761/{split}.jpg"
        picture(root / name)
        images = [{"id": 1, "file_name": name, "height": 12, "width": 20}]
        content = {"images": images, "annotations": [{"id": 1, "image_id": 1, "category_id": 3}]}
        content["categories"] = [{"id": 3, "name": "Parus major", "supercategory": "Aves"}]
        (root / f"{split}2018.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    for maker, name in (
        *(
            (ade20k, "ADEChallengeData2016"),
            (cityscapes, "cityscapes"),
            (coco_stuff, "coco_stuff164k"),
            (davis, "DAVIS"),
        ),
        *((hpatches, "hpatches-sequences-release"), (jhmdb, "JHMDB"), (pf_pascal, "PF-dataset-PASCAL")),
        *((spair, "SPair-71k"), (tss, "TSS_CVPR2016"), (vip, "VIP_Fine")),
    ):
        (root / name).mkdir()
        made = Path(maker.make(root / name))
        assert made == root / name or made.is_relative_to(root / name)
    coco(root / "coco", 2017, kinds=("instances", "person_keypoints"))
    coco(root / "coco", 2014)
    lvis(root / "coco")
    (root / "coco20k").mkdir()
    manifest = json.loads((root / "coco/annotations/instances_train2014.json").read_text())
    (root / "coco20k" / "instances.json").write_text(json.dumps(manifest))
    for number in (9, 25):
        picture(root / "coco20k" / "train2014" / f"{number:012d}.jpg")
    devkit = root / "VOCdevkit"
    voc(devkit / "VOC2007", ("trainval", "test"))
    voc(devkit / "VOC2012", ("train", "val", "trainval"))
    lists = {"Segmentation/train": ["a"], "Segmentation/val": ["b"], "Segmentation/trainaug": ["a", "c"]}
    voc_maps(devkit / "VOC2012", lists, SegmentationClass="ab", SegmentationClassAug="c")
    lists = {"SegmentationContext/train": ["a"], "SegmentationContext/val": ["b"]}
    voc_maps(devkit / "VOC2010", lists, SegmentationClassContext="ab")
    class_folders(root / "imagenet", ("train", "val"))
    for name in ("imagenet-a", "imagenet-r", "imagenet-sketch"):
        class_folders(root, (name,))
    class_folders(root, ("imagenetv2-matched-frequency-format-val",), ("0", "1"))
    inaturalist(root / "inaturalist18")
    for name in CLASS_FOLDERS:
        class_folders(root / name)
        class_folders(root / "vissl" / name)
    for name in ("ecssd", "dut_omron", "duts"):  # with the names that the benchmarks' files ask for
        picture(root / name / "images" / "1.jpg")
        picture(root / name / "masks" / "1.png", 255, channels=1)
    return root


def test_every_benchmark_reads_its_layout(root, monkeypatch):
    monkeypatch.setenv("SSLBENCH_DATA", str(root))

    benchmarks = {name: load_benchmark(name) for name in list_names("benchmark")}
    own = {name: one for name, one in benchmarks.items() if one.folder and one.protocol not in ELSEWHERE}
    assert len(own) > 80
    read = {}

    def reads(name):
        opener = OPENERS.get(own[name].protocol, open_data)
        for place in filter(None, data_of(own[name])):
            if (opener, place) not in read:
                parts = opener(place)
                read[opener, place] = bool(parts) and all(len(part) for part in parts.values())
            assert read[opener, place]

    assert offenders(own, reads) == []
