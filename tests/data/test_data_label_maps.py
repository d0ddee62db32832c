"""Label maps of every layout: exact classes and instances, as the files hold them; what is damaged is refused."""

import io
import json
import zipfile
import zlib

import numpy as np
import pytest
from helpers.few_bits import FEW_BITS, grey_png
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sample_data import nyu as nyu_sample
from scipy.io import savemat

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.maps.files import decode_pixels
from sslbench.data.maps.types import distinct
from sslbench.data.maps.values import decode_values
from sslbench.data.open import kind_alone, open_as, refuse_targets_of_pixels
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import MAX_PIXELS
from sslbench.targets.label_maps import IGNORED, Foreground, LabelMaps
from sslbench.targets.pixel_values import Boundaries
from sslbench_visbench.targets import Signals

WIDTH, HEIGHT = 8, 6
X = IGNORED


def draw(path, size=(WIDTH, HEIGHT), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(sum(str(path).encode())).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **options)


def write(path, array, palette=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(array))
    if palette is not None:
        image = Image.frombytes("P", image.size, np.asarray(array, dtype=np.uint8).tobytes())
        image.putpalette(np.asarray(palette, dtype=np.uint8).tobytes())
    image.save(path)


def grid(*values, dtype=np.uint8):
    """A 6 x 8 map whose columns hold the values, the last one repeated."""
    columns = [*values, *[values[-1]] * (WIDTH - len(values))]
    return np.tile(np.array(columns, dtype=dtype), (HEIGHT, 1))


