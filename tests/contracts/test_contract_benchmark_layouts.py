"""Every benchmark that names a folder reads a tiny tree of the official layout below $SSLBENCH_DATA."""

import functools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from helpers.offenders import offenders
from PIL import Image
from sample_data import (
    ade20k,
    cityscapes,
    coco_stuff,
    davis,
    dense_flow,
    geobench,
    hpatches,
    jhmdb,
    pf_pascal,
    spair,
    vip,
)
from scipy.io import savemat

from sslbench.data.open import (
    open_as,
    open_data,
    open_objects,
)
from sslbench.library.benchmarks import data_of, load_benchmark
from sslbench.names import list_names
from sslbench.targets.anomalies import Anomalies
from sslbench.targets.label_maps import Foreground, LabelMaps
from sslbench.targets.pairs import Homographies, Points
from sslbench.targets.pixel_values import Depth, Normals
from sslbench.targets.texts import Texts
from sslbench.targets.videos import Parts, Poses, Tracks

OPENERS = {
    **dict.fromkeys(("detection", "discovery"), open_objects),
    **dict.fromkeys(("segmentation", "segmentation-knn"), lambda place: open_as(place, LabelMaps)),
    "correspondence": lambda place: open_as(place, Points, Homographies),
    "tracking": lambda place: open_as(place, Tracks, Parts, Poses),
    "saliency": lambda place: open_as(place, Foreground),
    "anomaly": lambda place: open_as(place, Anomalies),
    "image-text": lambda place: open_as(place, Texts),
    "depth": lambda place: open_as(place, Depth),
    "normals": lambda place: open_as(place, Normals),
    "geolocation": functools.partial(open_data, value_columns=("lat", "lon")),
}
CLASS_FOLDERS = (
    *("diabetic_retinopathy", "dmlab", "dsprites_location", "dsprites_orientation", "NWPU-RESISC45", "places205"),
    *(
        "small_norb_azimuth",
        "small_norb_elevation",
        "ucf101",
        "cub",
        "nabirds",
        "stanford_dogs",
        "plantnet_300K/images",
    ),
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


def captions(file, splits):
    """Karpathy's lists; COCO's name the folder of each image."""
    entries = []
    for folder, split in splits.items():
        name = f"{split}.jpg"
        if split == "test":  # of which alone nothing more is needed
            picture(file.parent / folder / name)
        entries.append({"filename": name, "split": split, "sentences": [{"raw": "one"}, {"raw": "two"}]})
        entries[-1] |= {"filepath": folder} if folder else {}
    file.write_text(json.dumps({"images": entries}))


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


def inaturalist(root, year):
    for split in ("train", "val"):
        name = f"{f'train_val{year}' if year else split}/Aves/2761/{split}.jpg"
        picture(root / name)
        images = [{"id": 1, "file_name": name, "height": 12, "width": 20}]
        content = {"images": images, "annotations": [{"id": 1, "image_id": 1, "category_id": 3}]}
        content["categories"] = [{"id": 3, "name": "Parus major", "supercategory": "Aves"}]
        (root / f"{split}{year}.json").write_text(json.dumps(content))


def depth_of_bts(root, name, lists):
    """Lists of BTS: a path of an image, one of its depth, and the focal length; split -> folder of the paths."""
    for split, (file, images, depths) in lists.items():
        lines = [f"{images}/{split}{i}.jpg {depths}/{split}{i}.png 518.8579" for i in range(2)]
        folder = {"nyu_depth_v2": {"train": "sync", "test": "official_splits/test"}[split], "kitti_depth": "."}[name]
        for i in range(2):
            picture(root / name / folder / images.lstrip("/") / f"{split}{i}.jpg")
            place = "gt_depth" if name == "kitti_depth" else folder
            depth = root / name / place / depths.lstrip("/") / f"{split}{i}.png"
            depth.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((12, 20), 900, np.uint16)).save(depth)
        (root / name / file).write_text(
            "\n".join([*lines, *([f"{images}/x.jpg None 721.5"] if name[0] == "k" else [])])
        )


