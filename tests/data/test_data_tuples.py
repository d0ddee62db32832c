"""Pairs, videos and triplets of images."""

import csv
import dataclasses
import json
import shutil
import struct
import zlib

import numpy as np
import pytest
from helpers.few_bits import grey_png
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sample_data import davis, dense_flow, hpatches, jhmdb, pf_pascal, spair, vip
from scipy.io import savemat

from sslbench.data.decode.arrays import flow_of
from sslbench.data.formats.dense_flow import read_flow
from sslbench.data.formats.triplets import made_triplets
from sslbench.data.image_pairs import corner_homography, in_pixels
from sslbench.data.images import Arrays
from sslbench.data.open import open_as
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.features.array import Features
from sslbench.features.extract import side_by_side
from sslbench.metrics.dense.correspondence import apply_homography
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled
from sslbench.targets.pairs import Homographies, Points
from sslbench.targets.triplets import RatedPairs, Triplets
from sslbench.targets.videos import Parts, Poses, Tracks


def test_spair_has_points_box_and_category(tmp_path):
    source = open_as(spair.make(tmp_path), Points, Homographies)["test"]
    assert source.target.classes == ("cat",) and isinstance(source.target, Points)
    pair = source.target.pairs[0]
    assert pair.source_points.tolist() == [[3, 4], [10, 8]] and pair.target_points.tolist() == [[4, 4], [11, 8]]
    assert pair.side == 10 and len(source.target.images) == 3


def test_pairs_that_cannot_be_scored_are_listed(tmp_path):
    for i, (changes, message) in enumerate(
        (
            ({"src_kps": [], "trg_kps": []}, "1 of 1 pairs have no point that is visible in both images: p:cat"),
            ({"trg_kps": [[4, 4], [40, 8]]}, "1 of 1 pairs have points outside the image: p:cat"),
            ({"trg_bndbox": [3, 3, 3, 3]}, "have a target box without extent"),
            ({"trg_kps": [[4, 4]]}, "2 points of the source and 1 of the target"),
            ({"trg_bndbox": [3, 3]}, "no annotation of a pair"),
        )
    ):
        with pytest.raises(DataError, match=message):
            open_as(
                spair.make(tmp_path / str(i), {"p:cat": spair.annotation("a", "b", **changes)}), Points, Homographies
            )


def test_pf_pascal_refers_to_the_image_without_mat_files(tmp_path):
    source = open_as(pf_pascal.make(tmp_path), Points, Homographies)["test"]
    first = source.target.pairs[0]
    assert first.side == 20 and first.target_points.tolist() == [[4, 4], [11, 8]]
    assert source.target.classes == ("cat", "dog") and "no .mat files" in source.notes[0]


def test_pf_pascal_takes_points_and_box_of_mat_files(tmp_path):
    from scipy.io import savemat

    root = pf_pascal.make(tmp_path)
    (tmp_path / "test_pairs.csv").write_text("source_image,target_image,class\na.jpg,b.jpg,8\n")
    (tmp_path / "Annotations" / "cat").mkdir(parents=True)
    for name, points in (("a", [[3, 4], [np.nan, np.nan], [5, 6]]), ("b", [[4, 4], [7, 7], [6, 6]])):
        content = {"kps": np.array(points, float), "bbox": [[1, 2, 9, 5]]}
        savemat(tmp_path / "Annotations" / "cat" / f"{name}.mat", content)
    (pair,) = open_as(root, Points, Homographies)["test"].target.pairs
    assert pair.source_points.tolist() == [[3, 4], [5, 6]] and pair.side == 8


def test_flow_leads_from_pixels_of_one_image_to_the_other(tmp_path):
    source = open_as(dense_flow.make(tmp_path), Points, Homographies)["all"]
    there, back = source.target.pairs
    assert len(there.source_points) == 6 * 12 and (there.target_points - there.source_points == [2, 0]).all()
    assert (back.target_points - back.source_points == [-2, 0]).all() and not there.keypoints
    for content in (b"", b"PIEH", (tmp_path / "JODS/pair1/flow1.flo").read_bytes()[:-3]):
        (tmp_path / "JODS/pair1/flow1.flo").write_bytes(content)
        with pytest.raises(DataError, match=r"flow1.flo"):
            read_flow(tmp_path / "JODS/pair1/flow1.flo")