def encode(ids):
    """Independent of the reader: three base-256 digits, lowest first."""
    digits = [[[i % 256, i // 256 % 256, i // 65536] for i in row] for row in ids.tolist()]
    return np.array(digits, dtype=np.uint8)


def columns(found):
    """The first row of a map, after checking that all rows are alike."""
    assert found is not None and (found == found[0]).all()
    return found[0].tolist()


# Folders of images and maps


@pytest.fixture
def pairs(tmp_path):
    """`pairs(a=array, ...)` writes images/a.jpg and masks/a.png."""

    def make(classes=("sky", "road", "tree"), **maps):
        for name, array in maps.items():
            draw(tmp_path / "images" / f"{name}.jpg")
            write(tmp_path / "masks" / f"{name}.png", array)
        if classes:
            (tmp_path / "classes.txt").write_text("\n".join(classes))
        return str(tmp_path)

    return make


def test_equal_names_are_pairs_and_lines_name_the_classes(pairs):
    source = open_as(pairs(b=grid(0, 2), a=grid(1)), LabelMaps)["all"]
    assert source.ids == ("a.jpg", "b.jpg") and source.target.classes == ("sky", "road", "tree")
    assert columns(source.target.maps.read_map(0).semantic) == [1] * 8
    found = source.target.maps.read_map(1)
    assert found.semantic.dtype == np.int32 and found.instances is None
    assert columns(found.semantic) == [0] + [2] * 7


def test_maps_are_not_taken_for_images_of_their_own(pairs, tmp_path):
    with pytest.raises(UsageError, match="not classes of whole images") as caught:
        refuse_targets_of_pixels(pairs(a=grid(0)))
    assert "check-data" in str(caught.value)
    refuse_targets_of_pixels(str(tmp_path / "images"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("classes.json", '["sky", "road", "tree"]'),
        ("labels.json", '{"sky": 0, "tree": 2, "road": 1}'),
        ("id2label.json", '{"0": "sky", "2": "tree", "1": "road"}'),
        ("labels.txt", "2: tree\n0: sky\n1: road\n"),
    ],
)
def test_lists_of_classes(pairs, tmp_path, name, content):
    spec = pairs(classes=(), a=grid(0, 1, 2))
    (tmp_path / name).write_text(content)
    source = open_as(spec, LabelMaps)["all"]
    assert [source.target.classes[c] for c in source.target.maps.read_map(0).semantic[0, :3]] == ["sky", "road", "tree"]


def test_without_names_the_values_are_the_classes(pairs):
    source = open_as(pairs(classes=(), a=grid(7, 255, 3), b=grid(3)), LabelMaps)["all"]
    assert source.target.classes == ("3", "7") and source.target.maps.coding.ignore == (255,)
    assert columns(source.target.maps.read_map(0).semantic) == [1, X, 0, 0, 0, 0, 0, 0]
    assert "named by value" in source.notes[0] and "255 are ignored" in source.notes[1]


def test_of_0_and_255_the_255_is_the_foreground(pairs):
    source = open_as(pairs(classes=(), a=grid(0, 255)), LabelMaps)["all"]
    assert source.target.classes == ("0", "255") and source.target.maps.coding.ignore == ()


def test_ignore_by_value_and_by_name(pairs):
    spec = pairs(a=grid(0, 1, 2))
    source = open_as(f"{spec}?ignore=0,tree", LabelMaps)["all"]
    assert source.target.classes == ("road",) and columns(source.target.maps.read_map(0).semantic) == [X, 0] + [X] * 6
    none = open_as(f"{pairs(classes=(), a=grid(7, 255, 3))}?ignore=none&classes=classes.txt", LabelMaps)["all"]
    assert none.target.classes == ("sky", "road", "tree")
    with pytest.raises(UsageError, match="'rod' of ignore= is neither a value nor a class"):
        open_as(f"{spec}?ignore=rod", LabelMaps)
    with pytest.raises(UsageError, match="no class is left"):
        open_as(f"{spec}?ignore=0,1,2", LabelMaps)


def test_ignore_none_makes_a_class_of_255(pairs):
    assert open_as(f"{pairs(classes=(), a=grid(7, 255, 3))}?ignore=none", LabelMaps)["all"].target.classes == (
        "3",
        "7",
        "255",
    )


@pytest.mark.parametrize("outside", [True, False])
def test_splits_inside_and_outside(tmp_path, outside):
    for split in ("training", "val"):
        images, maps = (f"{split}/images", f"{split}/labels") if outside else (f"images/{split}", f"labels/{split[:5]}")
        for stem in ("a", "b"):
            draw(tmp_path / images / f"{stem}.jpg")
            write(tmp_path / maps / f"{stem}_mask.png", grid(0, 1))
    (tmp_path / "classes.txt").write_text("no\nyes\n")
    found = open_as(str(tmp_path), LabelMaps)
    assert {split: len(source) for split, source in found.items()} == {"train": 2, "val": 2}
    assert columns(found["val"].target.maps.read_map(1).semantic) == [0] + [1] * 7


def test_other_names_of_folders(tmp_path):
    draw(tmp_path / "rgb" / "a.jpg")
    write(tmp_path / "truth" / "a.png", grid(0, 1))
    assert not kind_alone(str(tmp_path))
    source = open_as(f"{tmp_path}?images=rgb&maps=truth", LabelMaps)["all"]
    assert source.ids == ("a.jpg",) and columns(source.target.maps.read_map(0).semantic) == [0] + [1] * 7
    with pytest.raises(UsageError, match=r"there is no folder .*turth"):
        open_as(f"{tmp_path}?images=rgb&maps=turth", LabelMaps)
    with pytest.raises(UsageError, match="needs maps="):
        open_as(f"{tmp_path}?images=rgb", LabelMaps)


def test_orphans_are_left_out_and_listed(pairs, tmp_path):
    spec = pairs(a=grid(0))
    draw(tmp_path / "images" / "lonely.jpg")
    write(tmp_path / "masks" / "stray.png", grid(0))
    source = open_as(spec, LabelMaps)["all"]
    assert source.ids == ("a.jpg",)
    assert [path.rpartition("/")[2] for path in source.target.maps.without_map + source.target.maps.without_image] == [
        "lonely.jpg",
        "stray.png",
    ]


def test_colours_are_classes_where_the_list_says_so(pairs, tmp_path):
    road, sky = (128, 64, 128), (70, 130, 180)
    array = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    array[:], array[:, 3:] = road, sky
    spec = pairs(classes=(), a=array)
    (tmp_path / "classes.json").write_text(json.dumps({"sky": sky, "road": road}))
    assert columns(open_as(spec, LabelMaps)["all"].target.maps.read_map(0).semantic) == [1, 1, 1, 0, 0, 0, 0, 0]
    (tmp_path / "classes.json").unlink()
    assert open_as(spec, LabelMaps)["all"].target.classes == ("128,64,128", "70,130,180")


def test_a_value_that_is_no_class_is_refused(pairs):
    source = open_as(pairs(a=grid(0, 9, 7)), LabelMaps)["all"]
    with pytest.raises(DataError, match=r"a.png has values without a class: 7, 9\n.*ignore=255"):
        source.target.maps.read_map(0)


@pytest.mark.parametrize("save", [savemat, lambda file, arrays: np.savez(file, **arrays)])
def test_of_several_arrays_in_a_file_labels_are_the_map_and_depth_the_depth(save):
    file = io.BytesIO()
    save(file, {"depth": np.full((3, 4), 5.0), "labels": np.ones((3, 4)), "mask": np.zeros((3, 4))})
    assert (decode_pixels(file.getvalue(), "a", MAX_PIXELS).array == 1).all()
    assert (decode_values(file.getvalue(), "a") == 5).all()


def test_arrays_of_equal_names_and_members_that_are_no_arrays_are_refused():
    twice = io.BytesIO()
    savemat(twice, {"left": {"labels": np.ones((3, 4))}, "right": {"labels": np.zeros((3, 4))}})
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("readme.txt", "no array")
    for file, reason in ((twice, "2 arrays called labels"), (other, "whose member is no array")):
        with pytest.raises(UnreadableImage, match=reason):
            decode_pixels(file.getvalue(), "a", MAX_PIXELS)


def test_a_map_of_another_size_is_refused(pairs, tmp_path):
    spec = pairs(a=grid(0), b=np.zeros((WIDTH, HEIGHT), np.uint8))
    source = open_as(spec, LabelMaps)["all"]
    assert source.target.maps.read_map(0, size=(HEIGHT, WIDTH)).semantic.shape == (HEIGHT, WIDTH)
    with pytest.raises(DataError, match="the map is 8 x 6 pixels, but its image 9 x 6"):
        source.target.maps.read_map(0, size=(6, 9))
    with pytest.raises(DataError, match=r"the map is 6 x 8 pixels, but its image 8 x 6: .* before its EXIF rotation"):
        source.target.maps.read_map(1)


def test_a_map_belongs_to_the_upright_image_and_is_never_turned(pairs, tmp_path):
    spec = pairs(a=np.arange(HEIGHT * WIDTH, dtype=np.uint8).reshape(WIDTH, HEIGHT) % 3)
    exif = Image.Exif()
    exif[0x0112] = 6
    draw(tmp_path / "images" / "a.jpg", exif=exif)
    Image.open(tmp_path / "masks" / "a.png").save(tmp_path / "masks" / "a.png", exif=exif)
    expected = np.arange(HEIGHT * WIDTH).reshape(WIDTH, HEIGHT) % 3
    np.testing.assert_array_equal(open_as(spec, LabelMaps)["all"].target.maps.read_map(0).semantic, expected)


def test_select_and_fingerprint(pairs, tmp_path):
    spec = pairs(a=grid(0), b=grid(1), c=grid(2))
    source = open_as(spec, LabelMaps)["all"]
    some = source.select([0, 2])
    assert some.ids == ("a.jpg", "c.jpg") and columns(some.target.maps.read_map(1).semantic) == [2] * 8
    before = source.fingerprint()
    assert before == open_as(spec, LabelMaps)["all"].fingerprint() != some.fingerprint()
    assert open_as(f"{spec}?ignore=0", LabelMaps)["all"].fingerprint() != before
    (tmp_path / "classes.txt").write_text("0 sky\n1 road\n3 tree\n")  # of the same names
    assert open_as(spec, LabelMaps)["all"].fingerprint() != before
    (tmp_path / "classes.txt").write_text("sky\nroad\ntree\n")
    assert open_as(spec, LabelMaps)["all"].fingerprint() == before
    write(tmp_path / "masks" / "a.png", grid(0, 0, 0, 1))
    assert open_as(spec, LabelMaps)["all"].fingerprint() != before
    with pytest.raises(ValueError, match="ascending"):
        source.select([1, 0])


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.integers(0, 99))
def test_distinct_values_are_those_of_numpy(height, width, many, seed):
    values = np.random.default_rng(seed).integers(-1, many, (height, width)).astype(np.int32)
    found, inverse, counts = distinct(values)
    expected = np.unique(values, return_inverse=True, return_counts=True)
    assert found.tolist() == expected[0].tolist() and counts.tolist() == expected[2].tolist()
    np.testing.assert_array_equal(found[inverse], values)


# Files


@pytest.mark.parametrize("kind", FEW_BITS)
def test_grey_values_of_any_number_of_bits_are_those_of_the_file(kind):
    """Pillow stretches few bits to 255, and the largest value of a PGM to 255 or 65535."""
    largest = 1 if kind == "1 bit" else 3
    values = [[0, 1, largest, 0], [1, largest, largest, 0]]
    pixels = decode_pixels(FEW_BITS[kind](values), "few", 10**6)
    assert pixels.indices().tolist() == values


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_masks_of_the_foreground_are_cut_at_half_of_white(bits, tmp_path):
    """One whose file holds 255 in 16 bits is black and white, too."""
    white = 2**bits - 1
    for name, largest in (("numbers", 1), ("white", white), ("byte", min(255, white))):
        values = np.zeros((HEIGHT, WIDTH), int)
        values[:, :3], values[:, 3:5] = largest, largest // 4  # a soft edge
        root = tmp_path / name
        draw(root / "images" / "a.jpg")
        (root / "masks").mkdir()
        (root / "masks" / "a.png").write_bytes(grey_png(values, bits))
        mask = open_as(str(root), Foreground)["all"].target.maps.read_map(0).semantic
        assert columns(mask) == [1, 1, 1, 0, 0, 0, 0, 0], name


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_indices_of_a_palette_and_16_bits_are_the_values():
    array = np.array([[0, 1, 2], [255, 7, 7]], dtype=np.uint8)
    image = Image.frombytes("P", (3, 2), array.tobytes())
    image.putpalette(np.random.default_rng(0).integers(0, 256, 768, dtype=np.uint8).tobytes())
    for kind in ("PNG", "TIFF", "GIF", "BMP"):
        further = {"optimize": False} if kind == "GIF" else {}  # else Pillow renumbers the palette as it writes
        np.testing.assert_array_equal(decode_pixels(encoded(image, kind, **further), "m", 100).indices(), array)
    opaque = np.array([[[5, 255]], [[6, 255]]], dtype=np.uint8)
    assert decode_pixels(encoded(Image.fromarray(opaque), "PNG"), "m", 100).indices().tolist() == [[5], [6]]
    deep = np.array([[0, 40000, 3]], dtype=np.uint16)
    for kind in ("PNG", "TIFF"):
        np.testing.assert_array_equal(decode_pixels(encoded(Image.fromarray(deep), kind), "m", 100).indices(), deep)


def test_files_that_hold_no_classes_are_refused():
    for data, reason in (
        (encoded(Image.new("L", (9, 9)), "JPEG"), "a lossy JPEG: compression has changed the classes"),
        (encoded(Image.new("RGB", (9, 9)), "WEBP"), "a lossy WEBP"),
        (encoded(Image.effect_noise((99, 99), 40), "PNG")[:-900], "truncated"),
        (b"", "empty file"),
        (b"no picture", "not an image, or damaged"),
        (encoded(Image.new("F", (9, 9)), "TIFF"), "pixels of mode F"),
        (encoded(Image.new("RGBA", (9, 9)), "PNG"), "transparent pixels"),
    ):
        with pytest.raises(UnreadableImage, match=reason):
            decode_pixels(data, "m.png", 10**6)


def test_large_maps_are_refused_before_they_are_decoded():
    large = encoded(Image.new("1", (10_000, 10_000)), "PNG")  # a few kilobytes
    with pytest.raises(UnreadableImage, match="10000 x 10000 pixels, more than the limit of 50,000,000"):
        decode_pixels(large, "m.png", 50_000_000)
    head = large[12:16] + (40_000).to_bytes(4) + large[20:29]
    huge = large[:12] + head + zlib.crc32(head).to_bytes(4) + large[33:]
    with pytest.raises(UnreadableImage, match="more than the limit of 178,956,970"):
        decode_pixels(huge, "m.png", MAX_PIXELS)


# ADE20K


def test_ade20k_scene_parse(tmp_path):
    for split, long in (("train", "training"), ("val", "validation")):
        draw(tmp_path / "images" / long / f"ADE_{split}_1.jpg")
        write(tmp_path / "annotations" / long / f"ADE_{split}_1.png", grid(0, 1, 150))
    rows = [f"{i}\t0.1\t9\t1\t0\t{name}" for i, name in [(1, "wall"), (2, "building, edifice"), (150, "flag")]]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(["Idx\tRatio\tTrain\tVal\tStuff\tName", *rows]))
    found = open_as(str(tmp_path), LabelMaps)
    assert list(found) == ["train", "val"] and found["train"].target.classes == ("wall", "building", "flag")
    assert columns(found["val"].target.maps.read_map(0).semantic) == [X, 0, 2, 2, 2, 2, 2, 2]
    assert kind_alone(str(tmp_path)) and found["val"].target.maps.read_map(0).instances is None
    coded = np.stack([grid(0, 12), grid(0, 5, 6), grid(0)], axis=-1)
    write(tmp_path / "annotations_instance" / "validation" / "ADE_val_1.png", coded)
    found = open_as(str(tmp_path), LabelMaps)
    assert columns(found["val"].target.maps.read_map(0).instances) == [0, 5, 6, 6, 6, 6, 6, 6]
    assert found["train"].target.maps.read_map(0).instances is None and "lacks 1 of 1 map" in found["train"].notes[0]


def test_ade20k_full(tmp_path):
    folder = tmp_path / "images" / "ADE" / "training" / "urban" / "street"
    draw(folder / "ADE_train_00000001.jpg")
    red = grid(0, 110, 20)
    coded = np.stack([red, grid(0, 162, 3), grid(0, 9, 4)], axis=-1)
    write(folder / "ADE_train_00000001_seg.png", coded)
    write(folder / "ADE_train_00000001_parts_1.png", coded)
    names = [{"name": "wall", "name_ndx": 11 * 256 + 162}, {"name": "dog", "name_ndx": 2 * 256 + 3}]
    (folder / "ADE_train_00000001.json").write_text(json.dumps({"annotation": {"object": names}}))
    source = open_as(str(tmp_path), LabelMaps)["train"]
    found = source.target.maps.read_map(0)
    assert source.target.classes == ("dog", "wall") and source.ids == ("urban/street/ADE_train_00000001.jpg",)
    assert columns(found.semantic) == [X, 1, 0, 0, 0, 0, 0, 0]
    assert columns(found.instances) == [0, 9, 4, 4, 4, 4, 4, 4]
    (folder / "ADE_train_00000001.json").unlink()
    assert open_as(str(tmp_path), LabelMaps)["train"].target.classes == ("515", "2978")


# Cityscapes


@pytest.mark.parametrize("numbering", ["labelIds", "labelTrainIds"])
def test_cityscapes_has_the_same_19_classes_in_both_numberings(tmp_path, numbering):
    stem = "ulm_000000_000019"
    draw(tmp_path / "leftImg8bit" / "train" / "ulm" / f"{stem}_leftImg8bit.png")
    folder = tmp_path / "gtFine" / "train" / "ulm"
    values = (7, 26, 33, 4) if numbering == "labelIds" else (0, 13, 18, 255)
    write(folder / f"{stem}_gtFine_{numbering}.png", grid(*values))
    write(folder / f"{stem}_gtFine_color.png", grid(1))
    source = open_as(str(tmp_path), LabelMaps)["train"]
    assert len(source.target.classes) == 19 and source.ids == (f"train/ulm/{stem}_leftImg8bit.png",)
    found = source.target.maps.read_map(0)
    assert [source.target.classes[c] for c in found.semantic[0, :3]] == ["road", "car", "bicycle"]
    assert found.semantic[0, 3] == X and found.instances is None
    numbers = grid(7, 26000, 33011, 4, dtype=np.int32)
    write(folder / f"{stem}_gtFine_instanceIds.png", numbers.astype(np.uint16))
    instances = open_as(str(tmp_path), LabelMaps)["train"].target.maps.read_map(0).instances
    assert columns(instances) == [0, 26000, 33011, 0, 0, 0, 0, 0]


# Pascal VOC


def voc(root, array, objects=None, palette=None):
    stem = "2007_000032"
    draw(root / "JPEGImages" / f"{stem}.jpg")
    palette = np.zeros((256, 3), np.uint8) if palette is None else palette
    write(root / "SegmentationClass" / f"{stem}.png", array, palette)
    if objects is not None:
        write(root / "SegmentationObject" / f"{stem}.png", objects, palette)
    (root / "ImageSets" / "Segmentation").mkdir(parents=True, exist_ok=True)
    (root / "ImageSets" / "Segmentation" / "train.txt").write_text(f"{stem}\n")
    return str(root)


def test_voc_by_index(tmp_path):
    spec = voc(tmp_path / "VOC2012", grid(0, 1, 15, 20, 255), grid(0, 1, 2, 3, 255))
    source = open_as(str(tmp_path), LabelMaps)["train"]
    found = source.target.maps.read_map(0)
    named = [source.target.classes[c] if c >= 0 else None for c in found.semantic[0]]
    assert named[:5] == ["background", "aeroplane", "person", "tvmonitor", None]
    assert columns(found.instances) == [0, 1, 2, 3, 0, 0, 0, 0]
    assert kind_alone(spec)
    (tmp_path / "VOC2012" / "ImageSets" / "Main").mkdir()
    assert not kind_alone(spec)  # it is there for its classes as well


def test_voc_that_lost_its_palette_is_read_by_its_colours(tmp_path):
    spec = voc(tmp_path, grid(0))
    # background, aeroplane, person, border: the colours of the development kit
    published = np.array([[0, 0, 0], [128, 0, 0], [192, 128, 128], [224, 224, 192]], np.uint8)
    write(tmp_path / "SegmentationClass" / "2007_000032.png", published[grid(0, 1, 2, 3)])
    assert columns(open_as(spec, LabelMaps)["train"].target.maps.read_map(0).semantic) == [0, 1, 15, X, X, X, X, X]


def test_voc_with_classes_of_its_own(tmp_path):
    palette = np.zeros((256, 3), np.uint8)
    palette[1:3] = [[250, 50, 83], [51, 221, 255]]
    spec = voc(tmp_path, grid(0, 1, 2), palette=palette)
    (tmp_path / "labelmap.txt").write_text(
        "# label:color_rgb:parts:actions\nrust:51,221,255::\nnone:0,0,0::\ndent:250,50,83::"
    )
    source = open_as(spec, LabelMaps)["train"]
    assert [source.target.classes[c] for c in source.target.maps.read_map(0).semantic[0, :3]] == [
        "none",
        "dent",
        "rust",
    ]


@pytest.fixture
def augmented(tmp_path):
    """VOC 2012 with a map of its own (a), one of SBD (b), both (c), and one to score (d)."""
    root = tmp_path / "VOC2012"
    for stem in "abcd":
        draw(root / "JPEGImages" / f"{stem}.jpg")
    palette = np.zeros((256, 3), np.uint8)
    for stem, values in {"a": (0, 1, 255), "c": (0, 3), "d": (0, 4)}.items():
        write(root / "SegmentationClass" / f"{stem}.png", grid(*values), palette)
    for stem, values in {"b": (0, 2, 255), "c": (0, 20)}.items():
        write(root / "SegmentationClassAug" / f"{stem}.png", grid(*values))
    lists = root / "ImageSets" / "Segmentation"
    lists.mkdir(parents=True)
    for name, stems in {"train": "ac", "val": "d", "trainval": "acd", "trainaug": "abc"}.items():
        (lists / f"{name}.txt").write_text("\n".join(stems))
    return root


def test_voc_trains_on_a_named_list_with_its_own_maps_first(augmented):
    found = open_as(f"{augmented}?train=trainaug", LabelMaps)
    train = found["train"]
    assert (
        list(found) == ["train", "val"] and train.ids == ("a.jpg", "b.jpg", "c.jpg") and len(train.target.classes) == 21
    )
    assert [columns(train.target.maps.read_map(i).semantic)[:3] for i in range(3)] == [[0, 1, X], [0, 2, X], [0, 3, 3]]
    assert train.notes == ("train is trainaug.txt: 2 maps of SegmentationClass/ and 1 of SegmentationClassAug/",)
    assert found["val"].fingerprint() == open_as(str(augmented), LabelMaps)["val"].fingerprint()
    assert open_as(str(augmented), LabelMaps)["train"].ids == ("a.jpg", "c.jpg")


def test_what_is_missing_of_an_augmented_voc_is_said(augmented):
    lists, maps = augmented / "ImageSets" / "Segmentation", augmented / "SegmentationClassAug"
    with pytest.raises(UsageError, match=r"no list .*trainug.txt\nDid you mean 'trainaug'.*SBD"):
        open_as(f"{augmented}?train=trainug", LabelMaps)
    with pytest.raises(DataError, match=r"trainval.txt: 1 of 3 images are also in val.txt: d"):
        open_as(f"{augmented}?train=trainval", LabelMaps)
    (maps / "b.png").unlink()
    with pytest.raises(DataError, match=r"1 of 3 images have no map: b\nLooked in .*Convert SBD's"):
        open_as(f"{augmented}?train=trainaug", LabelMaps)
    (maps / "c.png").unlink()
    maps.rmdir()
    with pytest.raises(DataError, match=r"SegmentationClassAug, which does not exist. Convert"):
        open_as(f"{augmented}?train=trainaug", LabelMaps)
    (lists / "trainaug.txt").write_text("\n")
    with pytest.raises(DataError, match=r"trainaug.txt is empty"):
        open_as(f"{augmented}?train=trainaug", LabelMaps)


def test_values_and_sizes_of_augmented_maps_are_checked(augmented):
    write(augmented / "SegmentationClassAug" / "b.png", grid(0, 21))
    train = open_as(f"{augmented}?train=trainaug", LabelMaps)["train"]
    with pytest.raises(DataError, match=r"SegmentationClassAug/b.png has values without a class: 21"):
        train.target.maps.read_map(1)
    write(augmented / "SegmentationClassAug" / "b.png", np.zeros((3, 3), np.uint8))
    with pytest.raises(DataError, match="the map is 3 x 3 pixels, but its image 8 x 6"):
        open_as(f"{augmented}?train=trainaug", LabelMaps)["train"].target.maps.read_map(1)


def test_a_list_of_voc_is_refused_for_other_data(pairs, tmp_path):
    spec = f"{pairs(a=grid(0, 1))}?train=trainaug"
    for kind in (LabelMaps, Foreground):
        with pytest.raises(UsageError, match="unknown key 'train'"):
            open_as(spec, kind)
        (tmp_path / "classes.txt").unlink(missing_ok=True)


# Pascal Context


@pytest.fixture
def context(tmp_path):
    """VOC 2010 with the maps of Pascal Context alone."""
    root = tmp_path / "VOCdevkit" / "VOC2010"
    (root / "ImageSets" / "SegmentationContext").mkdir(parents=True)
    for split, stem, values in (("train", "a", (0, 1, 59)), ("val", "b", (6, 2))):
        draw(root / "JPEGImages" / f"{stem}.jpg")
        write(root / "SegmentationClassContext" / f"{stem}.png", grid(*values))
        (root / "ImageSets" / "SegmentationContext" / f"{split}.txt").write_text(stem)
    return root


def test_pascal_context(context, tmp_path):
    found = open_as(str(tmp_path), LabelMaps)
    assert {split: source.ids for split, source in found.items()} == {"train": ("a.jpg",), "val": ("b.jpg",)}
    source = found["val"]
    assert len(source.target.classes) == 59 and [
        source.target.classes[c] for c in source.target.maps.read_map(0).semantic[0, :2]
    ] == ["bicycle", "bag"]
    assert columns(found["train"].target.maps.read_map(0).semantic) == [X, 0, 58, 58, 58, 58, 58, 58]
    assert kind_alone(str(context))
    with_background = open_as(f"{context}?ignore=none", LabelMaps)["train"]
    assert len(with_background.target.classes) == 60 and columns(with_background.target.maps.read_map(0).semantic)[
        :2
    ] == [59, 0]
    (context / "classes.txt").write_text("1: aeroplane\n2: bicycle\n6: bus\n59: wood")
    assert open_as(str(context), LabelMaps)["val"].target.classes == ("aeroplane", "bicycle", "bus", "wood")


def test_pascal_context_is_named_in_a_tree_with_the_maps_of_voc(context):
    voc(context, grid(0, 20))
    assert len(open_as(str(context), LabelMaps)["train"].target.classes) == 21
    assert len(open_as(f"{context}?maps=SegmentationClassContext", LabelMaps)["train"].target.classes) == 59


def test_pascal_context_that_is_incomplete_or_damaged(context):
    maps, lists = context / "SegmentationClassContext", context / "ImageSets" / "SegmentationContext"
    write(maps / "a.png", grid(0, 60))
    write(maps / "b.png", np.ones((3, 3), np.uint8))
    found = open_as(str(context), LabelMaps)
    with pytest.raises(DataError, match="values without a class: 60"):
        found["train"].target.maps.read_map(0)
    with pytest.raises(DataError, match="the map is 3 x 3 pixels"):
        found["val"].target.maps.read_map(0)
    with pytest.raises(UsageError, match="unknown key 'train'"):
        open_as(f"{context}?train=trainaug", LabelMaps)
    (lists / "val.txt").write_text("b\nmissing")
    with pytest.raises(DataError, match=r"val.txt: 1 of 2 image files missing: missing.jpg"):
        open_as(str(context), LabelMaps)
    for file in lists.iterdir():
        file.unlink()
    with pytest.raises(DataError, match="SegmentationContext holds no list of images"):
        open_as(str(context), LabelMaps)
    lists.rmdir()
    with pytest.raises(DataError, match=r"but not ImageSets/SegmentationContext/\ntrain.txt and val.txt there list"):
        open_as(str(context), LabelMaps)


# COCO-Stuff


@pytest.fixture
def stuff(tmp_path):
    """`stuff(values, "annotations", "_labelTrainIds")` writes both parts of COCO-Stuff."""

    def make(values, folder="stuffthingmaps_trainval2017", ending="", photos="images/"):
        for split, stem in (("train2017", "000000000009"), ("val2017", "000000000139")):
            draw(tmp_path / f"{photos}{split}" / f"{stem}.jpg")
            write(tmp_path / folder / split / f"{stem}{ending}.png", grid(*values))
        return str(tmp_path)

    return make


@pytest.mark.parametrize(
    ("folder", "ending", "photos", "values"),
    [
        ("stuffthingmaps_trainval2017", "", "images/", (0, 12, 89, 91, 181, 255)),
        ("annotations", "", "images/", (0, 12, 89, 91, 181, 255)),
        ("stuffthingmaps_trainval2017", "", "", (0, 12, 89, 91, 181, 255)),
        ("annotations", "_labelTrainIds", "images/", (0, 11, 79, 80, 170, 255)),
    ],
)
def test_coco_stuff_has_the_same_171_classes_in_both_numberings(stuff, folder, ending, photos, values):
    spec = stuff(values, folder, ending, photos)
    found = open_as(spec, LabelMaps)
    assert {split: source.ids for split, source in found.items()} == {
        "train": ("000000000009.jpg",),
        "val": ("000000000139.jpg",),
    }
    row = columns(found["val"].target.maps.read_map(0).semantic)
    assert len(found["val"].target.classes) == 171 and row[:6] == [0, 11, 79, 80, 170, X]
    assert [found["val"].target.classes[c] for c in row[:5]] == ["person", "stop sign", "toothbrush", "banner", "wood"]
    assert kind_alone(spec)


def test_coco_stuff_prefers_the_published_maps_and_its_own_names(stuff, tmp_path):
    stuff((0, 11), "annotations", "_labelTrainIds")
    spec = stuff((0, 12), "annotations")
    (tmp_path / "labels.txt").write_text("0: unlabeled\n1: person\n13: stop sign")  # ids, which are values plus one
    found = open_as(spec, LabelMaps)["val"]
    assert columns(found.target.maps.read_map(0).semantic)[:2] == [0, 11] and found.target.classes[11] == "stop sign"


@pytest.mark.parametrize(("ending", "value"), [("", 11), ("", 182), ("_labelTrainIds", 171)])
def test_coco_stuff_refuses_values_without_a_class(stuff, ending, value):
    source = open_as(stuff((0, value), "annotations", ending), LabelMaps)["val"]
    with pytest.raises(DataError, match=f"values without a class: {value}"):
        source.target.maps.read_map(0)


def test_coco_stuff_with_missing_files_or_other_classes(stuff, tmp_path):
    spec = stuff((0, 1), "annotations")
    write(tmp_path / "annotations" / "val2017" / "000000000139.png", np.ones((3, 3), np.uint8))
    with pytest.raises(DataError, match="the map is 3 x 3 pixels, but its image 8 x 6"):
        open_as(spec, LabelMaps)["val"].target.maps.read_map(0)
    (tmp_path / "annotations" / "val2017" / "000000000139.png").unlink()
    with pytest.raises(DataError, match=r"no image in .*images/val2017 has a map of the same name"):
        open_as(spec, LabelMaps)
    (tmp_path / "classes.txt").write_text("sky\nroad")  # maps of one's own in folders of these names
    assert open_as(spec, LabelMaps)["all"].target.classes == ("sky", "road")


# NYUv2


@pytest.fixture
def nyu(tmp_path):
    """`nyu(maps, groups, names)` writes the file of NYUv2 and its groups into a new folder."""
    h5py, scipy_io = pytest.importorskip("h5py"), pytest.importorskip("scipy.io")

    def make(maps, groups=(2, 1, 1), names=("wall", "floor")):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))  # HDF5 files stay open
        folder.mkdir()
        nyu_sample.write(h5py, scipy_io, folder, np.array(maps), groups, names)
        return folder / "nyu_depth_v2_labeled.mat"

    return make


