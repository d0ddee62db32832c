"""Clips of videos: chosen frames, decoding, bad files, keys."""

import dataclasses

import cv2
import numpy as np
import pytest
import torch
from helpers.clips import counting, number_of, write_classes, write_video

from sslbench.data.checks.sheets import thumbnails
from sslbench.data.decode.handlers import Reading, picture_decoder, picture_of
from sslbench.data.decode.picture import UnreadableImage
from sslbench.data.decode.sampling import ClipOptions, TooFewFrames
from sslbench.data.loading import loader
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing


def decoded(spec, row=0, **preprocessing):
    images = open_data(str(spec))["all"].images
    return picture_of(images, row, picture_decoder(Preprocessing(**preprocessing), images))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"frames": 4}, [2, 7, 12, 17]),
        ({"frames": 3, "stride": 2}, [7, 9, 11]),
        ({"frames": 3, "stride": 2, "clips": 3}, [0, 2, 4, 7, 9, 11, 15, 17, 19]),
        ({"frames": 3, "fps": 2.5}, [5, 9, 13]),
        ({"frames": 2, "fps": 5, "clips": 2}, [0, 2, 17, 19]),
        ({"at": "0|19|3"}, [0, 19, 3]),
        ({"at": "0s|0.55s|1.9s"}, [0, 5, 19]),
        ({"frames": 30, "short": "repeat", "stride": 1}, [*range(20), *[19] * 10]),
    ],
)
def test_frames_are_chosen_as_the_options_say(tmp_path, options, wanted):
    """Twenty frames at ten per second, whose grey level tells their number."""
    write_video(tmp_path / "v.mp4", counting(20))
    query = "&".join(f"{key}={value}" for key, value in options.items())
    picture = decoded(f"{tmp_path}?{query}")
    assert picture.frames == len(wanted) and picture.image.shape == (3 * len(wanted), 32, 32)
    assert number_of(picture.image.unflatten(0, (-1, 3))) == wanted


@pytest.mark.parametrize(("suffix", "codec"), [("avi", "mpeg4"), ("webm", "libvpx-vp9"), ("mkv", "ffv1")])
def test_containers_and_codecs_give_the_same_frames(tmp_path, suffix, codec):
    write_video(tmp_path / f"v.{suffix}", counting(20), codec=codec)
    picture = decoded(f"{tmp_path}?frames=5")
    assert number_of(picture.image.unflatten(0, (-1, 3))) == [2, 6, 10, 14, 18]


def test_frames_of_an_uneven_rate_are_found_by_their_time():
    times = np.array([0, 0.1, 0.2, 1.0, 1.1, 1.2])
    assert ClipOptions(frames=3, fps=2).rows(times).tolist() == [1, 2, 4]
    assert ClipOptions(at="0.99s|1s").rows(times).tolist() == [2, 3]


def test_pixels_are_those_of_another_reader(tmp_path):
    """OpenCV brings a decoder and a conversion of colours of its own."""
    frames = [
        np.random.default_rng(i).integers(0, 256, (8, 8, 3), np.uint8).repeat(8, 0).repeat(8, 1) for i in range(6)
    ]
    write_video(tmp_path / "v.mp4", frames)
    picture = decoded(f"{tmp_path}?frames=6").image.unflatten(0, (-1, 3)).int()
    capture = cv2.VideoCapture(str(tmp_path / "v.mp4"))
    theirs = torch.stack([torch.from_numpy(capture.read()[1][:, :, ::-1].copy()) for _ in range(6)])
    difference = (picture - theirs.permute(0, 3, 1, 2).int()).abs()
    assert difference.float().mean() < 2 and difference.max() < 40  # chroma is interpolated in two ways


def test_every_frame_is_resized_as_an_image_is(tmp_path):
    write_video(
        tmp_path / "v.mp4", [np.random.default_rng(i).integers(0, 256, (48, 64, 3), np.uint8) for i in range(4)]
    )
    source, whole = open_data(f"{tmp_path}?frames=4")["all"], decoded(f"{tmp_path}?frames=4").image
    preprocessing = Preprocessing(24, (20, 20))
    batch = next(loader.batches(source, np.arange(1), preprocessing, batch_size=1, workers=0))
    from sslbench.data.decode.transforms import resize_and_crop

    alone = [resize_and_crop(frame, preprocessing) for frame in whole.split(3)]
    torch.testing.assert_close(batch.images[0], torch.cat(alone))