def png_of_16_bits(rows):
    """A PNG of three channels of 16 bits, byte by byte: signature, head, one block of rows without a filter, end."""
    raw = b"".join(b"\0" + b"".join(struct.pack(">3H", *pixel) for pixel in row) for row in rows)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 16, 2, 0, 0, 0)
    blocks = [(b"IHDR", head), (b"IDAT", zlib.compress(raw)), (b"IEND", b"")]
    parts = [struct.pack(">I", len(d)) + kind + d + struct.pack(">I", zlib.crc32(kind + d)) for kind, d in blocks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@given(
    st.lists(st.lists(st.tuples(*[st.integers(0, 65535)] * 2, st.integers(0, 1)), min_size=3, max_size=3), min_size=1)
)
def test_kittis_flow_is_as_its_development_kit_says(rows):
    flow = flow_of(png_of_16_bits(rows), "f.png")
    assert flow.dtype == np.float32 and flow.shape == (len(rows), 3, 2)
    for y, row in enumerate(rows):
        for x, (red, green, valid) in enumerate(row):
            wanted = [(red - 32768.0) / 64.0, (green - 32768.0) / 64.0] if valid else [np.nan, np.nan]
            np.testing.assert_array_equal(flow[y, x], wanted)


@pytest.mark.parametrize("images", ["image_2", "colored_0"])
def test_kitti_leads_from_the_first_image_to_the_next(tmp_path, images):
    top = tmp_path / "training"
    for folder in (images, "flow_noc", "flow_occ"):
        (top / folder).mkdir(parents=True)
    for time in (10, 11):
        Image.fromarray(np.full((12, 20, 3), time, np.uint8)).save(top / images / f"000007_{time}.png")
    rows = [[(32768 + 64 * 2, 32768 - 32, int(3 <= y < 9 and x < 8)) for x in range(20)] for y in range(12)]
    (top / "flow_noc" / "000007_10.png").write_bytes(png_of_16_bits(rows))
    source = open_as(str(tmp_path), Points, Homographies)["all"]
    (pair,) = source.target.pairs
    assert source.ids == ("000007",) and source.target.classes == ("kitti",) and len(pair.source_points) == 6 * 8
    assert (pair.target_points - pair.source_points == [2, -0.5]).all() and pair.side == 20
    assert open_as(str(top), Points)["all"].fingerprint() == source.fingerprint()
    Image.fromarray(np.zeros((12, 20, 3), np.uint8)).save(top / "flow_noc" / "000007_10.png")
    with pytest.raises(DataError, match=r"000007_10\.png.* uint8 \(12, 20, 3\), not three channels of 16 bits"):
        open_as(str(tmp_path), Points)
    (top / "flow_noc" / "000007_10.png").write_bytes(png_of_16_bits(rows)[:60])
    with pytest.raises(DataError, match=r"000007_10\.png"):
        open_as(str(tmp_path), Points)


def test_hpatches_pairs_the_first_image_with_the_others(tmp_path):
    source = open_as(hpatches.make(tmp_path), Points, Homographies)["all"]
    assert source.ids == ("i_a/1-2", "i_a/1-3", "v_b/1-2", "v_b/1-3") and len(source.target.images) == 6
    assert source.target.pairs[1].homography[0, 2] == 3
    (tmp_path / "i_a" / "H_1_2").write_text("1 0 0 0 0 0 0 0 1")
    with pytest.raises(DataError, match=r"H_1_2 is no homography"):
        open_as(str(tmp_path), Points, Homographies)


def test_made_homographies_move_pixels_where_they_say(tmp_path):
    picture = np.zeros((60, 80, 3), np.uint8)
    picture[20:24, 30:34] = 255
    Image.fromarray(picture).save(tmp_path / "dot.png")
    source = open_as(f"homography:{tmp_path}", Points, Homographies)["all"]
    assert len(source) == 5 and len(source.target.images) == 6
    for pair in source.target.pairs:
        warped = source.target.images.read(pair.target)[:, :, 0].astype(float)
        rows, columns = np.mgrid[:60, :80]
        centre = (columns * warped).sum() / warped.sum(), (rows * warped).sum() / warped.sum()
        true = apply_homography(in_pixels(pair.homography, 60, 80), np.array([[31.5, 21.5]]))[0]
        np.testing.assert_allclose(centre, true, atol=0.2)
    same = open_as(f"homography:{tmp_path}", Points, Homographies)["all"]
    assert same.fingerprint() == source.fingerprint()


def test_corners_stay_within_the_strength():
    for seed in range(20):
        moved = apply_homography(
            corner_homography(np.random.default_rng(seed), 0.2), np.array([[0.0, 0], [1, 0], [1, 1], [0, 1]])
        )
        assert np.abs(moved - [[0, 0], [1, 0], [1, 1], [0, 1]]).max() <= 0.2 + 1e-12


def test_davis_reads_frames_in_order_and_void_as_background(tmp_path):
    source = open_as(davis.make(tmp_path), Tracks, Parts, Poses)["val"]
    assert source.ids == ("cow", "dog") and source.target.rows(1) == (4, 5, 6, 7)
    ids = source.target.masks.read_ids(1)
    assert ids[0, 0] == 0 and ids[3, 1:6].tolist() == [1] * 5


@pytest.mark.parametrize("make", [davis.make, vip.make])
@pytest.mark.parametrize("bits", [1, 2, 4, 16])
def test_masks_of_any_number_of_bits_hold_the_numbers_of_their_file(make, bits, tmp_path):
    """Grey of 4 bits was stretched by 17: object 1 became 17, and class 4 a class that VIP does not have."""
    root, number = make(tmp_path), min(3, 2**bits - 1)
    for file in tmp_path.glob("Annotations/**/*.png"):
        ids = np.array(Image.open(file))
        file.write_bytes(grey_png(np.where((ids > 0) & (ids < 255), number, 0), bits))
    (source,) = open_as(root, Tracks, Parts, Poses).values()
    assert np.unique(source.target.masks.read_ids(0)).tolist() == [0, number]


def test_masks_in_colours_are_refused(tmp_path):
    root = davis.make(tmp_path)
    Image.new("RGB", (20, 12), "red").save(tmp_path / "Annotations/480p/cow/00000.png")
    with pytest.raises(DataError, match="a colour image, but every pixel should hold one number"):
        open_as(root, Tracks, Parts, Poses)


def test_videos_that_cannot_be_scored_are_listed(tmp_path):
    for i, (make, message) in enumerate(
        (
            ({"frames": 1}, r"2 of 2 videos have fewer than three frames: .* cow \(1\), dog \(1\)"),
            ({"first": 0}, "2 of 2 videos have no object in the first frame"),
            (
                {"size": (6, 10)},
                r"8 masks are not of the size of their frame: cow/00000"
                r" \(the mask is 10 x 6 pixels, but its image 20 x 12\)",
            ),
        )
    ):
        with pytest.raises(DataError, match=message):
            open_as(davis.make(tmp_path / str(i), **make), Tracks, Parts, Poses)


@pytest.mark.parametrize("part", ["JPEGImages", "Annotations"])
def test_a_missing_video_of_davis_is_named_and_a_list_without_masks_is_left_out(tmp_path, part):
    root = davis.make(tmp_path)
    (tmp_path / "ImageSets/2017/test-dev.txt").write_text("fish\n")
    assert list(open_as(root, Tracks, Parts, Poses)) == ["val"]
    shutil.rmtree(tmp_path / part / "480p" / "dog")
    with pytest.raises(DataError, match=rf"val.txt: there is no folder .*{part}/480p/dog\nUnpack the archive again"):
        open_as(root, Tracks, Parts, Poses)


def test_frames_without_a_mask_are_listed(tmp_path):
    root = davis.make(tmp_path)
    (tmp_path / "Annotations/480p/dog/00002.png").unlink()
    with pytest.raises(DataError, match="1 of 8 frames have no mask: dog/00002"):
        open_as(root, Tracks, Parts, Poses)


def test_vip_has_a_class_per_pixel_and_the_videos_of_its_lists(tmp_path):
    sources = open_as(vip.make(tmp_path), Tracks, Parts, Poses)
    assert list(sources) == ["val"] and sources["val"].ids == ("videos10", "videos9")
    source = sources["val"]
    assert isinstance(source.target, Parts) and len(source.target.classes) == 20
    assert [source.target.classes[c] for c in (0, 4, 19)] == ["background", "upper-clothes", "left-shoe"]
    ids = source.target.masks.read_ids(1)
    assert ids[0, 0] == 255 and ids[3, 1:6].tolist() == [4] * 5 and ids[4, 1] == 8
    assert [source.target.images.path(row)[-9:] for row in source.target.rows(0)][-1] == "00075.jpg"


def test_vip_that_cannot_be_scored_is_refused(tmp_path):
    for i, (make, message) in enumerate(
        (
            ({"lists": ()}, r"there is no list of videos, lists/val_videos.txt\nGive the folder VIP_Fine"),
            ({"frames": 1}, r"2 of 2 videos have fewer than two frames: the first one is given: videos10 \(1\)"),
            ({"classes": (0, 0)}, "2 of 2 videos have no part in the first frame"),
            ({"classes": (4, 20)}, r"has class 20; there are the classes 0 to 19, and 255"),
            (
                {"size": (6, 10)},
                r"8 masks are not of the size of their frame: videos10/000000000000"
                r" \(the mask is 10 x 6 pixels, but its image 20 x 12\)",
            ),
        )
    ):
        with pytest.raises(DataError, match=message):
            open_as(vip.make(tmp_path / str(i), **make), Tracks, Parts, Poses)


def test_videos_of_a_list_of_vip_that_are_missing_are_listed(tmp_path):
    root = vip.make(tmp_path)
    (tmp_path / "lists/val_videos.txt").write_text("videos9\nadhoc/videos11\n")
    with pytest.raises(DataError, match=r"val_videos.txt: 1 of 2 videos are not in both .*: videos11"):
        open_as(root, Tracks, Parts, Poses)


def test_jhmdb_has_joints_counted_from_zero_and_the_first_split(tmp_path):
    sources = open_as(jhmdb.make(tmp_path), Tracks, Parts, Poses)
    assert sources["train"].ids == ("wave/a", "wave/b") and sources["test"].ids == ("wave/c", "wave/d")
    source = sources["test"]
    assert isinstance(source.target, Poses) and source.target.classes[:2] == ("neck", "belly")
    assert len(source.notes) == 1 and "2 clips have others: wave/c (24 x 12), wave/d (24 x 12)" in source.notes[0]
    joints = source.target.joints[0]
    assert joints.shape == (4, 15, 2) and joints[2, 1].tolist() == [4, 3]
    assert source.target.images.path(source.target.rows(1)[0]).endswith("wave/d/00001.png")


def test_the_shorter_of_frames_and_joints_counts_and_is_said(tmp_path):
    source = open_as(jhmdb.make(tmp_path, frames=5, annotated=3), Tracks, Parts, Poses)["test"]
    assert [len(source.target.rows(i)) for i in range(2)] == [3, 3]
    assert "2 clips have unequal numbers of frames and joints: wave/c (5 and 3)" in source.notes[0]


def test_jhmdb_that_cannot_be_scored_is_refused(tmp_path):
    for i, (make, message) in enumerate(
        (
            ({"lists": False}, r"there is no list of clips, splits/ACTION_test_split1.txt"),
            ({"frames": 1}, "2 of 2 videos have fewer than two frames"),
            ({"shift": 100.0}, "2 of 2 videos have fewer than two joints inside the first frame: wave/c, wave/d"),
            ({"shift": np.nan}, "2 of 2 videos have joints whose positions are no finite numbers"),
        )
    ):
        with pytest.raises(DataError, match=message):
            open_as(jhmdb.make(tmp_path / str(i), **make), Tracks, Parts, Poses)


def test_damaged_files_of_jhmdb_are_named(tmp_path):
    root = jhmdb.make(tmp_path)
    file = tmp_path / "joint_positions/wave/c/joint_positions.mat"
    savemat(file, {"pos_img": np.ones((2, 14, 4))})
    with pytest.raises(DataError, match=r"pos_img is \(2, 14, 4\), not \(2, 15, frames\)"):
        open_as(root, Tracks, Parts, Poses)
    savemat(file, {"scale": 1.0})
    with pytest.raises(DataError, match="has no array pos_img"):
        open_as(root, Tracks, Parts, Poses)
    file.write_bytes(b"MATLAB 5.0" + bytes(200))
    with pytest.raises(DataError, match="cannot be read"):
        open_as(root, Tracks, Parts, Poses)
    file.unlink()
    with pytest.raises(DataError, match=r"1 of 2 clips have no joint_positions.mat: wave/c"):
        open_as(root, Tracks, Parts, Poses)
    (tmp_path / "splits/wave_test_split1.txt").write_text("a.avi\n")
    with pytest.raises(DataError, match=r"line 1: .a\.avi. is not a clip with 1"):
        open_as(root, Tracks, Parts, Poses)


def test_manifests_need_track_ids(tmp_path):
    source = open_as("kwcoco:vidshapes2-frames3-128", Tracks, Parts, Poses)["all"]
    assert isinstance(source.target, Tracks) and len(source) == 2 and len(source.target.rows(0)) == 3
    from sslbench.data.formats import kwcoco as toy

    content = json.loads(toy.manifest("kwcoco:vidshapes2-frames3-128").read_text())
    del content["annotations"][0]["track_id"]
    file = toy.manifest("kwcoco:vidshapes2-frames3-128").parent / "without.kwcoco.json"
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="1 annotations have no track_id"):
        open_as(str(file), Tracks, Parts, Poses)