def test_nyu_is_read_by_columns_and_grouped(nyu):
    maps = np.random.default_rng(0).integers(0, 4, (3, HEIGHT, WIDTH))
    file = nyu(maps)
    source = open_as(str(file), LabelMaps)["all"]
    assert source.target.classes == ("wall", "floor") and source.grouped_by == "scene"
    assert source.ids == ("0000", "0001", "0002")
    for i in range(3):
        expected = [[{0: X, 1: 1, 2: 0, 3: 0}[value] for value in row] for row in maps[i].tolist()]
        assert source.target.maps.read_map(i).semantic.tolist() == expected
    assert open_as(str(nyu(maps, (1, 2, 1))), LabelMaps)["all"].fingerprint() != source.fingerprint()
    pytest.importorskip("scipy.io").savemat(file.parent / "splits.mat", {"trainNdxs": [[3], [1]], "testNdxs": [[2]]})
    parts = open_as(str(file), LabelMaps)
    assert parts["train"].ids == ("0000", "0002") and parts["test"].ids == ("0001",)
    np.testing.assert_array_equal(
        parts["test"].target.maps.read_map(0).semantic, source.target.maps.read_map(1).semantic
    )


def test_nyu_that_is_incomplete_or_damaged(nyu):
    maps = np.ones((2, HEIGHT, WIDTH), int)
    maps[1] = 4
    file = nyu(maps)
    with pytest.raises(DataError, match=r"it holds the class 4, but classMapping40\.mat groups 3"):
        open_as(str(file), LabelMaps)["all"].target.maps.read_map(1)
    with pytest.raises(DataError, match="mapClass has the number 3, but className has 2 names"):
        open_as(str(nyu(maps, (1, 2, 3))), LabelMaps)
    with pytest.raises(UsageError, match="unknown key 'classes'"):
        open_as(f"{file}?classes=names.txt", LabelMaps)
    mapping = file.parent / "classMapping40.mat"
    mapping.write_bytes(b"no file of MATLAB")
    with pytest.raises(DataError, match="should hold mapClass and className"):
        open_as(str(file), LabelMaps)
    mapping.unlink()
    with pytest.raises(DataError, match=r"classMapping40.mat is missing.*\n.*FOLDER\?ignore=0"):
        open_as(str(file), LabelMaps)


