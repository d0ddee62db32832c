"""Layouts of the data sets that `sslbench data prepare` makes of official archives."""

import contextlib
import dataclasses
import functools
import gzip
import io
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from sslbench.data.containers.hdf5 import open_hdf5
from sslbench.data.containers.members import safe_name
from sslbench.data.prepare.layout import BLOCK_BYTES, NewFiles, Official, listed_lines, members
from sslbench.errors import DataError, UsageError

# ImageNet (ILSVRC2012): a tar of tars with the training images, a flat tar of validation images, the devkit.

TRAIN, VAL, DEVKIT = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"
IMAGENET_ARCHIVES = (
    Official(TRAIN, "1d675b47d978889d74fa0da5fadfb00e"),
    Official(VAL, "29b22e2961454d5413ddabcf34fc5622"),
    Official(DEVKIT, "fa75699e90414af021442c21a62c3abf"),
)
_VAL_IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
_TRAIN_IMAGE = re.compile(r"n\d{8}_\d+\.JPEG")
_IMAGENET_CLASS = re.compile(r"(n\d{8})\.tar")


def imagenet1k(archives: Mapping[str, Path]) -> NewFiles:
    """Yield train/WNID/ and val/WNID/."""
    classes = _validation_classes(archives[DEVKIT])
    for name, content in members(archives[VAL]):
        found = _VAL_IMAGE.fullmatch(PurePosixPath(name).name)
        if found is None or not 1 <= int(found[1]) <= len(classes):
            raise DataError(f"{archives[VAL]}: {name!a} is not a validation image of the devkit")
        yield f"val/{classes[int(found[1]) - 1]}/{found[0]}", content
    for name, content in members(archives[TRAIN]):
        wnid = _IMAGENET_CLASS.fullmatch(name)
        if wnid is None:
            raise DataError(f"{archives[TRAIN]}: {name!a} is not the tar of a class")
        yield from _class_images(archives[TRAIN], wnid[1], content())


def _class_images(archive: Path, wnid: str, content: bytes) -> NewFiles:
    """Yield the images in the inner tar of one class, of about 130 MB."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as inner:
            for member in inner:
                if not member.isfile() or not _TRAIN_IMAGE.fullmatch(member.name):
                    raise DataError(f"{archive}: {member.name!a} in {wnid}.tar is not a training image")
                if member.offset_data + member.size > len(content):
                    raise DataError(f"{archive}: {wnid}.tar ends early", "Download it again; written images are kept.")
                own = slice(member.offset_data, member.offset_data + member.size)
                yield f"train/{wnid}/{member.name}", functools.partial(bytes, memoryview(content)[own])
    except tarfile.TarError as error:
        raise DataError(f"{archive}: {wnid}.tar is damaged: {error}", "Download it again.") from error


def _validation_classes(devkit: Path) -> list[str]:
    """Return the WordNet id of each validation image, in order of the images' numbers."""
    texts = {
        PurePosixPath(name).name: content() for name, content in members(devkit) if name.endswith(_IMAGENET_NEEDED)
    }
    if len(texts) != len(_IMAGENET_NEEDED):
        raise DataError(f"{devkit} does not hold {' and '.join(_IMAGENET_NEEDED)}")
    import scipy.io

    synsets: Any = scipy.io.loadmat(io.BytesIO(texts["meta.mat"]), squeeze_me=True)["synsets"]
    # meta.mat lists the inner nodes of WordNet's tree, too; classes are the leaves.
    wnids = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets if int(row["num_children"]) == 0}
    try:
        numbers = [int(line) for line in texts["ILSVRC2012_validation_ground_truth.txt"].split()]
        classes = [wnids[number] for number in numbers]
    except (KeyError, ValueError) as error:
        raise DataError(f"{devkit}: the ground truth names a class that meta.mat does not know: {error}") from error
    if wrong := [wnid for wnid in set(classes) if not re.fullmatch(r"n\d{8}", wnid)]:
        raise DataError(f"{devkit}: {wrong[0]!a} is not a WordNet id")
    return classes


_IMAGENET_NEEDED = ("data/meta.mat", "data/ILSVRC2012_validation_ground_truth.txt")


# Places205: all images in one packed tar, the parts in two lists of another.

_PLACES_IMAGES, _PLACES_LISTS = "imagesPlaces205_resize.tar.gz", "trainvalsplit_places205.tar.gz"
PLACES_ARCHIVES = (Official(_PLACES_IMAGES, others=("imagesPlaces205_resize.tar",)), Official(_PLACES_LISTS))
_PLACES_ROOT = "data/vision/torralba/deeplearning/images256/"