def test_other_data_are_refused_with_what_is_supported(tmp_path):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"(?s)no pairs of images .*Looked for:.*homography:PLACE.*SPair-71k"):
        open_as(str(tmp_path), Points, Homographies)
    with pytest.raises(UsageError, match=r"(?s)no videos with masks .*Looked for:.*DAVIS"):
        open_as(str(tmp_path), Tracks, Parts, Poses)
    with pytest.raises(UsageError, match="does not exist"):
        open_as(str(tmp_path / "nothing"), Points, Homographies)


NIGHTS = "id left_vote right_vote votes ref_path left_path right_path split is_imagenet".split()


def write_table(path, columns, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])


def nights(root, rows):
    """NIGHTS' folder with the rows (left vote, right vote, votes, reference number, split)."""
    for number in {row[3] for row in rows}:
        for name in (f"ref/{number}.png", f"distort/{number}_0.png", f"distort/{number}_1.png"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (number, 0, 0)).save(root / name)
    files = [(f"ref/{n}.png", f"distort/{n}_0.png", f"distort/{n}_1.png") for *_, n, _ in rows]
    listed = [(i, *row[:3], *files[i], row[4], "FALSE") for i, row in enumerate(rows)]
    write_table(root / "data.csv", NIGHTS, listed)
    return root