# COCO panoptic

SEGMENTS = [
    {"id": 1, "category_id": 5, "area": 6, "iscrowd": 0},
    {"id": 66_000, "category_id": 5, "area": 12, "iscrowd": 0},
    {"id": 300, "category_id": 5, "area": 6, "iscrowd": 1},
    {"id": 16_777_215, "category_id": 0, "area": 12, "iscrowd": 0},
]
IDS = grid(1, 66_000, 66_000, 300, 16_777_215, 16_777_215, 0, dtype=np.int64)


@pytest.fixture
def panoptic(tmp_path):
    """`panoptic(change)` writes COCO's folders; `change(tables)` may alter the JSON before."""

    def make(change=lambda tables: None, ids=IDS):
        draw(tmp_path / "val2017" / "1.jpg")
        write(tmp_path / "annotations" / "panoptic_val2017" / "1.png", encode(ids))
        tables = {
            "images": [{"id": 9, "file_name": "1.jpg", "height": HEIGHT, "width": WIDTH}],
            "annotations": [{"image_id": 9, "file_name": "1.png", "segments_info": [dict(s) for s in SEGMENTS]}],
            "categories": [{"id": 5, "name": "dog", "isthing": 1}, {"id": 0, "name": "sky", "isthing": 0}],
        }
        change(tables)
        file = tmp_path / "annotations" / "panoptic_val2017.json"
        file.write_text(json.dumps(tables))
        return str(file)

    return make


