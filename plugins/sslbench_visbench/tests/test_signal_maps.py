"""Maps of numbers as targets: Taskonomy's layout and folders of any names, against numbers written by hand."""

import csv
import math

import numpy as np
import pytest
from PIL import Image

from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.location import locate
from sslbench.errors import DataError, UsageError
from sslbench_visbench.signal_maps import open_orientations, open_signal_maps, open_signals
from sslbench_visbench.targets import Signals

SIZE = (6, 8)
RAW = np.arange(48, dtype=np.uint16).reshape(SIZE) * 200


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


def picture(seed):
    return np.random.default_rng(seed).integers(0, 256, (*SIZE, 3)).astype(np.uint8)


def taskonomy(root, *, lists=True, domains=("keypoints2d", "edge_occlusion")):
    """Two buildings of two views each, and their lists: the first is train."""
    rows = []
    for building in ("allensville", "beechwood"):
        for point in (0, 1):
            name = f"{building}/point_{point}_view_0_domain_"
            write(root / "rgb" / f"{name}rgb.png", picture(point))
            for domain in domains:
                write(root / domain / f"{name}{domain}.png", RAW + point)
            mask = np.full(SIZE, 255, np.uint8)
            mask[:2] = 0
            write(root / "mask_valid" / f"{name}depth_zbuffer.png", mask)
            rows.append((building, point, 0))
    for split, chosen in (("train", rows[:2]), ("test", rows[2:])) if lists else ():
        (root / "splits").mkdir(exist_ok=True)
        with (root / "splits" / f"tiny_{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("building", "point", "view"), *chosen])
    return root


def test_taskonomys_splits_scales_masks_and_buildings(tmp_path):
    root = taskonomy(tmp_path)
    parts = open_signals(f"{root}?maps=keypoints2d")
    assert list(parts) == ["train", "test"] and isinstance(parts["train"].target, Signals)
    test = parts["test"]
    assert test.ids == tuple(f"beechwood/point_{p}_view_0_domain_rgb.png" for p in (0, 1))
    assert test.grouped_by == "building" and set(test.attributes["building"]) == {"beechwood"}
    found = test.target.pixels.read_values(1, size=SIZE)
    np.testing.assert_allclose(found[..., 0], (RAW + 1.0) / 30, rtol=1e-6)  # 16 bits, and 0 is a number
    occlusion = open_signals(f"{root}?maps=edge_occlusion")["train"].target.pixels.read_values(0)[..., 0]
    assert np.isnan(occlusion[:2]).all()
    assert occlusion[3, 4] == pytest.approx(math.log(1 + RAW[3, 4] / 50), rel=1e-6)
    whole = open_signals(f"{root}?maps=edge_occlusion&valid=&log=false&scale=10")["train"].target.pixels.read_values(0)
    np.testing.assert_allclose(whole[..., 0], RAW / 10.0, rtol=1e-6)


def test_without_lists_there_is_one_part_of_all_buildings(tmp_path):
    (part,) = open_signals(f"{taskonomy(tmp_path, lists=False)}?maps=keypoints2d").values()
    assert len(part) == 4 and part.grouped_by == "building" and len(set(part.attributes["building"])) == 2


def test_masks_are_the_array_of_their_name_among_several(tmp_path):
    write(tmp_path / "images" / "0.png", picture(0))
    for folder in ("edge", "known"):
        (tmp_path / folder).mkdir()
    np.save(tmp_path / "edge" / "0.npy", RAW / np.float32(7))
    for names in (("valid", "arr_0"), ("mask", "depth"), ("depth", "camera"), ("left", "right")):
        mask = np.ones(SIZE)
        mask[1:, 2] = 0
        np.savez(tmp_path / "known" / "0.npz", **dict(zip(names, (mask, np.zeros(SIZE)), strict=True)))
        pixels = open_signals(f"{tmp_path}?maps=edge&valid=known")["all"].target.pixels
        if names[0] == "left":
            with pytest.raises(UnreadableImage, match=r"several arrays .left, right., none called valid, mask, "):
                pixels.read_values(0)
        else:
            assert (np.isnan(pixels.read_values(0)[..., 0]) == (mask == 0)).all()


def test_what_is_done_with_the_numbers_is_part_of_the_fingerprint(tmp_path):
    root = taskonomy(tmp_path)
    specs = ("keypoints2d", "keypoints2d&scale=31", "keypoints2d&log=true", "keypoints2d&valid=mask_valid")
    assert len({open_signals(f"{root}?maps={spec}")["test"].fingerprint() for spec in specs}) == 4


def test_folders_of_any_names_in_splits_and_fractions_without_a_scale(tmp_path):
    for split in ("train", "test"):
        for i in range(2):
            write(tmp_path / split / "images" / f"{i}.png", picture(i))
            (tmp_path / split / "heat").mkdir(exist_ok=True)
            np.save(tmp_path / split / "heat" / f"{i}.npy", RAW / np.float32(7))
    write(tmp_path / "test" / "images" / "alone.png", picture(3))
    parts = open_signals(f"{tmp_path}?maps=heat")
    assert list(parts) == ["train", "test"] and parts["test"].ids == ("0.png", "1.png")
    assert any("1 images without a map" in note for note in parts["test"].notes)
    np.testing.assert_allclose(parts["train"].target.pixels.read_values(0)[..., 0], RAW / 7, rtol=1e-6)


@pytest.mark.parametrize("inner", [True, False], ids=["images/train", "train/images"])
def test_splits_may_lie_in_the_folders_or_around_them(tmp_path, inner):
    for split, number in (("train", 3), ("test", 2)):
        for i in range(number):
            for kind in ("images", "edge"):
                folder = tmp_path / (f"{kind}/{split}" if inner else f"{split}/{kind}")
                folder.mkdir(parents=True, exist_ok=True)
                write(folder / f"{i}.png", np.full(SIZE, i, np.uint8))
    found = open_signals(f"{tmp_path}?maps=edge")
    assert {split: len(source) for split, source in found.items()} == {"train": 3, "test": 2}
    assert {source.target.classes for source in found.values()} == {("edge",)}


def test_locations_that_cannot_be_used_are_one_message(tmp_path):
    for options, message in (
        ("maps=keypoints", "has no folder keypoints/\nDid you mean 'keypoints2d'?"),
        ("maps=keypoints2d&partition=huge", "no lists of the partition 'huge'"),
        ("maps=keypoints2d&scale=0", "scale should be above 0"),
        ("maps=keypoints2d&scal=3", "unknown key 'scal'\nDid you mean 'scale'?"),
        ("maps=keypoints2d&valid=masks", "no folder .*masks, whose masks"),
    ):
        root = taskonomy(tmp_path)
        with pytest.raises((UsageError, DataError), match=message):
            open_signals(f"{root}?{options}")


def test_options_of_maps_without_maps_are_refused(tmp_path):
    root = taskonomy(tmp_path)
    with pytest.raises(UsageError, match="orientations are computed from the images"):
        open_orientations(f"{root}?maps=keypoints2d")
    with pytest.raises(UsageError, match="scale= has no effect without maps="):
        open_signals(f"{root}?scale=3")
    (tmp_path / "other" / "images").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"no folders images/ and heat/\nValid names: images."):
        open_signals(f"{tmp_path}/other?maps=heat")