ROWS = [(1, 0, 6, 3, "train"), (0, 1, 8, 1, "test"), (1, 0, 5, 2, "test"), (1, 0, 6, 0, "test"), (0, 1, 7, 1, "test")]


def test_nights_splits_choices_and_votes(tmp_path):
    parts = open_as(str(nights(tmp_path, ROWS)), Triplets)
    assert list(parts) == ["train", "test"]
    test = parts["test"]
    assert isinstance(test.target, Triplets) and [test.target.text(i) for i in range(3)] == ["left", "right", "right"]
    assert [i.split()[0] for i in test.ids] == ["ref/0.png", "ref/1.png", "ref/1.png"]
    paths = [[test.target.images.path(row) for row in test.target.rows(i)] for i in range(3)]
    assert [[path.removeprefix(f"{tmp_path}/") for path in row] for row in paths] == [
        [f"ref/{n}.png", f"distort/{n}_0.png", f"distort/{n}_1.png"] for n in (0, 1, 1)
    ]
    assert test.notes == (f"{tmp_path} (test): 1 triplets with fewer than 6 equal votes are left out",)
    assert test.grouped_by == "reference" and len(set(test.attributes["reference"])) == 2
    assert len(open_as(f"{tmp_path}?min_votes=5", Triplets)["test"]) == 4