def test_turned_videos_of_telephones_are_put_upright(tmp_path):
    frame = np.zeros((32, 64, 3), np.uint8)
    frame[:, :32] = 250
    content = bytearray(write_video(tmp_path / "plain.mp4", [frame] * 4).read_bytes())
    # The matrix in the head of the track: by 16.16 and 2.30, a quarter turn.
    start = content.index(b"tkhd") + 4 + 40
    one = (1 << 16).to_bytes(4, "big")
    minus = (-(1 << 16)).to_bytes(4, "big", signed=True)
    zero = bytes(4)
    matrix = zero + one + zero + minus + zero + zero + zero + zero + (1 << 30).to_bytes(4, "big")
    content[start : start + 36] = matrix
    (tmp_path / "turned").mkdir()
    (tmp_path / "turned" / "v.mp4").write_bytes(content)
    picture = decoded(f"{tmp_path / 'turned'}?frames=2")
    capture = cv2.VideoCapture(str(tmp_path / "turned" / "v.mp4"))
    theirs = capture.read()[1]
    assert picture.image.shape[1:] == theirs.shape[:2] == (64, 32)
    assert abs(float(picture.image[0].float().mean(1)[0]) - float(theirs[0, 0, 2])) < 4
    assert picture.conversions == ("turned upright (display matrix)",)


def test_folders_have_labels_and_splits_and_every_video_is_a_sample(tmp_path):
    parts = open_data(f"{write_classes(tmp_path)}/?frames=4")
    assert {split: len(part) for split, part in parts.items()} == {"train": 12, "test": 8}
    assert parts["train"].ids[0] == "left/0.mp4" and parts["train"].target.classes == ("left", "right")
    assert "4 frames (spread over the video) of each of 12 videos" in parts["train"].notes[-1]
    assert parts["train"].select([2]).images.options.frames == 4


def test_lists_name_videos(tmp_path):
    write_classes(tmp_path / "videos")
    rows = [f"{path.relative_to(tmp_path)} {path.parent.name}" for path in sorted(tmp_path.rglob("*.mp4"))]
    (tmp_path / "list.txt").write_text("\n".join(rows))
    (tmp_path / "list.csv").write_text("\n".join(["path,label", *(row.replace(" ", ",") for row in rows)]))
    for name in ("list.txt", "list.csv"):
        source = open_data(f"{tmp_path / name}?frames=2")["all"]
        assert len(source) == 20 and source.target.classes == ("left", "right")
        assert source.images.options.frames == 2


@pytest.mark.parametrize(("height", "width"), [(32, 64), (64, 32), (32, 32)])
def test_crops_are_squares_from_one_end_to_the_other_clip_by_clip(tmp_path, height, width):
    """Grey tells the frame, and a ramp along the longer side the place."""
    ramp = np.arange(max(height, width), dtype=np.uint8)
    ramp = np.broadcast_to(ramp[:, None] if height > width else ramp[None, :], (height, width))
    frames = [np.repeat((ramp + 16 * i)[..., None], 3, axis=2) for i in range(8)]
    write_video(tmp_path / "v.mkv", frames, codec="ffv1")
    whole = decoded(f"{tmp_path}?frames=2&stride=2&clips=2").image.unflatten(0, (2, 2, 3))
    picture = decoded(f"{tmp_path}?frames=2&stride=2&clips=2&crops=3")
    assert picture.frames == 12 and picture.image.shape == (36, 32, 32)
    found = picture.image.unflatten(0, (2, 3, 2, 3))  # clips, crops, frames, colours
    room = max(height, width) - 32
    for crop, start in enumerate((0, room // 2, room)):
        cut = whole[..., start : start + 32, :] if height > width else whole[..., start : start + 32]
        assert torch.equal(found[:, crop], cut)


def test_keys_of_whole_frames_are_those_from_before_crops(tmp_path):
    assert ClipOptions(frames=4).key() == (
        b"clip 1 [('unit', 'clip'), ('frames', 4), ('stride', 0), ('fps', 0.0), ('clips', 1), ('at', ''), "
        b"('short', 'stop')]"
    )
    assert ClipOptions(frames=4, crops=3).key() != ClipOptions(frames=4).key()
    assert ClipOptions(frames=4, crops=3).text() == "4 frames (spread over the video, 3 crops)"


def test_sampling_and_content_are_in_the_key(tmp_path):
    write_video(tmp_path / "v.mp4", counting(20))
    keys = {
        query: open_data(f"{tmp_path}?{query}")["all"].images_fingerprint()
        for query in ("frames=4", "frames=5", "frames=4&stride=2", "frames=4&stride=2&clips=2", "at=1|2|3|4")
    }
    assert len(set(keys.values())) == len(keys)
    assert open_data(f"{tmp_path}?frames=4&unit=clip")["all"].images_fingerprint() == keys["frames=4"]
    write_video(tmp_path / "v.mp4", counting(20, step=7))
    assert open_data(f"{tmp_path}?frames=4")["all"].images_fingerprint() != keys["frames=4"]


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 3])