def medmnist(root):
    """The arrays of each set, those of ChestMNIST with 14 labels per image."""
    root.mkdir()
    sets = [name for name in list_names("benchmark") if load_benchmark(name).folder.startswith("medmnist/")]
    for name in {name.partition("/")[2] for name in sets}:
        labels = np.eye(14, dtype=np.uint8)[:4] if name == "chestmnist" else np.arange(4, dtype=np.uint8)[:, None]
        part = {"images": np.zeros((4, 8, 8, 3), np.uint8), "labels": labels}
        arrays = {f"{split}_{kind}": part[kind] for split in ("train", "val", "test") for kind in part}
        np.savez(root / f"{name}_224.npz", **arrays)


def geolocated(root):
    for folder in ("mp16", "im2gps", "im2gps3k"):
        names = [f"{folder}/images/{i}.jpg" for i in range(2)]
        for name in names:
            picture(root / name)
        rows = [f"{Path(name).name},{i},{-i}" for i, name in enumerate(names)]
        (root / folder / "images.csv").write_text("\n".join(["image,lat,lon", *rows]))


def retrieval_sets(root):
    """Folders as the authors' archives and the comments of the benchmarks' files make them."""
    for name in ("cars196_retrieval", "cub200_retrieval", "sop"):
        class_folders(root / name)
    for folder in ("original", "strong", "crops/50", "jpegqual/75"):
        picture(root / "copydays" / folder / ("200000.jpg" if folder == "original" else "200001.jpg"))
    for number in (100000, 100001, 100100, 100101):
        picture(root / "holidays" / "jpg" / f"{number}.jpg")
    for name in ("references/R000001.jpg", "references/R000002.jpg", "queries/Q00001.jpg", "queries/Q00002.jpg"):
        picture(root / "disc21" / name)
    (root / "disc21" / "dev_ground_truth.csv").write_text("query_id,reference_id\nQ00001,R000002\nQ00002,\n")
    for name, prefix, below in (("oxford5k", "oxc1_", "jpg"), ("paris6k", "", "jpg/paris/defense")):
        for i in range(3):
            picture(root / name / below / f"{name}_00000{i}.jpg")
        lists = {
            "query": f"{prefix}{name}_000000 1 1 9 9",
            "good": f"{name}_000000",
            "ok": f"{name}_000001",
            "junk": "",
        }
        for kind, text in lists.items():
            (root / name / f"all_souls_1_{kind}.txt").write_text(text + "\n")
    for name, below in (("roxford5k", "jpg"), ("rparis6k", "jpg/paris/defense")):
        for i in range(3):
            picture(root / name / below / f"{name}_00000{i}.jpg")
        entry = {"bbx": [1, 1, 9, 9], "easy": [0], "hard": [1], "junk": []}
        truth = {"imlist": [f"{name}_00000{i}" for i in (1, 2)], "qimlist": [f"{name}_000000"], "gnd": [entry]}
        (root / name / f"gnd_{name}.pkl").write_bytes(pickle.dumps(truth, protocol=2))
    names = ["INSTRE-S1/01a_canada_book_box/001.jpg", "INSTRE-S2/01b/001.jpg", "INSTRE-M/01/001.jpg"]
    for name in names:
        picture(root / "instre" / name)
    cells = {"imlist": np.array(names[1:], dtype=object), "qimlist": np.array(names[:1], dtype=object)}
    truth = np.array([(np.array([[1.0, 2.0]]), np.array([[1.0, 1, 9, 9]]))], dtype=[("ok", object), ("bbx", object)])
    savemat(root / "instre" / "gnd_INSTRE.mat", {**cells, "gnd": truth})


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
        *((spair, "SPair-71k"), (dense_flow, "TSS_CVPR2016"), (vip, "VIP_Fine")),
    ):
        (root / name).mkdir()
        made = Path(maker.make(root / name))
        assert made == root / name or made.is_relative_to(root / name)
    coco(root / "coco", 2017, kinds=("instances", "person_keypoints"))
    coco(root / "coco", 2014)
    lvis(root / "coco")
    captions(root / "coco/dataset_coco.json", {"train2014": "restval", "val2014": "test"})
    captions(root / "flickr30k/dataset_flickr30k.json", {"": "test"})
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
    inaturalist(root / "inaturalist18", "2018")
    inaturalist(root / "inaturalist21", "")
    for name in CLASS_FOLDERS:
        class_folders(root / name)
        class_folders(root / "vissl" / name)
    medmnist(root / "medmnist")
    for name in ("m-bigearthnet", "m-brick-kiln", "m-eurosat", "m-forestnet", "m-pv4ger", "m-so2sat"):
        (root / "geobench" / "classification_v1.0" / name).mkdir(parents=True)
        geobench.make(root / "geobench" / "classification_v1.0" / name, several=name == "m-bigearthnet")
    for name in ("m-pv4ger-seg", "m-chesapeake", "m-cashew-plant", "m-SA-crop-type", "m-nz-cattle", "m-NeonTree"):
        (root / "geobench" / "segmentation_v1.0" / name).mkdir(parents=True)
        geobench.make(root / "geobench" / "segmentation_v1.0" / name, maps=True)
    retrieval_sets(root)
    geolocated(root)
    nyu, kitti = "nyudepthv2_{}_files_with_gt.txt", "eigen_{}_files_with_gt.txt"
    depth_of_bts(
        root,
        "nyu_depth_v2",
        {
            "train": (nyu.format("train"), "/kitchen_0028b", "/kitchen_0028b"),
            "test": (nyu.format("test"), "/bath", "/bath"),
        },
    )
    drive = "2011_09_26/2011_09_26_drive_0057_sync"
    kitti_lists = {
        split: (
            kitti.format(split),
            f"{drive}/image_02/data",
            "2011_09_26_drive_0057_sync/proj_depth/groundtruth/image_02",
        )
        for split in ("train", "test")
    }
    depth_of_bts(root, "kitti_depth", kitti_lists)
    for split in ("train", "test"):
        for i in range(2):
            picture(root / "nyu_normals" / split / "images" / f"{i}.png")
            picture(root / "nyu_normals" / split / "normals" / f"{i}.png", 200)
    for name in ("ecssd", "dut_omron", "duts"):  # with the names that the benchmarks' files ask for
        picture(root / name / "images" / "1.jpg")
        picture(root / name / "masks" / "1.png", 255, channels=1)
    for part in ("train/good", "test/good", "test/scratch"):
        picture(root / "mvtec/screw" / part / "000.png")
    picture(root / "mvtec/screw/ground_truth/scratch/000_mask.png", 255, channels=1)
    rows = ["object,split,label,image,mask", "pcb1,train,normal,pcb1/0.JPG,", "pcb1,test,anomaly,pcb1/1.JPG,pcb1/1.png"]
    (root / "visa/split_csv").mkdir(parents=True)
    (root / "visa/split_csv/1cls.csv").write_text("\n".join(rows))
    for name in ("0.JPG", "1.JPG", "1.png"):
        picture(root / "visa/pcb1" / name)
    return root


def test_every_benchmark_reads_its_layout(root, monkeypatch):
    monkeypatch.setenv("SSLBENCH_DATA", str(root))

    benchmarks = {name: load_benchmark(name) for name in list_names("benchmark")}
    own = {name: one for name, one in benchmarks.items() if one.folder}
    assert len(own) > 95
    assert all(one.folder or one.data for one in benchmarks.values())
    read = {}

    def reads(name):
        opener = OPENERS.get(own[name].protocol, open_data)
        for place in filter(None, data_of(own[name])):
            if (opener, place) not in read:
                parts = opener(place)
                read[opener, place] = bool(parts) and all(len(part) for part in parts.values())
                values = [
                    found for part in parts.values() if (found := getattr(part, "pixel_values", None)) is not None
                ]
                assert all(np.isfinite(found.read_values(0)).all() for found in values)
            assert read[opener, place]

    assert offenders(own, reads) == []