def places205(archives: Mapping[str, Path]) -> NewFiles:
    """Yield train/SCENE/ and val/SCENE/; 'a/apartment_building/outdoor' is the scene apartment_building-outdoor."""
    parts = _places_parts(archives[_PLACES_LISTS])
    for name, content in members(archives[_PLACES_IMAGES]):
        path = name.partition(_PLACES_ROOT)[2] or name
        if part := parts.get(path):
            _, *scene, image = path.split("/")
            yield f"{part}/{'-'.join(scene)}/{image}", content


def _places_parts(lists: Path) -> dict[str, str]:
    """Return path of an image below the root -> train or val."""
    parts: dict[str, str] = {}
    for part, where, line in listed_lines(lists, {"train_places205.csv": "train", "val_places205.csv": "val"}):
        path = line.rpartition(" ")[0]
        if safe_name(path) != path or path.count("/") < 2:
            raise DataError(f"{where} is not 'a/SCENE/IMAGE.jpg NUMBER'")
        parts[path] = part
    return parts


# UCF101: one frame from the middle of each video, split 1.
# The videos are offered as a .rar, which needs a program of its own: it has to be unpacked before.

_UCF_VIDEOS, _UCF_LISTS = "UCF-101", "UCF101TrainTestSplits-RecognitionTask.zip"
UCF_ARCHIVES = (Official(_UCF_VIDEOS, others=("UCF101.rar",)), Official(_UCF_LISTS))
_UCF_LINE = re.compile(r"(\w+)/(v_\w+)\.avi(?: \d+)?")


def ucf101(archives: Mapping[str, Path]) -> NewFiles:
    """Return train/ACTION/ and test/ACTION/ of JPEGs."""
    videos = archives[_UCF_VIDEOS]
    if not videos.is_dir():
        raise UsageError(
            f"Python cannot read the compression of {videos}",
            f"Unpack it (unrar x {videos.name}, or bsdtar -xf) and give the folder: --archive {_UCF_VIDEOS}",
        )
    return (
        (f"{part}/{action}/{video}.jpg", functools.partial(_middle_frame, videos / action / f"{video}.avi"))
        for part, action, video in _ucf_listed(archives[_UCF_LISTS])
    )


def _ucf_listed(lists: Path) -> list[tuple[str, str, str]]:
    """Return (train or test, action, video) of split 1."""
    found = []
    for part, where, line in listed_lines(lists, {"trainlist01.txt": "train", "testlist01.txt": "test"}):
        match = _UCF_LINE.fullmatch(line)
        if match is None:
            raise DataError(f"{where} is not 'ACTION/VIDEO.avi'")
        found.append((part, match[1], match[2]))
    return found


def _middle_frame(video: Path) -> bytes:
    """Decode a video up to its middle and encode that frame as JPEG, quality 95."""
    import cv2

    if not video.is_file():
        raise DataError(f"there is no {video}", "Unpack the whole archive.")
    capture = cv2.VideoCapture(str(video))
    try:
        middle = int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) // 2
        frame = None
        for _ in range(middle + 1):  # seeking to a frame is inexact in these files
            good, picture = capture.read()
            frame = picture if good else frame
    finally:
        capture.release()
    if frame is None:
        raise DataError(f"{video} has no frame that can be decoded", "Unpack or download it again.")
    done, encoded = cv2.imencode(".jpg", frame, [cv2.IMWRITE_JPEG_QUALITY, 95])
    if not done:
        raise DataError(f"{video}: its middle frame cannot be written as JPEG")
    return bytes(encoded)


