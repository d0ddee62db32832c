"""Pairs of images and videos with masks: what is read, and what is refused before anything is encoded."""

import json
import shutil

import numpy as np
import pytest
from helpers.few_bits import grey_png
from PIL import Image
from sample_data import davis, hpatches, jhmdb, pf_pascal, spair, tss, vip
from scipy.io import savemat

from sslbench.data.formats.tss import read_flow
from sslbench.data.image_pairs import corner_homography, in_pixels
from sslbench.data.open import open_as
from sslbench.errors import DataError, UsageError
from sslbench.metrics.dense.correspondence import apply_homography
from sslbench.targets.pairs import Homographies, Points
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
    source = open_as(tss.make(tmp_path), Points, Homographies)["all"]
    there, back = source.target.pairs
    assert len(there.source_points) == 6 * 12 and (there.target_points - there.source_points == [2, 0]).all()
    assert (back.target_points - back.source_points == [-2, 0]).all() and not there.keypoints
    for content in (b"", b"PIEH", (tmp_path / "JODS/pair1/flow1.flo").read_bytes()[:-3]):
        (tmp_path / "JODS/pair1/flow1.flo").write_bytes(content)
        with pytest.raises(DataError, match=r"flow1.flo"):
            read_flow(tmp_path / "JODS/pair1/flow1.flo")


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
    from sslbench.data.objects import toy

    content = json.loads(toy.manifest("kwcoco:vidshapes2-frames3-128").read_text())
    del content["annotations"][0]["track_id"]
    file = toy.manifest("kwcoco:vidshapes2-frames3-128").parent / "without.kwcoco.json"
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match="1 annotations have no track_id"):
        open_as(str(file), Tracks, Parts, Poses)


def test_other_data_are_refused_with_what_is_supported(tmp_path):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(UsageError, match=r"(?s)has no pairs of images .*Looked for:.*homography:PLACE.*SPair-71k"):
        open_as(str(tmp_path), Points, Homographies)
    with pytest.raises(UsageError, match=r"(?s)has no videos with masks .*Looked for:.*DAVIS"):
        open_as(str(tmp_path), Tracks, Parts, Poses)
    with pytest.raises(UsageError, match="does not exist"):
        open_as(str(tmp_path / "nothing"), Points, Homographies)