def test_a_table_of_choices_and_of_numbers_of_votes(tmp_path):
    nights(tmp_path, ROWS)
    files = ("ref/0.png", "ref/1.png", "ref/2.png")
    write_table(tmp_path / "own.csv", ["ref", "left", "right", "choice"], [(*files, "Right"), (*files[::-1], "left")])
    (part,) = open_as(str(tmp_path / "own.csv"), Triplets).values()
    assert part.target.values.tolist() == [1, 0] and len(part.target.images) == 3
    columns = ["ref", "left", "right", "left_vote", "right_vote"]
    write_table(tmp_path / "votes.csv", columns, [(*files, 3, 2), (*files, 1, 1)])
    (part,) = open_as(str(tmp_path / "votes.csv"), Triplets).values()
    assert part.target.values.tolist() == [0] and "as many votes for both" in part.notes[0]


def test_selected_triplets_keep_their_images_and_the_fingerprint_has_the_places(tmp_path):
    test = open_as(str(nights(tmp_path, ROWS)), Triplets)["test"]
    one = test.select([2])
    assert [one.target.images.path(r) for r in one.target.rows(0)] == [
        test.target.images.path(r) for r in test.target.rows(2)
    ]
    assert len(one.target.images) == 3 and isinstance(one.every_image().target, Unlabelled)
    turned = dataclasses.replace(test, target=test.target.changed(places=test.target.places[:, [0, 2, 1]]))
    assert turned.fingerprint() != test.fingerprint()


