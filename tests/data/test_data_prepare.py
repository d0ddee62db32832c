"""`sslbench data prepare` on tiny archives of the official layouts, made here."""

import gzip
import io
import json
import tarfile
import zipfile
from collections import Counter

import cv2
import numpy as np
import pytest
import scipy.io
from click.testing import CliRunner
from PIL import Image

from sslbench.cli.commands.data import command
from sslbench.data import prepare as module
from sslbench.data.open import open_as, open_data, open_objects
from sslbench.data.prepare import layout, prepare
from sslbench.errors import DataError, UsageError
from sslbench.metrics.detection import masks
from sslbench.targets.anomalies import Anomalies
from sslbench.targets.label_maps import LabelMaps

WNIDS = ("n01440764", "n01443537", "n02979186")


def picture(value, suffix="JPEG"):
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, np.uint8)).save(buffer, suffix)
    return buffer.getvalue()


def tar(path, files, mode="w"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def imagenet(tmp_path):
    """Three classes of two training images, four validation images whose classes are 3, 1, 2, 3."""
    folder = tmp_path / "archives"
    folder.mkdir()
    inner = {}
    for number, wnid in enumerate(WNIDS):
        images = {f"{wnid}_{i}.JPEG": picture(10 * number + i) for i in range(2)}
        inner[f"{wnid}.tar"] = tar(tmp_path / "inner.tar", images).read_bytes()
    tar(folder / "ILSVRC2012_img_train.tar", inner)
    tar(folder / "ILSVRC2012_img_val.tar", {f"ILSVRC2012_val_{i:08d}.JPEG": picture(100 + i) for i in range(1, 5)})
    kind = [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")]
    rows = [(i + 1, wnid, 0) for i, wnid in enumerate(WNIDS)] + [(4, "n00000000", 3)]
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"synsets": np.array(rows, dtype=kind)})
    devkit = {
        "ILSVRC2012_devkit_t12/data/meta.mat": buffer.getvalue(),
        "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": b"3\n1\n2\n3\n",
    }
    tar(folder / "ILSVRC2012_devkit_t12.tar.gz", devkit, "w:gz")
    return folder


def test_imagenet(imagenet, tmp_path):
    folder = prepare("imagenet1k", [imagenet], root=tmp_path / "data", verify=False)
    assert folder == tmp_path / "data" / "imagenet"
    train = [f"train/{wnid}/{wnid}_{i}.JPEG" for wnid in WNIDS for i in range(2)]
    classes = (WNIDS[2], WNIDS[0], WNIDS[1], WNIDS[2])
    val = [f"val/{wnid}/ILSVRC2012_val_{i:08d}.JPEG" for i, wnid in enumerate(classes, 1)]
    assert tree(folder) == sorted(train + val)
    assert (folder / val[1]).read_bytes() == picture(102)
    assert {split: len(part) for split, part in open_data(str(folder)).items()} == {"train": 6, "val": 4}
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["imagenet"], "nothing else is left"
    with pytest.raises(UsageError, match="exists already"):
        prepare("imagenet1k", [imagenet], root=tmp_path / "data", verify=False)