def no_video(path):
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=8000)
        for _ in range(4):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate = 8000
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.mark.parametrize(
    ("name", "damage", "reason"),
    [
        ("v.mp4", cut, "not a readable video"),
        ("v.avi", cut, "a cut video: .* of 20"),
        ("v.mp4", lambda path: path.write_bytes(b"no video" * 99), "not a readable video"),
        ("v.mp4", lambda path: path.write_bytes(b""), "not a readable video|empty"),
        ("v.mp4", no_video, r"no video stream in it \(audio\)"),
    ],
)
def test_bad_files_are_listed_with_their_reason(tmp_path, name, damage, reason):
    noise = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8)
    damage(write_video(tmp_path / name, noise, codec="mpeg4" if name.endswith("avi") else "libx264"))
    with pytest.raises(UnreadableImage, match=reason):
        decoded(f"{tmp_path}?frames=4")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"frames": 21}, "20 frames, and a clip of 21 frames with stride 1 takes 21"),
        ({"frames": 6, "stride": 4}, "takes 21"),
        ({"frames": 16, "fps": 4}, "1.90 s from its first to its last frame; .* take 3.75 s"),
        ({"at": "20"}, "asks for number 20"),
        ({"at": "2s"}, "its last frame is at 1.90 s"),
    ],
)
def test_videos_with_fewer_frames_than_asked_are_unreadable(options, reason):
    with pytest.raises(TooFewFrames, match=reason):
        ClipOptions(**options).rows(np.arange(20) / 10)


def test_frames_count_as_pixels(tmp_path):
    write_video(tmp_path / "v.mp4", counting(20))
    assert decoded(f"{tmp_path}?frames=4", max_pixels=4 * 32 * 32).frames == 4
    with pytest.raises(UnreadableImage, match="32 x 160 pixels, more than the limit"):
        decoded(f"{tmp_path}?frames=5", max_pixels=4 * 32 * 32)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("frames=0", "frames"),
        ("stride=2&fps=3", "exclude each other"),
        ("clips=2", "would be the same"),
        ("at=1|2&frames=8", "frames= has no effect"),
        ("at=1|x", "should be numbers of frames"),
        ("frams=8", "frams"),
        ("unit=tile", "neither tiles"),
        ("channels=1", "chosen channels"),
        ("short=loop", "short"),
    ],
)
def test_wrong_options_are_refused(tmp_path, query, words):
    write_video(tmp_path / "v.mp4", counting(2))
    with pytest.raises((UsageError, DataError), match=words):
        open_data(f"{tmp_path}?{query}")


def test_options_of_videos_are_refused_for_images(tmp_path):
    cv2.imwrite(str(tmp_path / "a.png"), np.zeros((4, 4, 3), np.uint8))
    with pytest.raises(UsageError, match=r"has no videos, and '\?frames=4' is an option of videos"):
        open_data(f"{tmp_path}?frames=4")


def test_a_decoder_of_the_users_reads_videos_first(tmp_path, monkeypatch):
    (tmp_path / "my_video_reader.py").write_text(
        "import numpy as np\ndef two(path, file):\n    return np.full((2, 8, 8, 3), 7, np.uint8)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    write_video(tmp_path / "videos" / "v.mp4", counting(4))
    picture = decoded(f"{tmp_path / 'videos'}?frames=2", decoder=("my_video_reader.two",))
    assert picture.frames == 2 and picture.image.unique().tolist() == [7]
    with pytest.raises(UsageError, match=r"returned 2 frames of .* and 4 were asked for"):
        decoded(f"{tmp_path / 'videos'}?frames=4", decoder=("my_video_reader.two",))


def test_without_pyav_the_extra_is_named(tmp_path, monkeypatch):
    write_video(tmp_path / "v.mp4", counting(2))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError) as error:
        open_data(str(tmp_path))
    assert error.value.remedy == "pip install 'sslbench[video]'"


def test_a_thumbnail_of_a_video_has_four_of_its_frames(tmp_path):
    write_video(tmp_path / "v" / "a.mp4", counting(16))
    source = open_data(f"{tmp_path}/v?frames=16")["all"]
    (thumbnail,) = thumbnails(source, {"": [0]}, reading=Reading(), side=66)[""]  # a line of a pixel beside each frame
    grey = np.asarray(thumbnail.picture.convert("L")).astype(int)
    corners = [[grey[16, 16], grey[16, 49]], [grey[49, 16], grey[49, 49]]]
    np.testing.assert_allclose(corners, [[0, 40], [80, 120]], atol=3)
    assert grey[16, 32] == grey[32, 16] == 255


def test_options_have_the_defaults_that_the_guide_says():
    assert dataclasses.asdict(ClipOptions()) == {
        **{"unit": "clip", "frames": 16, "stride": 0, "fps": 0.0, "clips": 1, "crops": 1, "at": "", "short": "stop"},
        "average": "features",
    }