def test_panoptic(panoptic, tmp_path):
    spec = panoptic()
    source = open_as(spec, LabelMaps)["all"]
    found = source.target.maps.read_map(0)
    assert source.target.classes == ("sky", "dog") and source.ids == ("1.jpg",) and kind_alone(spec)
    assert columns(found.semantic) == [1, 1, 1, 1, 0, 0, X, X]
    assert columns(found.instances) == [1, 2, 2, 0, 0, 0, 0, 0]  # a crowd and the sky are no instances
    assert list(open_as(str(tmp_path), LabelMaps)) == ["all"]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**24 - 1), min_size=1, max_size=12))
def test_panoptic_coding_round_trip(ids):
    array = np.array([ids], dtype=np.int64)
    data = encoded(Image.fromarray(encode(array)), "PNG")
    np.testing.assert_array_equal(decode_pixels(data, "m.png", 100).colours(), array)


def drop(table, key):
    return lambda tables: tables[table][0].pop(key)


def put(table, key, value):
    return lambda tables: tables[table][0].update({key: value})


def test_damaged_panoptic_files(panoptic):
    for change, words in (
        (drop("images", "file_name"), r"images\[0\] has no file_name"),
        (put("annotations", "segments_info", None), r"annotations\[0\] has no segments_info"),
        (drop("annotations", "image_id"), r"annotations\[0\] has no image_id"),
        (drop("categories", "id"), r"categories\[0\] has no id"),
        (lambda tables: tables.pop("categories"), "no list 'categories'"),
        (put("annotations", "file_name", "../../secret.png"), "lies outside its folder"),
        (put("annotations", "file_name", "/etc/passwd"), "lies outside its folder"),
        (put("annotations", "image_id", 8), "images that are not listed: image_id 8"),
        (put("annotations", "file_name", "2.png"), "1 of 1 image file missing: 2.png"),
        (put("images", "file_name", "2.jpg"), "1 of 1 image file missing: 2.jpg"),
        (put("annotations", "segments_info", [{"id": 1}]), "has the category_id None"),
        (put("annotations", "segments_info", [{"id": 2**24, "category_id": 5}]), "has the id 16777216"),
        (put("annotations", "segments_info", [7]), "is int, not a mapping"),
        (put("annotations", "segments_info", [{"id": 1, "category_id": 5, "area": "x"}]), "has the area 'x'"),
        (lambda tables: tables["annotations"].append(tables["annotations"][0]), "the same map occurs twice: 1.png"),
        (lambda tables: tables["categories"].append({"id": 6, "name": "dog"}), "the same class occurs twice: dog"),
        (lambda tables: tables["images"].append(tables["images"][0]), "the same id occurs twice: 9"),
    ):
        with pytest.raises(DataError, match=words):
            open_as(panoptic(change), LabelMaps)