def test_files_that_cannot_be_used_are_one_message(tmp_path):
    for i in range(2):
        write(tmp_path / "images" / f"{i}.png", picture(i))
        write(tmp_path / "heat" / f"{i}.png", RAW)
    opened = open_signal_maps(locate(f"{tmp_path}?maps=heat"))["all"].target.pixels
    with pytest.raises(DataError, match=r"whole numbers up to 9,400, 4.7e\+03 on average\nSay .*&scale=4700"):
        opened.read_values(0)
    scaled = open_signal_maps(locate(f"{tmp_path}?maps=heat&scale=4700"))["all"].target.pixels
    with pytest.raises(DataError, match="the map is 8 x 6 pixels, but its image 9 x 9"):
        scaled.read_values(0, size=(9, 9))
    write(tmp_path / "heat" / "0.png", picture(0))
    with pytest.raises(DataError, match="three numbers per pixel"):
        open_signals(f"{tmp_path}?maps=heat&scale=1")["all"].target.pixels.read_values(0)
    np.save(tmp_path / "heat" / "0.npy", -np.ones(SIZE, np.float32))
    (tmp_path / "heat" / "0.png").unlink()
    with pytest.raises(DataError, match="negative numbers"):
        open_signals(f"{tmp_path}?maps=heat&scale=1&log=true")["all"].target.pixels.read_values(0)


def test_a_listed_image_without_a_file_or_mask_is_named(tmp_path):
    root = taskonomy(tmp_path)
    (root / "mask_valid" / "allensville" / "point_1_view_0_domain_depth_zbuffer.png").unlink()
    with pytest.raises(DataError, match=r"1 images have no mask in .*: allensville/point_1_view_0_domain_rgb.png"):
        open_signals(f"{root}?maps=edge_occlusion")
    (root / "keypoints2d" / "beechwood" / "point_0_view_0_domain_keypoints2d.png").unlink()
    with pytest.raises(DataError, match=r"1 of 2 listed images have no file .*: beechwood/point_0_view_0"):
        open_signals(f"{root}?maps=keypoints2d")


@pytest.mark.parametrize("layout", ["flat", "inside", "outside", "depth", "yolo"])
def test_maps_beside_images_are_no_images(tmp_path, layout):
    beside = "depth" if layout == "depth" else "labels"
    for i in range(4):
        split = ("train", "test")[i % 2]
        folder = {"inside": "{0}/" + split, "outside": split + "/{0}"}.get(layout, "{0}")
        write(tmp_path / folder.format("images") / f"{i}.png", picture(i))
        (tmp_path / folder.format(beside)).mkdir(parents=True, exist_ok=True)
        if layout == "yolo":
            (tmp_path / folder.format(beside) / f"{i}.txt").write_text("0 .5 .5 .2 .2\n")
            (tmp_path / "classes.txt").write_text("cat\n")
        else:
            write(tmp_path / folder.format(beside) / f"{i}.png", np.full(SIZE, i % 2, np.uint8))
    for opened in (open_signals(str(tmp_path)), open_orientations(str(tmp_path))):
        assert sum(len(part) for part in opened.values()) == 4
        assert list(opened) == (["train", "test"] if layout in ("inside", "outside") else ["all"])
        assert all(getattr(part.target, "pixels", None) is None for part in opened.values())


def test_of_taskonomy_without_maps_the_images_are_taken_with_their_splits(tmp_path):
    parts = open_signals(str(taskonomy(tmp_path)))
    assert {split: len(part) for split, part in parts.items()} == {"train": 2, "test": 2}
    assert parts["test"].target.pixels is None and parts["test"].target.classes == ("signal",)