def test_features_of_triplets_are_those_of_their_images_and_unread_ones_are_left_out(tmp_path):
    test = open_as(str(nights(tmp_path, ROWS)), Triplets)["test"]
    every = test.every_image()
    x = np.arange(2 * len(every), dtype=np.float32).reshape(-1, 2)
    features = Features(x, every.target, every.ids)
    found = side_by_side(features, test)
    assert found.regions == 3 and found.ids == test.ids
    for i in range(3):
        assert found.x[i].tolist() == x[list(test.target.rows(i))].ravel().tolist()
    lost = test.target.rows(0)[1]
    kept = np.array([row for row in range(len(every)) if row != lost])
    assert side_by_side(features.select(kept), test).ids == test.ids[1:]


def test_the_keys_have_the_content_and_not_the_place_of_the_data(tmp_path):
    found = []
    for name in ("here", "there"):
        nights(tmp_path / name, ROWS)
        source = open_as(str(tmp_path / name), Triplets)["test"]
        found.append((source.fingerprint(), source.every_image().images_fingerprint()))
    assert found[0] == found[1]
    Image.new("RGB", (4, 4), (99, 0, 0)).save(tmp_path / "there" / "ref" / "1.png")
    changed = open_as(str(tmp_path / "there"), Triplets)["test"]
    assert changed.fingerprint() != found[0][0] and changed.every_image().images_fingerprint() != found[0][1]


def test_of_two_candidates_made_by_classes_one_has_the_class_of_the_reference():
    values = np.array([0, 0, 0, 1, 1, 2])
    images = Arrays(np.arange(6, dtype=np.uint8)[:, None, None, None] + np.zeros((6, 4, 4, 3), np.uint8), "x")
    source = Source("x", tuple("abcdef"), Classes(("a", "b", "c"), values), images)
    made = made_triplets(source)
    assert len(made) == 5 * 4, "the only image of its class is no reference"
    for i in range(len(made)):
        ref, *candidates = made.target.rows(i)
        same = [values[row] == values[ref] for row in candidates]
        assert same.index(True) == made.target.values[i] and sum(same) == 1 and ref not in candidates
    assert 0 < made.target.values.mean() < 1 and made_triplets(source).fingerprint() == made.fingerprint()
    with pytest.raises(DataError, match="no two classes"):
        made_triplets(source.select([0, 1]))