def test_panoptic_that_contradicts_itself(panoptic):
    source = open_as(panoptic(lambda tables: tables["annotations"][0]["segments_info"].pop(0)), LabelMaps)["all"]
    with pytest.raises(DataError, match=r"segments that segments_info lacks: 1 \(6 pixels\)"):
        source.target.maps.read_map(0)
    source = open_as(
        panoptic(put("annotations", "segments_info", [{**s, "category_id": 8} for s in SEGMENTS])), LabelMaps
    )
    with pytest.raises(DataError, match="values without a class: 8"):
        source["all"].target.maps.read_map(0)


def test_a_grey_panoptic_file_is_refused(panoptic, tmp_path):
    spec = panoptic()
    write(tmp_path / "annotations" / "panoptic_val2017" / "1.png", grid(1))
    with pytest.raises(UnreadableImage, match="a grey image"):
        open_as(spec, LabelMaps)["all"].target.maps.read_map(0)


# Masks of manifests


def test_masks_of_a_manifest_are_drawn_small_ones_on_top(tmp_path):
    draw(tmp_path / "1.jpg")
    runs = [[0, 6], [0, 12, 36], [42, 6], [18, 12, 18]]  # columns, from the top: 0; 0 and 1; 7; 3 and 4
    annotations = [
        {"category_id": 1, "bbox": [0, 0, 1, 6], "counts": runs[0] + [42]},
        {"category_id": 2, "bbox": [0, 0, 2, 6], "counts": runs[1]},
        {"category_id": 1, "bbox": [7, 0, 1, 6], "counts": runs[2], "iscrowd": 1},
        {"category_id": 2, "bbox": [3, 0, 2, 6], "counts": runs[3], "ignore": 1},
    ]
    rows = [
        {"id": i, "image_id": 1, **row, "segmentation": {"size": [HEIGHT, WIDTH], "counts": row.pop("counts")}}
        for i, row in enumerate(annotations, start=1)
    ]
    square = [[5, 0, 7, 0, 7, 6, 5, 6]]
    rows.append({"id": 9, "image_id": 1, "category_id": 1, "bbox": [5, 0, 2, 6], "segmentation": square})
    categories = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    images = [{"id": 1, "file_name": "1.jpg", "width": WIDTH, "height": HEIGHT}]
    file = tmp_path / "m.json"
    file.write_text(json.dumps({"images": images, "annotations": rows, "categories": categories}))
    source = open_as(str(file), LabelMaps)["all"]
    found = source.target.maps.read_map(0)
    assert source.target.classes == ("background", "cat", "dog") and not kind_alone(str(file))
    assert columns(found.semantic) == [1, 2, 0, X, X, 1, 1, 1]
    assert columns(found.instances) == [1, 2, 0, 0, 0, 5, 5, 0]
    ignoring = open_as(f"{file}?ignore=background", LabelMaps)["all"]
    assert columns(ignoring.target.maps.read_map(0).semantic) == [0, 1, X, X, X, 0, 0, 0]


