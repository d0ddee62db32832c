"""Depth and normals of pixels: every layout and file gives the same values, and what is wrong is one message."""

import io
import json
import shutil

import numpy as np
import pytest
from helpers.few_bits import FEW_BITS
from PIL import Image
from scipy.io import savemat

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.formats.motorcycle import normals_of
from sslbench.data.groups import source_groups
from sslbench.data.maps.values import decode_values
from sslbench.data.open import kind_alone, open_as
from sslbench.data.splits import train_test_of
from sslbench.errors import DataError, UsageError
from sslbench.targets.pixel_values import Depth, Normals

HEIGHT, WIDTH = 6, 9


def metres(index):
    """A depth of 1 to 3 m, with a hole."""
    depth = np.random.default_rng(index).integers(1000, 3000, (HEIGHT, WIDTH)) / 1000
    depth[2, 3] = 0
    return depth


def encoded(values, kind):
    file = io.BytesIO()
    if kind == "npy":
        np.save(file, values.astype(np.float32))
    elif kind == "npz":
        np.savez_compressed(file, depth=values.astype(np.float32), other=np.zeros(3))
    elif kind == "mat":
        savemat(file, {"depth": values, "name": "a scene", "camera": np.eye(3)})
    elif kind == "png":
        Image.fromarray(np.rint(1000 * values).astype(np.uint16)).save(file, "PNG")
    elif kind == "tiff":
        Image.fromarray(values.astype(np.float32)).save(file, "TIFF")
    else:
        file.write(f"Pf\n{WIDTH} {HEIGHT}\n-1.0\n".encode() + values[::-1].astype("<f4").tobytes())
    return file.getvalue()


