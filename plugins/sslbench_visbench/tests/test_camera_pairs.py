"""Pairs of images with relative poses: NAVI, tables, and rotations made of images."""

import csv
import json

import cv2
import numpy as np
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from sslbench.data.images import Arrays
from sslbench.data.open import open_as
from sslbench.data.source import Source
from sslbench.data.splits import match_classes, train_test_of
from sslbench.errors import DataError, UsageError
from sslbench.targets.none import Unlabelled
from sslbench_visbench.camera_pairs import made_rotations, relative_pose
from sslbench_visbench.targets import CameraPairs


def matrix(pose):
    """Rotation and translation as a matrix (4, 4), w first in the quaternion."""
    found = np.eye(4)
    found[:3, :3] = Rotation.from_quat([*pose[1:4], pose[0]]).as_matrix()
    found[:3, 3] = pose[4:]
    return found


def test_a_relative_pose_is_the_product_of_matrices():
    for first, second in np.random.default_rng(0).normal(size=(10, 2, 7)):
        found = matrix(relative_pose(first, second))
        np.testing.assert_allclose(found, matrix(second) @ np.linalg.inv(matrix(first)), atol=1e-9)


def navi(root, views=6):
    """One object with two scenes: cameras at multiples of 30 degrees about z, every third is val."""
    for scene in ("multiview_00_a", "multiview_01_b"):
        folder = root / "bear" / scene
        (folder / "images").mkdir(parents=True)
        records = []
        for i in range(views):
            Image.new("RGB", (4, 4), (i, 0, 0)).save(folder / "images" / f"{i:03d}.jpg")
            half = np.radians(30 * i) / 2
            camera = {"q": [np.cos(half), 0.0, 0.0, np.sin(half)], "t": [100.0 * i, 0.0, 2000.0]}
            records.append({"filename": f"{i:03d}.jpg", "split": "val" if i % 3 == 2 else "train", "camera": camera})
        (folder / "annotations.json").write_text(json.dumps(records))
    return root


def test_navi_poses_are_in_metres_and_follow_the_order_of_the_pair(tmp_path):
    train = open_as(f"{navi(tmp_path)}?partners=9", CameraPairs)["train"]
    for i in range(len(train)):
        first, second = (train.target.images.path(row) for row in train.target.rows(i))
        assert first.rsplit("/", 1)[0] == second.rsplit("/", 1)[0] and first != second
        a, b = (int(path[-7:-4]) for path in (first, second))
        assert a % 3 != 2 != b % 3 and abs(a - b) <= 4
        poses = [[np.cos(np.radians(15 * k)), 0, 0, np.sin(np.radians(15 * k)), 0.1 * k, 0, 2] for k in (a, b)]
        wanted = matrix(np.array(poses[1])) @ np.linalg.inv(matrix(np.array(poses[0])))
        np.testing.assert_allclose(matrix(train.target.values[i]), wanted, atol=1e-9)
        assert train.target.values[i, 0] >= 0
    assert train.grouped_by == "scene" and len(set(train.attributes["scene"])) == 2
    assert len(open_as(str(tmp_path), CameraPairs)["train"]) == 8, "one partner of each image"


def write_table(path, columns, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def test_a_table_with_and_without_translations(tmp_path):
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    columns = ["first", "second", "qw", "qx", "qy", "qz", "split", "scene"]
    rows = [("a.png", "b.png", -2, 0, 0, 2, "train", "s"), ("b.png", "a.png", 1, 0, 0, 0, "test", "s")]
    write_table(tmp_path / "t.csv", columns, rows)
    parts = open_as(str(tmp_path / "t.csv"), CameraPairs)
    np.testing.assert_allclose(parts["train"].target.values, [[0.5**0.5, 0, 0, -(0.5**0.5)]])
    write_table(tmp_path / "u.csv", [*columns[:6], "tx", "ty", "tz"], [("a.png", "b.png", 1, 0, 0, 0, 7, 8, 9)])
    assert open_as(str(tmp_path / "u.csv"), CameraPairs)["all"].target.values.tolist() == [[1, 0, 0, 0, 7, 8, 9]]
    _, test = match_classes(parts["train"], parts["test"])
    assert test.target.values.tolist() == [[1, 0, 0, 0]], "numbers of test are not changed"


def test_views_of_a_made_pair_are_related_by_the_rotation():
    rng = np.random.default_rng(0)
    picture = cv2.resize(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8), (64, 64), interpolation=cv2.INTER_CUBIC)
    source = Source("x", ("a", "b"), Unlabelled(2), Arrays(np.stack([picture, picture[::-1]]), "x"))
    made = made_rotations(source)
    assert len(made) == 8 and made.target.classes == ("qw", "qx", "qy", "qz")
    camera = np.array([[64, 0, 31.5], [0, 64, 31.5], [0, 0, 1]])
    for i in range(4):
        first, second = (made.target.images.read(row).astype(float) for row in made.target.rows(i))
        turn = Rotation.from_quat(np.roll(made.target.values[i], -1)).as_matrix()
        moved = cv2.warpPerspective(first, camera @ turn @ np.linalg.inv(camera), (64, 64))
        inside = cv2.warpPerspective(np.ones((64, 64)), camera @ turn @ np.linalg.inv(camera), (64, 64)) == 1
        inside[[*range(20), *range(44, 64)]] = False  # beyond the border the picture is mirrored
        inside[:, [*range(20), *range(44, 64)]] = False
        assert np.abs(moved - second)[inside].mean() < 8 < np.abs(first - second)[inside].mean()


POSE = ["first", "second", "qw", "qx", "qy", "qz"]