def test_tables_that_cannot_be_used_are_one_message(tmp_path):
    for columns, row, message in (
        (["ref", "left", "choice"], ("a", "b", "left"), "no column 'right'"),
        (["ref", "left", "right"], ("a", "b", "c"), "no column 'choice', and no left_vote and right_vote"),
        (["ref", "left", "right", "choice"], ("a", "b", "c", "middle"), "'middle', which is neither left nor right"),
        (["ref", "left", "right", "choice"], ("a.png", "b", "c", "left"), "3 of 3 image files missing: a.png, b"),
        (["ref", "left", "right", "left_vote", "right_vote"], ("a", "b", "c", "x", 1), "left_vote is 'x', which is no"),
        (["ref", "left", "right", "left_vote", "right_vote"], ("a", "b", "c", "nan", 1), "left_vote is 'nan', which"),
        (["ref", "left", "right", "choice"], ("a", "b", "c", ""), "line 2: the choice is missing"),
        (["ref", "left", "right", "choice", "votes"], ("a", "b", "c", "left", ""), "line 2: votes is missing"),
        (["ref", "left", "right", "choice"], ("a", "b", "c", "left", "d"), "5 cells, but the header has 4"),
        (["ref", "left", "right", "choice"], ("a" * 200_000, "b", "c", "left"), "field larger than field limit"),
    ):
        write_table(tmp_path / "t.csv", columns, [row])
        with pytest.raises((UsageError, DataError), match=message):
            open_as(str(tmp_path / "t.csv"), Triplets)


def test_locations_without_triplets_are_one_message(tmp_path):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match="no triplets of images"):
        open_as(str(tmp_path), Triplets)
    nights(tmp_path, ROWS)
    with pytest.raises(DataError, match=r"no triplet .*\nGive a smaller \?min_votes="):
        open_as(f"{tmp_path}?min_votes=9", Triplets)
    with pytest.raises(UsageError, match="min_votes should be at least 1, not -1"):
        open_as(f"{tmp_path}?min_votes=-1", Triplets)
    with pytest.raises(UsageError, match="unknown key 'votes'"):
        open_as(f"{tmp_path}?votes=9", Triplets)


def rated(folder, rows, header="image1,image2,score"):
    for name in "abc":
        Image.fromarray(np.full((4, 5), ord(name), np.uint8)).save(folder / f"{name}.png")
    table = folder / "ratings.csv"
    table.write_text("\n".join([header, *rows]) + "\n")
    return str(table)


def test_rated_pairs_of_a_table_and_of_rows_are_the_same(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source = open_as(rated(tmp_path, ["b.png,a.png,2.5", "a.png,c.png,4"]), Triplets, RatedPairs)["all"]
    assert isinstance(source.target, RatedPairs) and source.target.values.tolist() == [[4.0], [2.5]]
    assert source.ids == ("a.png 000001", "b.png 000000") and source.grouped_by == "image"
    cells = {name: {"bytes": (tmp_path / f"{name}.png").read_bytes(), "path": None} for name in "abc"}
    columns = {"sentence1": [cells["a"], cells["b"]], "sentence2": [cells["c"], cells["a"]], "score": [4.0, 2.5]}
    (tmp_path / "sts" / "data").mkdir(parents=True)
    pq.write_table(pa.table(columns), tmp_path / "sts" / "data" / "test-00000-of-00001.parquet")
    (split, rows), *_ = open_as(str(tmp_path / "sts"), Triplets, RatedPairs).items()
    assert split == "test" and rows.target.values.tolist() == [[4.0], [2.5]]
    for pair in range(2):
        read = [[target.images.read(i) for i in target.rows(pair)] for target in (source.target, rows.target)]
        assert read[0] == read[1]
    assert source.target.select(np.array([1])).rows(0) == (1, 0), "its own images alone: a and b"


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a.png,b.png,x"], ("line 2", "'x', which is no number")),
        (["a.png,b.png,"], ("line 2", "score is missing")),
        (["a.png,,1"], ("line 2", "image of the pair is missing")),
        (["a.png,z.png,1"], ("z.png",)),
    ],
)
def test_a_rated_pair_that_is_none_is_named(tmp_path, rows, words):
    with pytest.raises((DataError, UsageError)) as error:
        open_as(rated(tmp_path, rows), Triplets, RatedPairs)
    assert all(word in str(error.value) for word in words)