# What is no label map


def test_what_holds_no_label_maps(tmp_path):
    draw(tmp_path / "photos" / "cat" / "1.jpg")
    assert not kind_alone(str(tmp_path / "photos"))
    with pytest.raises(UsageError, match=r"no images with a class for every pixel.*\nLooked for:\n.*ADE20K"):
        open_as(str(tmp_path / "photos"), LabelMaps)
    with pytest.raises(UsageError, match="does not exist"):
        open_as(str(tmp_path / "photso"), LabelMaps)
    with pytest.raises(UsageError, match="unknown key 'ignor'\nDid you mean 'ignore'"):
        open_as(f"{tmp_path}/photos?ignor=0", LabelMaps)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("classes.txt", "sky\n\nroad", "line 2 is empty"),
        ("classes.txt", "sky\nsky", "the same class occurs twice"),
        ("classes.txt", "0 sky\n0 road", "the same value occurs twice"),
        ("classes.json", "{", "is no JSON"),
        ("classes.json", '{"sky": "blue"}', "does not name the classes"),
        ("labelmap.txt", "sky:1,2", "should be NAME:R,G,B"),
    ],
)
def test_damaged_lists_of_classes(pairs, tmp_path, name, content, words):
    spec = pairs(classes=(), a=grid(0))
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        open_as(spec, LabelMaps)