def test_tables_that_cannot_be_used_are_one_message(tmp_path):
    for columns, row, message in (
        (["first", "second", "qw", "qx", "qy"], ("a", "b", 1, 0, 0), "no column 'qz'"),
        (POSE, ("a", "b", 1, 0, 0, 0), "2 of 2 image files missing: a, b"),
        (POSE, ("a", "b", 0, 0, 0, 0), "line 2: .* its quaternion is 0"),
        (POSE, ("a", "b", "1e-320", 0, 0, 0), "line 2: .* its quaternion is 0"),
        (POSE, ("a", "b", "1e200", "1e200", 0, 0), "line 2: a pose is not finite"),
        (POSE, ("a", "b", "nan", 0, 0, 0), "line 2: a pose is not finite"),
        (POSE, ("a", "b", "one", 0, 0, 0), "line 2: qw is 'one', which is no number"),
        (POSE, ("a", "b", 1), "line 2: 3 cells, but the header has 6"),
        (POSE, ("a", "b", 1, 0, 0, 0, 9), "line 2: 7 cells, but the header has 6"),
        ([*POSE, "qz"], ("a", "b", 1, 0, 0, 0, 0), "the column 'qz' twice"),
        ([*POSE, "tx", "ty"], ("a", "b", 1, 0, 0, 0, 1, 2), "no column 'tz'"),
        (POSE, ("", "b", 1, 0, 0, 0), "2 of 2 image files missing: '', b"),
        (POSE, ("a" * 200_000, "b", 1, 0, 0, 0), "field larger than field limit"),
    ):
        write_table(tmp_path / "t.csv", columns, [row])
        with pytest.raises((UsageError, DataError), match=message):
            open_as(str(tmp_path / "t.csv"), CameraPairs)


def test_a_table_without_rows_is_one_message(tmp_path):
    write_table(tmp_path / "t.csv", POSE, [])
    with pytest.raises(DataError, match="has no rows below its header"):
        open_as(str(tmp_path / "t.csv"), CameraPairs)


def test_locations_without_pairs_are_one_message(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match="no pairs of images with a relative pose were found"):
        open_as(str(tmp_path), CameraPairs)
    navi(tmp_path)
    with pytest.raises(UsageError, match="partners should be at least 1"):
        open_as(f"{tmp_path}?partners=0", CameraPairs)
    with pytest.raises(DataError, match="no two images of a scene within 1 degrees"):
        open_as(f"{tmp_path}?max_angle=1", CameraPairs)
    (tmp_path / "bear" / "multiview_00_a" / "annotations.json").write_text('[{"filename": "000.jpg"}]')
    with pytest.raises(DataError, match="is damaged, or no file of NAVI"):
        open_as(str(tmp_path), CameraPairs)
    for scene in ("multiview_00_a", "multiview_01_b"):
        (tmp_path / "bear" / scene / "annotations.json").write_text("[]")
    with pytest.raises(DataError, match="none of the images that its annotations list exists"):
        open_as(str(tmp_path), CameraPairs)


def chained(folder, links, columns=(), cell=lambda first: ()):
    """A table of pairs of 20 images: each with those `links` says."""
    for i in range(20):
        Image.new("RGB", (4, 4), (i, 0, 0)).save(folder / f"{i:02d}.png")
    rows = [(f"{i:02d}.png", f"{k:02d}.png", 1, 0, 0, 0, *cell(i)) for i in range(20) for k in links(i)]
    write_table(folder / "pairs.csv", [*POSE, *columns], rows)
    return str(folder / "pairs.csv")


def images_of(part):
    return {part.target.images.path(row) for i in range(len(part)) for row in part.target.rows(i)}


@pytest.mark.parametrize("columns", [(), ("scene",)])
def test_a_seeded_split_parts_no_pairs_that_share_an_image(tmp_path, columns):
    """Pairs were grouped by their first image, so that every pair of test contained an image of train."""
    place = chained(
        tmp_path, lambda i: [i // 4 * 4 + (i + 1) % 4], columns, lambda i: (f"scene {i % 2}{i}",) if columns else ()
    )
    data = train_test_of(lambda place: open_as(place, CameraPairs), place)
    assert len(data.test) == 4 and not images_of(data.train) & images_of(data.test)


def test_pairs_that_are_all_tied_by_images_are_not_split(tmp_path):
    place = chained(tmp_path, lambda i: [(i + 1) % 20])
    with pytest.raises(
        DataError, match=r"images that samples share tie them to 1 group\nSay the parts in a column 'split'"
    ):
        train_test_of(lambda place: open_as(place, CameraPairs), place)


@pytest.mark.parametrize(
    ("size", "turn", "refused"), [([9, 6], 6, False), ([6, 9], 1, False), ([6, 9], 6, True), ([9, 6], 1, True)]
)
def test_navi_images_are_turned_as_their_annotations_say(size, turn, refused, tmp_path):
    navi(tmp_path)
    exif = Image.Exif()
    exif[0x0112] = turn
    for scene in tmp_path.glob("bear/*"):
        for file in scene.glob("images/*.jpg"):
            Image.new("RGB", (18, 12)).save(file, exif=exif)  # of half the size, which changes no pose
        records = json.loads((scene / "annotations.json").read_text())
        (scene / "annotations.json").write_text(json.dumps([{**record, "image_size": size} for record in records]))
    if refused:
        with pytest.raises(DataError, match=r"000.jpg is .* but its annotation is for"):
            open_as(str(tmp_path), CameraPairs)
    else:
        assert all(part.sized for part in open_as(str(tmp_path), CameraPairs).values())