def png(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Encode an array (h, w) of grey values, or (h, w, 3), without loss."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


# dSprites: 737,280 shapes of 64 x 64 pixels in one .npz; labels are bins of a factor, as VTAB has them.

_DSPRITES = "dsprites_ndarray_co1sh3sc6or40x32y32_64x64.npz"
DSPRITES_ARCHIVES, DSPRITES_SPACE = (Official(_DSPRITES),), 737_280 * BLOCK_BYTES
_CHUNK = 4096  # images
_ORIENTATION, _X = 3, 4  # columns of the factors: colour, shape, scale, orientation, x, y


def dsprites_location(archives: Mapping[str, Path]) -> NewFiles:
    """Return a folder per bin of the x position: 16 bins of two of its 32 values."""
    return _dsprites(archives, _X, 32)


def dsprites_orientation(archives: Mapping[str, Path]) -> NewFiles:
    """Return a folder per bin of the angle: 16 bins of its 40 values."""
    return _dsprites(archives, _ORIENTATION, 40)


def _dsprites(archives: Mapping[str, Path], column: int, values: int) -> NewFiles:
    path = archives[_DSPRITES]
    try:
        with zipfile.ZipFile(path) as packed:
            with packed.open("latents_classes.npy") as file:
                factors = np.concatenate(list(_dsprites_rows(file)))
            with packed.open("imgs.npy") as file:
                number = 0
                for images in _dsprites_rows(file):
                    for image in images:
                        label = int(factors[number, column]) * 16 // values
                        pixels = np.asarray(image * 255, np.uint8)
                        yield f"{label:02d}/{number:06d}.png", functools.partial(png, pixels)
                        number += 1
    except (zipfile.BadZipFile, KeyError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{path} is damaged or another file: {error}", "Download it again.") from error


def _dsprites_rows(file: IO[bytes]) -> Iterator[npt.NDArray[np.generic]]:
    """Yield an array in an .npy stream, some rows at a time: all images together take 3 GB."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    if by_columns or dtype.hasobject:
        raise ValueError("an array in an order or of a type that dSprites does not have")
    row = int(np.prod(shape[1:])) * dtype.itemsize
    for begin in range(0, shape[0], _CHUNK):
        count = min(_CHUNK, shape[0] - begin)
        content = file.read(row * count)
        if len(content) != row * count:
            raise EOFError("it ends early")
        yield np.frombuffer(content, dtype).reshape(count, *shape[1:])


# Small NORB: images and their angles in six arrays of LeCun's own format.

_NORB = {"train": "smallnorb-5x46789x9x18x6x2x96x96-training", "test": "smallnorb-5x01235x9x18x6x2x96x96-testing"}
NORB_ARCHIVES = tuple(
    Official(f"{name}-{kind}.mat.gz", others=(f"{name}-{kind}.mat",))
    for name in _NORB.values()
    for kind in ("dat", "info")
)
NORB_SPACE = 2 * 24_300 * 2 * BLOCK_BYTES
_NORB_DTYPES = {0x1E3D4C54: "<i4", 0x1E3D4C55: "<u1"}


def small_norb_azimuth(archives: Mapping[str, Path]) -> NewFiles:
    """Return a folder per azimuth, 000 to 340 degrees in steps of 20."""
    return _small_norb(archives, lambda info: f"{10 * int(info[2]):03d}")


def small_norb_elevation(archives: Mapping[str, Path]) -> NewFiles:
    """Return a folder per elevation, 30 to 70 degrees in steps of 5."""
    return _small_norb(archives, lambda info: str(30 + 5 * int(info[1])))


def _small_norb(archives: Mapping[str, Path], label: Callable[[npt.NDArray[np.int32]], str]) -> NewFiles:
    for part, name in _NORB.items():
        images = _norb_array(archives[f"{name}-dat.mat.gz"])
        infos = _norb_array(archives[f"{name}-info.mat.gz"])
        if images.ndim != 4 or infos.shape != (len(images), 4):
            raise DataError(f"{archives[f'{name}-dat.mat.gz']}: {images.shape} images and {infos.shape} angles")
        for number, (pair, info) in enumerate(zip(images, infos, strict=True)):
            # The image of the first camera.
            yield f"{part}/{label(info)}/{number:05d}.png", functools.partial(png, pair[0])


def _norb_array(path: Path) -> npt.NDArray[np.generic]:
    """Read an array: magic number of its type, number of dimensions, at least three sizes, values; little-endian."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        magic, n = (int(value) for value in np.frombuffer(content, "<i4", 2))
        shape = tuple(int(value) for value in np.frombuffer(content, "<i4", n, offset=8))
        # At least three sizes are stored, whatever the number of dimensions.
        values = np.frombuffer(content, _NORB_DTYPES[magic], offset=4 * (2 + max(n, 3)))
        return values.reshape(shape)
    except (EOFError, gzip.BadGzipFile, KeyError, ValueError) as error:
        raise DataError(f"{path} is not an array of small NORB: {error}", "Download it again.") from error


# CUHK03: cells of a MATLAB file, 5 pairs of cameras x people x 10 images, the first five of the first camera.

CUHK03_FOLDER, CUHK03_SAMPLES = "cuhk03", {"all": 28_193}
_CUHK03_BOXES = {boxes: f"cuhk03_new_protocol_config_{boxes}.mat" for boxes in ("detected", "labeled")}
CUHK03_ARCHIVES = tuple(map(Official, ("cuhk-03.mat", *_CUHK03_BOXES.values())))


def cuhk03(archives: Mapping[str, Path]) -> NewFiles:
    """Yield images_detected/, images_labeled/ and the lists of the protocol of Zhong et al. (CVPR 2017)."""
    path = archives["cuhk-03.mat"]
    with open_hdf5(path) as cells, _cells_of(path):
        for boxes, lists in _CUHK03_BOXES.items():
            yield lists, archives[lists].read_bytes
            for pair, people in enumerate(cells[boxes][0], 1):
                # MATLAB stores by columns, so all arrays are transposed.
                for person, pictures in enumerate(cells[people][()].T, 1):
                    for number, picture in enumerate(pictures, 1):
                        if cells[picture].ndim == 3:  # empty cells have none
                            name = f"{pair}_{person:03d}_{1 if number <= 5 else 2}_{number:02d}.png"
                            yield f"images_{boxes}/{name}", functools.partial(_cell, path, cells, picture)


def _cell(path: Path, cells: Any, reference: Any) -> bytes:
    with _cells_of(path):
        return png(np.ascontiguousarray(cells[reference][()].T))


@contextlib.contextmanager
def _cells_of(path: Path) -> Iterator[None]:
    """Refuse a file with other arrays."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path} does not have the cells of CUHK03: {error}", "Take cuhk-03.mat of cuhk03_release.zip."
        ) from error


# Data sets that are only unpacked: archives with the layout of the benchmarks, up to a folder's name.


@dataclasses.dataclass(frozen=True)
class UnpackedSet:
    """Data set that is only unpacked.

    Attributes:
        folder: below the user's data folder.
        archives: all of them.
        roots: folder at the beginning of the members' names -> folder in place of it; '' is the data set's own.
        samples: images of each part, or of "all"; empty: those of its benchmark.
    """

    folder: str
    archives: tuple[Official, ...]
    roots: Mapping[str, str]
    samples: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def files(self, archives: Mapping[str, Path]) -> NewFiles:
        """Yield all members below one of the roots."""
        for path in archives.values():
            found = False
            for name, content in members(path):
                root = next((root for root in self.roots if name.startswith(root)), None)
                if root is not None:
                    found = True
                    yield self.roots[root] + name.removeprefix(root), content
            if not found:
                raise DataError(f"{path} holds nothing below {' or '.join(filter(None, self.roots))}")


SETS: Mapping[str, UnpackedSet] = {
    "coco14": UnpackedSet(
        "coco",
        tuple(map(Official, ("annotations_trainval2014.zip", "train2014.zip", "val2014.zip"))),
        {"annotations/": "annotations/", "train2014/": "train2014/", "val2014/": "val2014/"},
    ),
    "imagenet_a": UnpackedSet("imagenet-a", (Official("imagenet-a.tar"),), {"imagenet-a/": ""}),
    "imagenet_r": UnpackedSet("imagenet-r", (Official("imagenet-r.tar"),), {"imagenet-r/": ""}),
    "imagenet_sketch": UnpackedSet("imagenet-sketch", (Official("ImageNet-Sketch.zip"),), {"sketch/": ""}),
    "imagenet_v2": UnpackedSet(
        "imagenetv2-matched-frequency-format-val",
        (Official("imagenetv2-matched-frequency.tar.gz"),),
        {"imagenetv2-matched-frequency-format-val/": ""},
    ),
    "inaturalist18": UnpackedSet(
        "inaturalist18",
        tuple(map(Official, ("train_val2018.tar.gz", "train2018.json.tar.gz", "val2018.json.tar.gz"))),
        {"train_val2018/": "train_val2018/", "train2018.json": "train2018.json", "val2018.json": "val2018.json"},
    ),
    "market1501": UnpackedSet(
        "market1501",
        (Official("Market-1501-v15.09.15.zip"),),
        {f"Market-1501-v15.09.15/{name}/": f"{name}/" for name in ("bounding_box_train", "bounding_box_test", "query")},
        {"all": 36_036},  # 12,936 of train, 3,368 queries, 19,732 in the gallery, of which 3,819 are junk
    ),
    "msmt17": UnpackedSet(
        "msmt17",
        (Official("MSMT17_V1.tar.gz"),),
        {"MSMT17_V1/": ""},
        {"train": 32_621, "test": 93_820},  # train has the images of list_val.txt, too
    ),
    "mvtec": UnpackedSet(
        "mvtec",
        (Official("mvtec_anomaly_detection.tar.xz", "eefca59f2cede9c3fc5b6befbfec275e"),),
        {"mvtec_anomaly_detection/": "", "": ""},
    ),
    "mvtec_loco": UnpackedSet(
        "mvtec_loco",
        (Official("mvtec_loco_anomaly_detection.tar.xz", "d40f092ac6f88433f609583c4a05f56f"),),
        {"mvtec_loco_anomaly_detection/": "", "": ""},
    ),
    "visa": UnpackedSet(
        "visa",
        (Official("VisA_20220922.tar", "ef908989b6dc701fc218f643c127a4de"),),
        {"VisA_20220922/": "", "VisA/": "", "": ""},
    ),
    "voc07": UnpackedSet(
        "VOCdevkit/VOC2007",
        (
            Official("VOCtrainval_06-Nov-2007.tar", "c52e279531787c972589f7e41ab4ae64"),
            Official("VOCtest_06-Nov-2007.tar", "b6e924de25625d8de591ea690078ad9f"),
        ),
        {"VOCdevkit/VOC2007/": ""},
    ),
}
"""Data set -> its archives and folders."""