def test_another_checksum_is_refused_before_anything_is_written(imagenet, tmp_path):
    with pytest.raises(DataError, match=r"ILSVRC2012_img_train.tar is damaged(.|\n)*1d675b47d978889d74fa0da5fadfb00e"):
        prepare("imagenet1k", [imagenet], root=tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_killed_run_continues_and_writes_nothing_twice(imagenet, tmp_path, monkeypatch):
    written = []

    def stop(content):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(content)

    original = layout.Path.write_bytes
    monkeypatch.setattr(layout.Path, "write_bytes", lambda path, content: (stop(content), original(path, content))[1])
    with pytest.raises(KeyboardInterrupt):
        prepare("imagenet1k", [imagenet], root=tmp_path / "data", verify=False)
    assert not (tmp_path / "data" / "imagenet").exists()
    assert len([name for name in tree(tmp_path / "data" / ".imagenet.partial") if name.endswith("JPEG")]) == 5
    monkeypatch.undo()
    again = []
    monkeypatch.setattr(layout.Path, "write_bytes", lambda path, content: (again.append(1), original(path, content))[1])
    folder = prepare("imagenet1k", [imagenet], root=tmp_path / "data", verify=False)
    assert len(again) == 10 - 5
    assert len(tree(folder)) == 10


def test_files_of_another_archive_that_was_given_before_are_not_taken_for_the_data(tmp_path):
    archive, root = tmp_path / "mvtec_anomaly_detection.tar.xz", tmp_path / "data"
    tar(archive, {"old/0.png": b"x", "../0.png": b"x"}, "w:xz")
    with pytest.raises(DataError, match="outside of the archive"):
        prepare("mvtec", [archive], root=root, verify=False)
    tar(archive, {"new/0.png": b"x"}, "w:xz")
    with pytest.raises(DataError, match="has files that these archives do not have") as refused:
        prepare("mvtec", [archive], root=root, verify=False)
    assert "Remove that folder" in refused.value.remedy and not (root / "mvtec").exists()


@pytest.mark.parametrize("name", ["ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"])
def test_an_archive_that_ends_early_is_named(name, imagenet, tmp_path):
    path = imagenet / name
    content = path.read_bytes().rstrip(b"\0")  # the padding at the end may be missing
    for cut in (0.2, 0.5, 0.9):
        path.write_bytes(content[: int(len(content) * cut)])
        with pytest.raises(DataError, match=r"damaged|ends early|does not hold"):
            prepare("imagenet1k", [imagenet], root=tmp_path / str(cut), verify=False)
        assert not (tmp_path / str(cut) / "imagenet").exists()


def test_a_disk_that_is_too_small_is_said_first(imagenet, tmp_path, monkeypatch):
    usage = layout.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(layout.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(DataError, match="are needed"):
        prepare("imagenet1k", [imagenet], root=tmp_path / "data", verify=False)
    assert not tree(tmp_path / "data" / ".imagenet.partial")


@pytest.mark.parametrize(
    "name", ["../../evil.JPEG", "/tmp/evil.JPEG", "imagenet-a/../../evil.JPEG", "imagenet-a/a\\b.JPEG"]
)
def test_members_that_lead_out_of_the_archive_are_refused(name, tmp_path):
    path = tar(tmp_path / "imagenet-a.tar", {"imagenet-a/n01440764/1.jpg": picture(0), name: b"x"})
    with pytest.raises(DataError, match="lies outside of the archive"):
        prepare("imagenet_a", [path], root=tmp_path / "data", verify=False)
    assert not list(tmp_path.rglob("evil*"))


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_are_refused(kind, tmp_path):
    path = tmp_path / "imagenet-a.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("imagenet-a/n01440764/1.jpg")
        info.type, info.linkname = kind, "/etc/hostname"
        archive.addfile(info)
    with pytest.raises(DataError, match="is a link or a device"):
        prepare("imagenet_a", [path], root=tmp_path / "data", verify=False)


def test_sets_that_are_only_unpacked(tmp_path):
    path = tar(tmp_path / "imagenetv2-matched-frequency.tar.gz",
               {"imagenetv2-matched-frequency-format-val/7/a.jpeg": picture(7)}, "w:gz")  # fmt: skip
    folder = prepare("imagenet_v2", [path], root=tmp_path / "data", verify=False)
    assert tree(folder) == ["7/a.jpeg"]
    with zipfile.ZipFile(tmp_path / "ImageNet-Sketch.zip", "w") as packed:
        packed.writestr("sketch/n01440764/s.JPEG", picture(1))
        packed.writestr("__MACOSX/sketch/n01440764/._s.JPEG", b"x")
    folder = prepare("imagenet_sketch", [tmp_path], root=tmp_path / "data", verify=False)
    assert folder.name == "imagenet-sketch" and tree(folder) == ["n01440764/s.JPEG"]


def norb(values, code):
    head = [code, values.ndim, *values.shape, *[1] * (3 - values.ndim)]
    return np.array(head, "<i4").tobytes() + values.tobytes()


@pytest.fixture
def small_norb(tmp_path):
    random = np.random.default_rng(0)
    for number, name in enumerate(module.sets._NORB.values()):
        images = random.integers(0, 255, (4, 2, 96, 96), dtype=np.uint8)
        infos = np.array([[4, 0, 0, 1], [4, 8, 34, 2], [6, 3, 2, 0], [7, number, 20, 5]], "<i4")
        (tmp_path / f"{name}-dat.mat.gz").write_bytes(gzip.compress(norb(images, 0x1E3D4C55)))
        (tmp_path / f"{name}-info.mat").write_bytes(norb(infos, 0x1E3D4C54))
    return tmp_path


def test_small_norb(small_norb):
    folder = prepare("small_norb_azimuth", [small_norb], root=small_norb / "data", verify=False)
    assert tree(folder / "train") == ["000/00000.png", "020/00002.png", "200/00003.png", "340/00001.png"]
    folder = prepare("small_norb_elevation", [small_norb], root=small_norb / "data", verify=False)
    assert tree(folder / "test") == ["30/00000.png", "35/00003.png", "45/00002.png", "70/00001.png"]
    name = module.sets._NORB["train"]
    pixels = np.frombuffer(gzip.decompress((small_norb / f"{name}-dat.mat.gz").read_bytes()), np.uint8, offset=24)
    ours = np.asarray(Image.open(folder / "train" / "70" / "00001.png"))
    np.testing.assert_array_equal(ours, pixels.reshape(4, 2, 96, 96)[1, 0])


def test_the_number_of_images_is_compared(small_norb):
    with pytest.raises(DataError, match=r"train: 4 images, expected 24,300(.|\n)*--no-verify"):
        prepare("small_norb_azimuth", [small_norb], root=small_norb / "data")
    assert not (small_norb / "data" / "small_norb_azimuth").exists()


def test_dsprites(tmp_path, monkeypatch):
    monkeypatch.setattr(module.sets, "_CHUNK", 3)
    images = np.random.default_rng(0).integers(0, 2, (10, 64, 64), dtype=np.uint8)
    factors = np.zeros((10, 6), np.int64)
    factors[:, 3], factors[:, 4] = [0, 2, 3, 4, 5, 7, 8, 39, 38, 37], [0, 1, 2, 3, 4, 29, 30, 31, 16, 15]
    path = tmp_path / module.sets._DSPRITES
    np.savez_compressed(path, imgs=images, latents_classes=factors, metadata=np.array({"a": 1}, dtype=object))
    folder = prepare("dsprites_location", [path], root=tmp_path, verify=False)
    assert [int(name[:2]) for name in sorted(tree(folder), key=lambda name: name[3:])] == [
        x // 2 for x in factors[:, 4]
    ]
    np.testing.assert_array_equal(np.asarray(Image.open(folder / "15" / "000007.png")), images[7] * 255)
    folder = prepare("dsprites_orientation", [path], root=tmp_path, verify=False)
    labels = [int(name[:2]) for name in sorted(tree(folder), key=lambda name: name[3:])]
    assert labels == [int(x // 2.5) for x in factors[:, 3]], "VTAB: floordiv by 40 / 16"


def test_places205(tmp_path):
    root = "data/vision/torralba/deeplearning/images256/"
    names = ["a/abbey/1.jpg", "a/apartment_building/outdoor/2.jpg", "a/abbey/3.jpg", "a/abbey/unlisted.jpg"]
    tar(tmp_path / "imagesPlaces205_resize.tar.gz", {root + name: picture(i) for i, name in enumerate(names)}, "w:gz")
    lists = {"trainvalsplit_places205/train_places205.csv": b"a/abbey/1.jpg 0\na/apartment_building/outdoor/2.jpg 9\n",
             "trainvalsplit_places205/val_places205.csv": b"a/abbey/3.jpg 0\n"}  # fmt: skip
    tar(tmp_path / "trainvalsplit_places205.tar.gz", lists, "w:gz")
    folder = prepare("places205", [tmp_path], root=tmp_path / "data", verify=False)
    assert tree(folder) == ["train/abbey/1.jpg", "train/apartment_building-outdoor/2.jpg", "val/abbey/3.jpg"]
    tar(tmp_path / "trainvalsplit_places205.tar.gz", {"train_places205.csv": b"../../x/evil.jpg 0\n"}, "w:gz")
    with pytest.raises(DataError, match=r"line 1: '../../x/evil.jpg 0' is not"):
        prepare("places205", [tmp_path], root=tmp_path / "other", verify=False)


def test_ucf101(tmp_path):
    for action, video, frames in (("Archery", "v_Archery_g01_c01", 9), ("Biking", "v_Biking_g08_c02", 4)):
        folder = tmp_path / "UCF-101" / action
        folder.mkdir(parents=True)
        writer = cv2.VideoWriter(str(folder / f"{video}.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 5, (32, 32))
        for i in range(frames):
            writer.write(np.full((32, 32, 3), 20 * i, np.uint8))
        writer.release()
    with zipfile.ZipFile(tmp_path / "UCF101TrainTestSplits-RecognitionTask.zip", "w") as packed:
        packed.writestr("ucfTrainTestlist/trainlist01.txt", "Archery/v_Archery_g01_c01.avi 1\r\n")
        packed.writestr("ucfTrainTestlist/testlist01.txt", "Biking/v_Biking_g08_c02.avi\n")
        packed.writestr("ucfTrainTestlist/trainlist02.txt", "Biking/v_Biking_g08_c02.avi 2\n")
    folder = prepare("ucf101", [tmp_path], root=tmp_path / "data", verify=False)
    assert tree(folder) == ["test/Biking/v_Biking_g08_c02.jpg", "train/Archery/v_Archery_g01_c01.jpg"]
    assert np.asarray(Image.open(folder / "train/Archery/v_Archery_g01_c01.jpg")).mean() == pytest.approx(80, abs=3)
    rar = tmp_path / "packed" / "UCF101.rar"
    rar.parent.mkdir()
    rar.write_bytes(b"Rar!")
    lists = tmp_path / "UCF101TrainTestSplits-RecognitionTask.zip"
    with pytest.raises(UsageError, match=r"(.|\n)*unrar x UCF101.rar"):
        prepare("ucf101", [rar, lists], root=tmp_path / "other", verify=False)


def stanford_online_products(path, train, test):
    """Write the archive: two lists of `number class superclass path` below a line of names, and the images."""
    with zipfile.ZipFile(path, "w") as packed:
        for name, rows in (("bicycle_final/111_0.JPG", train), ("chair_final/222_0.JPG", test)):
            packed.writestr(f"Stanford_Online_Products/{name}", picture(len(rows)))
        packed.writestr("Stanford_Online_Products/chair_final/333_1.JPG", picture(33))
        for part, rows in (("train", train), ("test", test)):
            lines = ["image_id class_id super_class_id path", *rows]
            packed.writestr(f"Stanford_Online_Products/Ebay_{part}.txt", "\n".join(lines))
        packed.writestr("__MACOSX/Stanford_Online_Products/bicycle_final/._111_0.JPG", b"x")


def test_sop(tmp_path):
    path = tmp_path / "Stanford_Online_Products.zip"
    test = ["59552 11319 2 chair_final/222_0.JPG", "59553 11319 2 chair_final/333_1.JPG"]
    stanford_online_products(path, ["1 1 1 bicycle_final/111_0.JPG"], test)
    folder = prepare("sop", [path], root=tmp_path / "data", verify=False)
    assert tree(folder) == ["test/11319/222_0.JPG", "test/11319/333_1.JPG", "train/00001/111_0.JPG"]
    assert (folder / "test/11319/333_1.JPG").read_bytes() == picture(33)
    with pytest.raises(DataError, match=r"train: 1 images, expected 59,551"):
        prepare("sop", [path], root=tmp_path / "other")
    stanford_online_products(path, ["1 1 1 ../../evil.JPG"], test)
    with pytest.raises(DataError, match=r"Ebay_train.txt, line 2: '1 1 1 ../../evil.JPG' is not"):
        prepare("sop", [path], root=tmp_path / "other", verify=False)


def test_cub200(tmp_path):
    names = ["001.Black_footed_Albatross/a_1.jpg", "100.Brown_Pelican/b_2.jpg", "101.White_Pelican/c_3.jpg"]
    images = {f"CUB_200_2011/images/{name}": picture(i) for i, name in enumerate(names)}
    other = {"attributes.txt": b"1 x", "CUB_200_2011/images.txt": b"1 x", "CUB_200_2011/images/._001.jpg": b"x"}
    tar(tmp_path / "CUB_200_2011.tgz", other | images, "w:gz")
    folder = prepare("cub200", [tmp_path], root=tmp_path / "data", verify=False)
    assert tree(folder) == [f"test/{names[2]}", f"train/{names[0]}", f"train/{names[1]}"]
    assert (folder / "test" / names[2]).read_bytes() == picture(2)


@pytest.mark.parametrize(
    ("name", "archive", "root"),
    [("cub", "CUB_200_2011.tgz", "CUB_200_2011/"), ("nabirds", "nabirds.tar.gz", "nabirds/")],
)
def test_birds_by_their_official_split(tmp_path, name, archive, root):
    images = ["001.Albatross/a.jpg", "001.Albatross/b.jpg", "150.Thrasher/c.jpg"]
    lists = {"images.txt": "".join(f"{i} {image}\n" for i, image in enumerate(images)), "classes.txt": "1 x\n"}
    lists["train_test_split.txt"] = "0 1\n1 0\n2 0\n"
    content = {f"{root}images/{image}": picture(i) for i, image in enumerate(images)}
    tar(tmp_path / archive, content | {root + file: text.encode() for file, text in lists.items()}, "w:gz")
    folder = prepare(name, [tmp_path], root=tmp_path / "data", verify=False)
    assert tree(folder) == [f"test/{images[1]}", f"test/{images[2]}", f"train/{images[0]}"]
    assert (folder / "test" / images[2]).read_bytes() == picture(2)
    for wrong, words in (("0 1\n", "different images"), ("", "is missing"), ("0 1 2\n", "two words")):
        tar(
            tmp_path / archive,
            content
            | {root + "images.txt": lists["images.txt"].encode(), root + "train_test_split.txt": wrong.encode()},
            "w:gz",
        )
        with pytest.raises(DataError, match=words):
            prepare(name, [tmp_path], root=tmp_path / "other", verify=False)
    outside = {root + "images.txt": b"0 ../../x.jpg\n", root + "train_test_split.txt": b"0 1\n"}
    tar(tmp_path / archive, outside, "w:gz")
    with pytest.raises(DataError, match="outside of images/"):
        prepare(name, [tmp_path], root=tmp_path / "other", verify=False)


def test_dogs_by_their_official_split(tmp_path):
    files = ["n02085620-Chihuahua/n02085620_1.jpg", "n02085620-Chihuahua/n02085620_2.jpg", "n02116738-dhole/n_3.jpg"]
    tar(tmp_path / "images.tar", {f"Images/{file}": picture(i) for i, file in enumerate(files)})
    lists = {}
    for part, listed in (("train", files[:1]), ("test", files[1:])):
        cells = np.array([[file] for file in listed], dtype=object)
        buffer = io.BytesIO()
        scipy.io.savemat(buffer, {"file_list": cells})
        lists[f"{part}_list.mat"] = buffer.getvalue()
    tar(tmp_path / "lists.tar", lists)
    folder = prepare("stanford_dogs", [tmp_path], root=tmp_path / "data", verify=False)
    assert tree(folder) == [f"test/{files[1]}", f"test/{files[2]}", f"train/{files[0]}"]
    tar(tmp_path / "lists.tar", {"train_list.mat": lists["train_list.mat"]})
    with pytest.raises(DataError, match="does not hold the lists"):
        prepare("stanford_dogs", [tmp_path], root=tmp_path / "other", verify=False)


def test_cars196(tmp_path):
    tar(tmp_path / "car_ims.tgz", {f"car_ims/{i:06d}.jpg": picture(i) for i in range(1, 5)}, "w:gz")
    kind = [("relative_im_path", "O"), ("bbox_x1", "O"), ("class", "O"), ("test", "O")]
    rows = [(f"car_ims/{i:06d}.jpg", 1, number, i % 2) for i, number in ((1, 1), (2, 98), (3, 99), (4, 196))]
    labels = tmp_path / "cars_annos.mat"
    scipy.io.savemat(labels, {"annotations": np.array(rows, dtype=kind)[None], "class_names": ["AM", "BM"]})
    folder = prepare("cars196", [tmp_path], root=tmp_path / "data", verify=False)
    assert tree(folder) == [
        "test/099/000003.jpg", "test/196/000004.jpg", "train/001/000001.jpg", "train/098/000002.jpg"
    ]  # fmt: skip
    assert (folder / "test/099/000003.jpg").read_bytes() == picture(3)
    scipy.io.savemat(labels, {"annotations": np.array([("../x.jpg", 1, 1, 0)], dtype=kind)})
    with pytest.raises(DataError, match=r"'../x.jpg' of class 1 is not an image"):
        prepare("cars196", [tmp_path], root=tmp_path / "other", verify=False)
    labels.write_bytes(b"MATLAB 5.0 of something")
    with pytest.raises(DataError, match=r"cars_annos.mat does not hold the annotations"):
        prepare("cars196", [tmp_path], root=tmp_path / "other", verify=False)


def scenes(root, seed=0):
    """SceneParse with instances: random blocks of wall, sky, bed (8), window (9) and flag (150), a few instances."""
    rng = np.random.default_rng(seed)
    for part, split in (("training", "train"), ("validation", "val")):
        for number in range(2):
            name = f"ADE_{split}_{number + 1:08d}"
            semantic = np.kron(rng.choice([0, 1, 3, 8, 9, 150], (4, 5)), np.ones((3, 3))).astype(np.uint8)
            instances = np.zeros((12, 15, 3), np.uint8)
            for k, red in enumerate((1, 2, 100, 1), 1):
                y, x = rng.integers(0, 9), rng.integers(0, 12)
                instances[y : y + 3, x : x + 3] = (red, k, 0)
            for kind, array in (("annotations", semantic), ("annotations_instance", instances)):
                (root / kind / part).mkdir(parents=True, exist_ok=True)
                Image.fromarray(array).save(root / kind / part / f"{name}.png")
            (root / "images" / part).mkdir(parents=True, exist_ok=True)
            photo = Image.fromarray(rng.integers(0, 255, (12, 15, 3), dtype=np.uint8))
            photo.save(root / "images" / part / f"{name}.jpg")
    lines = [f"{i}\t0.1\t1\t1\tclass{i}, other" for i in range(1, 151)]
    (root / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tName", *lines]))
    return root


def test_ade20k_as_panoptic_and_instance_files(tmp_path):
    """Each pixel by itself: an instance before stuff, and nothing where a thing has no instance."""
    root = scenes(tmp_path / "ADEChallengeData2016")
    folder = prepare("ade20k_panoptic", [root], root=tmp_path / "data", verify=False)
    maps, boxes = open_as(str(folder), LabelMaps), open_objects(str(folder))
    assert list(maps) == list(boxes) == ["train", "val"]
    things = {1: 8, 2: 9, 100: 150}
    for split, source in maps.items():
        part = {"train": "training", "val": "validation"}[split]
        assert source.target.classes == tuple(f"class{i}" for i in range(1, 151))
        for i, name in enumerate(source.ids):
            stem = name.rpartition("/")[2].removesuffix(".jpg")
            semantic, instances = (
                np.array(Image.open(root / kind / part / f"{stem}.png")).tolist()
                for kind in ("annotations", "annotations_instance")
            )
            found, wanted = source.target.maps.read_map(i), np.full((12, 15), -1)
            of_number = {}
            for y in range(12):
                for x in range(15):
                    red, green, _ = instances[y][x]
                    if green:
                        wanted[y, x] = things[red] - 1
                        of_number.setdefault(green, (things[red], []))[1].append((y, x))
                    elif semantic[y][x] in (1, 3):
                        wanted[y, x] = semantic[y][x] - 1
            np.testing.assert_array_equal(found.semantic, wanted)
            objects = boxes[split].target.objects[i]
            named = [boxes[split].target.classes[c] for c in objects.classes]
            assert len(objects) == len(of_number) == len(np.unique(found.instances[found.instances > 0]))
            for k, (kind, pixels) in enumerate(of_number[number] for number in sorted(of_number)):
                ys, xs = zip(*pixels, strict=True)
                assert len({int(found.instances[place]) for place in pixels}) == 1
                assert objects.boxes[k].tolist() == [min(xs), min(ys), max(xs) + 1, max(ys) + 1]
                assert named[k] == f"class{kind}" and objects.areas[k] == len(pixels)
                bitmap = masks.decode(boxes[split].masks_of(i)[k])
                assert set(zip(*map(np.ndarray.tolist, np.nonzero(bitmap)), strict=True)) == set(pixels)
        assert not any(source.target.maps.maps.read(i, 1000).contradictions for i in range(len(source)))
        listed = json.loads((folder / f"annotations/panoptic_{split}.json").read_text())["annotations"]
        for own in listed:
            semantic = np.array(Image.open(root / "annotations" / part / own["file_name"])).tolist()
            areas = Counter(value - 1 for row in semantic for value in row if value in (1, 3))  # below instances, too
            stuff = [one for one in own["segments_info"] if one["category_id"] in (0, 2)]
            assert {one["category_id"]: one["area"] for one in stuff} == areas
            for one in stuff:
                places = [(x, y) for y in range(12) for x in range(15) if semantic[y][x] - 1 == one["category_id"]]
                xs, ys = zip(*places, strict=True)
                assert one["bbox"] == [min(xs), min(ys), max(xs) - min(xs) + 1, max(ys) - min(ys) + 1]


def test_what_is_no_ade20k_with_instances_is_named(tmp_path):
    root = scenes(tmp_path / "ADEChallengeData2016")
    file = root / "annotations_instance" / "training" / "ADE_train_00000002.png"
    broken = np.array(Image.open(file))
    broken[0, :2] = ((1, 9, 0), (2, 9, 0))
    Image.fromarray(broken).save(file)
    with pytest.raises(DataError, match=r"ADE_train_00000002\.png: the instance 9 has the classes \[1, 2\]"):
        prepare("ade20k_panoptic", [root], root=tmp_path / "data", verify=False)
    file.unlink()
    with pytest.raises(DataError, match=r"lacks 1 of 2 maps: ADE_train_00000002\.png"):
        prepare("ade20k_panoptic", [root], root=tmp_path / "data", verify=False)
    with pytest.raises(UsageError, match="missing: annotations_instance"):
        (root / "annotations_instance").rename(tmp_path / "elsewhere")
        prepare("ade20k_panoptic", [root], root=tmp_path / "data", verify=False)


class TestCommand:
    def test_lists_what_it_knows(self):
        lines = CliRunner().invoke(command, ["prepare"]).output.splitlines()
        assert len(lines) == len(module.MAKERS)
        assert any(line.startswith("imagenet1k") and "ILSVRC2012_img_val.tar" in line for line in lines)

    def test_prepares(self, imagenet, tmp_path):
        words = ["prepare", "imagenet1k", "--archive", str(imagenet), "--out", str(tmp_path / "d"), "--no-verify"]
        result = CliRunner().invoke(command, words)
        assert result.exit_code == 0 and str(tmp_path / "d" / "imagenet") in result.output

    def test_mistakes(self):
        for words, message in (
            (["imagenet"], "or 'imagenet1k'?"),
            (["imagenet1k"], "missing: ILSVRC2012_img_train.tar"),
            (["imagenet1k", "--archive", "nowhere.tar"], "there is no nowhere.tar"),
            (["--no-verify"], "NAME is missing"),
        ):
            error = CliRunner().invoke(command, ["prepare", *words]).exception
            assert isinstance(error, UsageError) and message in str(error)

    def test_every_set_is_a_data_set_of_the_benchmarks(self):
        for name in module.MAKERS:
            settings = module._settings(name)
            folder = module.sets.SETS[name].folder if name in module.sets.SETS else settings["folder"]
            looked_for = (str(settings["folder"]), str(settings.get("test_folder", "")))
            assert any(place == folder or place.startswith(f"{folder}/") for place in looked_for), name


def cuhk03_cells(path, pairs=2, people=3):
    """MATLAB's cells of cells of pictures, stored by columns; one cell is empty. Returns name -> picture, (H, W, 3)."""
    h5py = pytest.importorskip("h5py")
    found = {}
    with h5py.File(path, "w") as file:
        for boxes in ("detected", "labeled"):
            outer = np.empty((1, pairs), h5py.ref_dtype)
            for pair in range(pairs):
                inner = np.empty((10, people), h5py.ref_dtype)
                for number, person in np.ndindex(inner.shape):
                    place = f"#refs#/{boxes}{pair}_{person}_{number}"
                    image = np.random.default_rng(len(found)).integers(0, 256, (6, 4, 3), np.uint8)
                    empty = number == 3 and person == 1
                    file[place] = np.zeros(2, np.uint64) if empty else image.T
                    inner[number, person] = file[place].ref
                    if not empty:
                        camera = 1 if number < 5 else 2
                        found[f"images_{boxes}/{pair + 1}_{person + 1:03d}_{camera}_{number + 1:02d}.png"] = image
                file[f"#refs#/{boxes}{pair}"] = inner
                outer[0, pair] = file[f"#refs#/{boxes}{pair}"].ref
            file[boxes] = outer
    return found


def test_cuhk03_is_read_from_its_matlab_file(tmp_path):
    images = cuhk03_cells(tmp_path / "cuhk-03.mat")
    for boxes in ("detected", "labeled"):
        names = [name.rpartition("/")[2] for name in images if boxes in name]
        rows = {"train_idx": [1, 2], "query_idx": [11, 16], "gallery_idx": [12, 13, 14, 15]}
        lists = {"filelist": np.array(names, object), "labels": [int(name[2:5]) for name in names], **rows}
        scipy.io.savemat(tmp_path / f"cuhk03_new_protocol_config_{boxes}.mat", lists)
    folder = prepare("cuhk03", [tmp_path], root=tmp_path / "data", verify=False)
    assert [path for path in tree(folder) if path.endswith(".png")] == sorted(images)
    for name, image in images.items():
        np.testing.assert_array_equal(np.asarray(Image.open(folder / name)), image)
    assert {split: len(part) for split, part in open_data(str(folder)).items()} == {"train": 2, "test": 6}
    with pytest.raises(DataError, match=r"cuhk03: all: 116 images, expected 28,193"):
        prepare("cuhk03", [tmp_path], root=tmp_path / "whole")
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "cuhk-03.mat", "w") as file:
        file["detected"] = np.zeros((1, 5))
    with pytest.raises(DataError, match=r"cuhk-03.mat does not have the cells of CUHK03"):
        prepare("cuhk03", [tmp_path], root=tmp_path / "other", verify=False)
    (tmp_path / "cuhk-03.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(DataError, match="damaged or no HDF5 file"):
        prepare("cuhk03", [tmp_path], root=tmp_path / "other", verify=False)


@pytest.mark.parametrize("around", ["", "mvtec_anomaly_detection/"])
def test_anomalies_are_unpacked_as_they_are_read(tmp_path, around):
    parts = ("train/good/000", "test/good/000", "test/scratch/000", "ground_truth/scratch/000_mask")
    files = {f"{around}screw/{name}.png": picture(9, "PNG") for name in parts}
    tar(tmp_path / "mvtec_anomaly_detection.tar.xz", {**files, f"{around}license.txt": b"CC"}, "w:xz")
    mvtec = prepare("mvtec", [tmp_path], root=tmp_path / "data", verify=False)
    assert mvtec == tmp_path / "data" / "mvtec"
    assert {split: len(part) for split, part in open_as(str(mvtec), Anomalies).items()} == {"train": 1, "test": 2}
    loco = [f"screw_bag/{name}.png" for name in (*parts[:3], "validation/good/000", "ground_truth/scratch/000/000")]
    tar(tmp_path / "mvtec_loco_anomaly_detection.tar.xz", dict.fromkeys(loco, picture(9, "PNG")), "w:xz")
    folder = prepare("mvtec_loco", [tmp_path], root=tmp_path / "data", verify=False)
    assert len(tree(folder)) == 5 and len(open_as(str(folder), Anomalies)["train"]) == 1
    rows = ["object,split,label,image,mask", "pcb1,train,normal,pcb1/Data/Images/Normal/0.JPG,"]
    rows += ["pcb1,test,anomaly,pcb1/Data/Images/Anomaly/0.JPG,pcb1/Data/Masks/Anomaly/0.png"]
    rows += ["pcb1,test,normal,pcb1/Data/Images/Normal/1.JPG,"]
    listed = [cell for row in rows[1:] for cell in row.split(",")[3:] if cell]
    visa = {name: picture(0, "PNG" if name.endswith("png") else "JPEG") for name in listed}
    tar(tmp_path / "VisA_20220922.tar", {**visa, "split_csv/1cls.csv": "\n".join(rows).encode()})
    folder = prepare("visa", [tmp_path], root=tmp_path / "data", verify=False)
    assert {split: len(part) for split, part in open_as(str(folder), Anomalies).items()} == {"train": 1, "test": 2}
    with pytest.raises(DataError, match=r"VisA_20220922.tar is damaged or another file: its MD5"):
        prepare("visa", [tmp_path], root=tmp_path / "other")


def test_re_identification_is_unpacked_as_it_is_read(tmp_path):
    market = ["bounding_box_train/0002_c1s1_000451_03.jpg", "query/0001_c1s1_001051_00.jpg"]
    market += [
        f"bounding_box_test/{name}" for name in ("0001_c2s1_000301_00.jpg", "-1_c1s1_000401_03.jpg", "Thumbs.db")
    ]
    with zipfile.ZipFile(tmp_path / "Market-1501-v15.09.15.zip", "w") as packed:
        for name in [*market, "gt_bbox/0001_c1s1_001051_00.jpg", "readme.txt"]:
            packed.writestr(f"Market-1501-v15.09.15/{name}", picture(9))
    folder = prepare("market1501", [tmp_path], root=tmp_path / "data", verify=False)
    assert tree(folder) == sorted(market)
    assert {split: len(part) for split, part in open_data(str(folder)).items()} == {"train": 1, "test": 2}
    with pytest.raises(DataError, match=r"market1501: all: 4 images, expected 36,036"):
        prepare("market1501", [tmp_path], root=tmp_path / "whole")
    names = {"train": ["0000/0000_000_01_x.jpg"], "val": ["0000/0000_001_05_x.jpg"]}
    names |= {"query": ["0001/0001_000_01_x.jpg"], "gallery": ["0001/0001_001_05_x.jpg"]}
    lists = {f"list_{split}.txt": f"{own[0]} {own[0][3]}\n".encode() for split, own in names.items()}
    images = {
        f"{'train' if split in ('train', 'val') else 'test'}/{own[0]}": picture(9) for split, own in names.items()
    }
    files = {f"MSMT17_V1/{name}": content for name, content in {**lists, **images}.items()}
    tar(tmp_path / "MSMT17_V1.tar.gz", files, "w:gz")
    folder = prepare("msmt17", [tmp_path], root=tmp_path / "data", verify=False)
    assert {split: len(part) for split, part in open_data(str(folder)).items()} == {"train": 1, "test": 2}
    with pytest.raises(DataError, match=r"train: 2 images, expected 32,621; test: 2 images, expected 93,820"):
        prepare("msmt17", [tmp_path], root=tmp_path / "whole")