def test_pictures_given_as_maps(pairs):
    noise = np.random.default_rng(0).integers(0, 256, (80, 80, 3), dtype=np.uint8)
    with pytest.raises(DataError, match="different values, too many for classes"):
        open_as(pairs(classes=(), a=noise), LabelMaps)


def test_folders_of_images_are_groups_where_that_is_asked_for(tmp_path):
    for folder in ("a", "b"):
        for i in range(2):
            draw(tmp_path / "images" / folder / f"{i}.jpg")
            write(tmp_path / "masks" / folder / f"{i}.png", grid(0, 1))
    for kind, options in (
        (LabelMaps, ""),
        (Foreground, ""),
        (Boundaries, "images=images&maps=masks&"),
        (Signals, "maps=masks&scale=1&"),
    ):
        source = open_as(f"{tmp_path}?{options}group=folder", kind)["all"]
        assert source.grouped_by == "folder" and source.attributes["folder"] == ("a", "a", "b", "b")
    with pytest.raises(UsageError, match="group: should be one of folder or null"):
        open_as(f"{tmp_path}?group=patient", LabelMaps)


def test_no_images_of_nyu_have_no_digests(nyu):
    source = open_as(str(nyu(np.ones((2, HEIGHT, WIDTH), int))), LabelMaps)["all"].select(np.arange(0))
    assert source.images.digests().shape == source.target.maps.maps.digests().shape == (0, 16)


class TestArrays:
    """Maps in files of MATLAB and NumPy, as SBD, COCO-Stuff and Pascal Context have them."""

    def make(self, root, kind):
        map_ = grid(0, 3, 7, 7)
        for name in "ab":
            draw(root / "photos" / f"{name}.png")
        (root / "gt").mkdir()
        for name in "ab":
            file = root / "gt" / f"{name}.{'npy' if kind == 'npy' else 'mat'}"
            if kind == "npy":
                np.save(file, map_.astype(np.int64))
            elif kind == "nested":  # in a structure, beside others
                savemat(file, {"GTcls": {"Boundaries": np.zeros((20, 1)), "Segmentation": map_, "Categories": [3, 7]}})
            else:  # MATLAB's numbers are floating point
                savemat(file, {"S": map_.astype(float), "names": ["x", "y"], "regionMapStuff": map_ + 1.0})
        return f"{root}?images=photos&maps=gt"

    @pytest.mark.parametrize("kind", ["npy", "nested", "several"])
    @pytest.mark.parametrize("named", [True, False])
    def test_folders_may_hold_arrays(self, tmp_path, kind, named):
        place = self.make(tmp_path, kind)
        source = open_as(place if named else str(tmp_path), LabelMaps)["all"]
        assert source.target.classes == ("0", "3", "7") and len(source) == 2
        assert columns(source.target.maps.read_map(1).semantic) == [0, 1, 2, 2, 2, 2, 2, 2]

    def test_pictures_come_before_arrays_of_features_beside_them(self, tmp_path):
        spec = self.make(tmp_path, "npy")
        write(tmp_path / "gt" / "a.png", grid(1))
        source = open_as(spec, LabelMaps)["all"]
        assert source.target.classes == ("1",) and len(source) == 1

    @pytest.mark.parametrize(
        ("values", "reason"),
        [
            (np.full((HEIGHT, WIDTH), 0.5), "classes are whole numbers"),
            (np.full((HEIGHT, WIDTH), np.inf), "classes are whole numbers"),
            (np.zeros((2, HEIGHT, WIDTH)), r"a label map has \(height, width\)"),
            (np.array([["a"]]), "not of numbers"),
            ({"first": np.eye(3), "second": np.eye(3)}, "several arrays"),
            ({"text": "a"}, "without an array of two dimensions"),
        ],
    )
    def test_arrays_that_are_no_maps(self, values, reason):
        file = io.BytesIO()
        savemat(file, values) if isinstance(values, dict) else np.save(file, values)
        with pytest.raises(UnreadableImage, match=reason):
            decode_pixels(file.getvalue(), "a.mat", MAX_PIXELS)
        with pytest.raises(UnreadableImage):
            decode_pixels(file.getvalue()[:-20], "a.mat", MAX_PIXELS)