def picture(index):
    file = io.BytesIO()
    colours = np.random.default_rng(index).integers(0, 255, (HEIGHT, WIDTH, 3))
    Image.fromarray(colours.astype(np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def write(tmp_path):
    """Write images/ and depth/ with a file of a kind each, and return their folder."""

    def make(kind="npy", n=3, values=metres, folder=""):
        for name in ("images", "depth"):
            (tmp_path / folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(n):
            (tmp_path / folder / "images" / f"{index}.png").write_bytes(picture(index))
            (tmp_path / folder / "depth" / f"{index}.{kind}").write_bytes(encoded(values(index), kind))
        return tmp_path

    return make


@pytest.mark.parametrize("kind", ["npy", "npz", "mat", "png", "tiff", "pfm"])
def test_every_file_gives_the_same_depth(write, kind):
    spec = f"{write(kind)}?depth_scale=1000" if kind == "png" else str(write(kind))
    source = open_as(spec, Depth)["all"]
    assert isinstance(source.target, Depth) and source.ids == ("0.png", "1.png", "2.png")
    for index in range(3):
        found = source.target.pixels.read_values(index, size=(HEIGHT, WIDTH))
        expected = metres(index)[..., None]
        assert found.shape == (HEIGHT, WIDTH, 1) and found.dtype == np.float32 and np.isnan(found[2, 3, 0])
        np.testing.assert_allclose(np.nan_to_num(found), expected, rtol=1e-6)


def test_splits_lists_and_tables_hold_the_same_pairs(write, tmp_path):
    for split, n in (("train", 3), ("test", 2)):
        write(n=n, folder=split)
    assert {split: len(source) for split, source in open_as(str(tmp_path), Depth).items()} == {"train": 3, "test": 2}
    names = [f"train/images/{i}.png" for i in range(3)]
    lines = "".join(f"/{name} /{name.replace('images', 'depth').replace('png', 'npy')} 518.8\n" for name in names)
    (tmp_path / "pairs.txt").write_text(lines)
    rows = [{"image": name, "depth": name.replace("images", "depth").replace("png", "npy")} for name in names]
    (tmp_path / "pairs.json").write_text(json.dumps({"images": rows}))
    (tmp_path / "pairs.jsonl").write_text("\n".join(json.dumps({**row, "split": "train"}) for row in rows))
    (tmp_path / "pairs.csv").write_text("image,depth\n" + "\n".join(",".join(row.values()) for row in rows))
    for name in ("pairs.txt", "pairs.json", "pairs.jsonl", "pairs.csv"):
        (source,) = open_as(str(tmp_path / name), Depth).values()
        assert source.ids == tuple(names)
        np.testing.assert_array_equal(
            source.select([1]).target.pixels.read_values(0)[0, 0], metres(1)[0, :1].astype("f4")
        )


def test_folders_that_are_no_splits_are_parts_of_names_and_folders_without_pairs_are_an_error(write, tmp_path):
    for folder, n in (("train", 2), ("training", 1)):
        write(n=n, folder=folder)
        for name in ("images", "depth"):
            (tmp_path / "both" / name).mkdir(parents=True, exist_ok=True)
            shutil.move(tmp_path / folder / name, tmp_path / "both" / name / folder)
    (source,) = open_as(str(tmp_path / "both"), Depth).values()
    assert source.ids == ("train/0.png", "train/1.png", "training/0.png")
    for name in ("images", "depth"):
        shutil.rmtree(tmp_path / "both" / name)
        (tmp_path / "both" / name).mkdir()
    with pytest.raises(DataError, match=r"no image in .* has a depth file"):
        open_as(str(tmp_path / "both"), Depth)


def test_the_lists_of_bts_in_a_folder_are_the_splits_with_their_scale_and_range(write, tmp_path):
    far = [metres(0), np.where(metres(1) > 2, 12.0, metres(1))]
    write("png", n=2, values=far.__getitem__, folder="sync")
    (tmp_path / "nyudepthv2_train_files_with_gt.txt").write_text(
        "/images/0.png /depth/0.png 518.8579\n/images/1.png None 518.8579\n"
    )
    (tmp_path / "nyudepthv2_test_files_with_gt.txt").write_text("images/1.png depth/1.png 518.8579\n")
    parts = open_as(str(tmp_path), Depth)
    assert {split: source.ids for split, source in parts.items()} == {
        "train": ("images/0.png",),
        "test": ("images/1.png",),
    }
    assert "1 images" in parts["train"].notes[0] and "left out" in parts["train"].notes[0]
    known = parts["test"].target.pixels.read_values(0)[..., 0]
    np.testing.assert_array_equal(np.isnan(known), (far[1] == 0) | (far[1] >= 10))


def test_normals_of_pictures_and_of_vectors_are_unit_vectors(tmp_path):
    directions = np.random.default_rng(0).normal(size=(HEIGHT, WIDTH, 3))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    directions[0, 0] = 0
    (tmp_path / "images").mkdir()
    (tmp_path / "normals").mkdir()
    for index, name in enumerate(("0.png", "1.npy")):
        (tmp_path / "images" / f"{index}.png").write_bytes(picture(index))
        path = tmp_path / "normals" / name
        if name.endswith("npy"):
            np.save(path, 2 * directions)
        else:
            Image.fromarray(np.rint((directions + 1) * 127.5).astype(np.uint8)).save(path)
    assert kind_alone(str(tmp_path)) is Normals
    source = open_as(str(tmp_path), Normals)["all"]
    for index, accuracy in ((0, 0.01), (1, 1e-6)):
        found = source.target.pixels.read_values(index)
        assert np.isnan(found[0, 0]).all()
        np.testing.assert_allclose(found[1:], directions[1:], atol=accuracy)


def test_a_picture_of_16_bits_per_colour_keeps_them():
    cv2 = pytest.importorskip("cv2")
    colours = np.random.default_rng(0).integers(0, 65536, (4, 5, 3)).astype(np.uint16)
    for suffix in (".png", ".tif"):
        data = cv2.imencode(suffix, colours[..., ::-1])[1].tobytes()
        np.testing.assert_array_equal(decode_values(data, f"a{suffix}"), colours)


@pytest.mark.parametrize("kind", [kind for kind in FEW_BITS if not kind.startswith("pgm")])
def test_numbers_of_few_bits_are_those_of_the_file(kind):
    values = [[0, 1, 1, 0]] if kind == "1 bit" else [[0, 1, 2, 3]]
    assert decode_values(FEW_BITS[kind](values), "few").tolist() == values


def test_normals_of_a_plane_are_those_of_the_plane():
    """Depths along rays of the camera of the motorcycle for a plane with a known normal."""
    focal, rows, columns = 994.978, *np.mgrid[:60, :80].astype(float)
    rays = np.stack([(columns - 311.193) / focal, (rows - 254.877) / focal, np.ones_like(rows)], axis=2)
    normal = np.array([0.3, -0.5, -0.8]) / np.linalg.norm([0.3, -0.5, -0.8])
    depth = -2.0 / (rays @ normal)
    found = normals_of(1 / depth)[10:50, 10:70]
    np.testing.assert_allclose(found, np.broadcast_to(normal, found.shape), atol=1e-5)


@pytest.mark.parametrize(
    ("values", "kind", "options", "message"),
    [
        (
            lambda i: metres(i),
            "png",
            "",
            r"whole numbers \(up to 2,\d\d\d\) of unknown unit\nSay which number is one metre",
        ),
        (lambda i: -metres(i), "npy", "", "negative depths, down to -2.9"),
        (lambda i: np.full((HEIGHT, WIDTH), -np.inf), "npy", "", "negative depths"),
        (lambda i: metres(i)[:, :-1], "npy", "", "a file of depth is 8 x 6 pixels, but its image 9 x 6"),
        (lambda i: np.zeros((HEIGHT, WIDTH, 3)), "npy", "", "three numbers per pixel"),
    ],
)
def test_depths_that_cannot_be_used_are_one_message(write, values, kind, options, message):
    source = open_as(f"{write(kind, values=values)}{options}", Depth)["all"]
    with pytest.raises(DataError, match=message):
        source.target.pixels.read_values(0, size=(HEIGHT, WIDTH))


def test_options_that_are_wrong_are_one_message(write):
    for options, message in (
        ("?depth_scale=0", "depth_scale should be above 0"),
        ("?min_depth=5&max_depth=2", "max_depth should be above min_depth, 5"),
        ("?scale=1000", "unknown key 'scale'"),
        ("?depth=gt", "no folders images/ and depth/"),
    ):
        with pytest.raises(UsageError, match=message):
            open_as(f"{write()}{options}", Depth)


def test_damaged_files_and_lists_are_named(write, tmp_path):
    folder = write()
    (folder / "depth" / "1.npy").write_bytes(b"\x93NUMPY nothing")
    with pytest.raises(UnreadableImage, match=r"1\.npy"):
        open_as(str(folder), Depth)["all"].target.pixels.read_values(1)
    for name, text, message in (
        ("a.txt", "images/0.png\n", "line 1 is no pair"),
        ("b.txt", "images/9.png depth/9.npy\n", "1 of 1 image file missing: images/9.png"),
        ("c.txt", "images/0.png depth/9.npy\n", "1 of 1 image file missing: depth/9.npy"),
        ("d.txt", "images/0.png depth/0.npy\nimages/0.png depth/0.npy\n", "twice"),
        ("e.txt", "images/0.png depth/0.npy\nimages/1.png depth/9.npy\n", "1 of 2 image files missing: depth/9.npy"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=message):
            open_as(str(tmp_path / name), Depth)
    for data in (b"", b"\x76\x2f\x31\x01xxxx", b"Pf\n3 4\n-1.0\nxx", picture(0)[:40], b"GIF89a"):
        with pytest.raises(UnreadableImage):
            decode_values(data, "file")
    with pytest.raises(UsageError, match="no data set 'skimage:motorcicle'"):
        open_as("skimage:motorcicle", Depth)
    with pytest.raises(UsageError, match="does not exist"):
        open_as(str(tmp_path / "nowhere"), Depth)


def test_the_file_of_nyu_is_read_by_columns_with_its_split(tmp_path):
    h5py, scipy_io = pytest.importorskip("h5py"), pytest.importorskip("scipy.io")
    rng = np.random.default_rng(0)
    images, depths = rng.integers(0, 255, (4, 5, 7, 3)).astype(np.uint8), rng.uniform(0, 12, (4, 5, 7)).astype("f4")
    with h5py.File(tmp_path / "nyu_depth_v2_labeled.mat", "w") as file:
        file["images"] = images.transpose(0, 3, 2, 1)
        file["depths"] = depths.transpose(0, 2, 1)
    whole = open_as(str(tmp_path / "nyu_depth_v2_labeled.mat"), Depth)["all"]
    assert len(whole) == 4 and whole.grouped_by == "scene"
    np.testing.assert_array_equal(whole.images.read(2), images[2])
    expected = np.where((depths[2] > 0.001) & (depths[2] < 10), depths[2], np.nan)
    np.testing.assert_array_equal(whole.target.pixels.read_values(2)[..., 0], expected)
    scipy_io.savemat(tmp_path / "splits.mat", {"trainNdxs": [[4], [1]], "testNdxs": [[2], [3]]})
    parts = open_as(str(tmp_path / "nyu_depth_v2_labeled.mat"), Depth)
    assert parts["train"].ids == ("0000", "0003") and parts["test"].ids == ("0001", "0002")
    np.testing.assert_array_equal(parts["test"].images.read(0), images[1])


def test_the_fingerprint_follows_files_scale_and_range(write):
    folder = write("png")
    prints = {
        open_as(f"{folder}?depth_scale={scale}&max_depth={most}", Depth)["all"].fingerprint()
        for scale, most in ((1000, 10), (1000, 10), (500, 10), (1000, 2))
    }
    assert len(prints) == 3


def rooms(write, tmp_path):
    """Three rooms of four images each, below images/ and depth/, and a table that names the rooms."""
    write(n=4)
    for name in ("images", "depth"):
        files = sorted((tmp_path / name).iterdir())
        for room in "abc":
            (tmp_path / name / room).mkdir()
            for file in files:
                (tmp_path / name / room / file.name).write_bytes(file.read_bytes())
        for file in files:
            file.unlink()
    rows = [f"images/{r}/{i}.png,depth/{r}/{i}.npy,room {r}" for r in "abc" for i in range(4)]
    (tmp_path / "rooms.csv").write_text("\n".join(["image,depth,room", *rows]))


@pytest.mark.parametrize("place", ["?group=folder", "rooms.csv?group=room", "rooms.csv?group=folder"])
def test_images_of_a_scene_stay_on_one_side_of_a_split(place, write, tmp_path):
    rooms(write, tmp_path)
    data = train_test_of(lambda spec: open_as(spec, Depth), f"{tmp_path}/{place}", test_fraction=0.3)
    of = [{name.split("/")[-2] for name in part.ids} for part in (data.train, data.test)]
    assert sorted(map(len, of)) == [1, 2] and not of[0] & of[1] and not data.notes
    assert source_groups(data.train) is not None


def test_a_split_that_parts_folders_says_so(write, tmp_path):
    rooms(write, tmp_path)
    (note,) = train_test_of(lambda spec: open_as(spec, Depth), str(tmp_path), test_fraction=0.3).notes
    assert "are on both sides of the split: if these are scenes or videos, ?group=folder" in note
    for kind in ("images", "depth"):
        shutil.rmtree(tmp_path / kind / "c")
    (note,) = train_test_of(lambda spec: open_as(spec, Depth), str(tmp_path), test_fraction=0.3).notes
    assert note.startswith("images of 2 folders")
    with pytest.raises(UsageError, match=r"no column 'rom'.*\n.*'room'"):
        open_as(f"{tmp_path}/rooms.csv?group=rom", Depth)
    with pytest.raises(UsageError, match=r"is no table.*group=room\ngroup=folder"):
        open_as(f"{tmp_path}?group=room", Depth)
