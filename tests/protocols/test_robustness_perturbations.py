"""Stability over frames of generated videos, against a plain loop as the authors of ImageNet-P have it."""

import cv2
import numpy as np
import pytest
from helpers.coloured_pictures import write_tinted
from test_robustness_classifier import OF_FILE, RUN, SIZE, finetuned, run
from test_robustness_classifier import predicted as predicted_classes

from sslbench.data.corruptions import corrupt
from sslbench.data.images import Files
from sslbench.data.source import Source
from sslbench.data.videos import decoded_frames, frames_of
from sslbench.errors import DataError, UsageError
from sslbench.evaluation import Request, make_task, prepare
from sslbench.protocols.robustness.perturbations import MAIN, perturbation_notes
from sslbench.protocols.robustness.settings import PERTURBED
from sslbench.targets.none import Unlabelled


def write_video(path, frames):
    path.parent.mkdir(parents=True, exist_ok=True)
    height, width = frames[0].shape[:2]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"mp4v"), 10.0, (width, height))
    assert writer.isOpened()
    for frame in frames:
        writer.write(np.ascontiguousarray(frame[:, :, ::-1]))
    writer.release()


def moving(seed, number):
    rng = np.random.default_rng(seed)
    picture = cv2.resize(rng.integers(0, 255, (8, 8, 3)).astype(np.uint8), (64, 64))
    return [np.roll(picture, 5 * i, axis=1) for i in range(number)]


@pytest.fixture
def world(tmp_path):
    write_tinted(tmp_path / "photos", 3, 1)
    for c, name in enumerate(("blue", "red")):
        for v in range(3):
            frames = moving(10 * c + v, 5 + v)
            write_video(tmp_path / "p" / "translate" / name / f"{v}.mp4", frames)
            noisy = [corrupt(frames[0], "gaussian_noise", 3, np.random.default_rng(i)) for i in range(6)]
            write_video(tmp_path / "p" / "gaussian_noise" / name / f"{v}.mp4", noisy)
    return tmp_path


def frames_by_opencv(path):
    capture, found = cv2.VideoCapture(str(path)), []
    while True:
        there, frame = capture.read()
        if not there:
            return found
        found.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))


def flips(whole, path, noise, step):
    """Flip probability of one video, frame by frame."""
    predicted = predicted_classes(whole, frames_by_opencv(path)).tolist()
    if noise:
        return np.mean([each != predicted[0] for each in predicted[1:]])
    return np.mean([predicted[i] != predicted[i + step] for i in range(len(predicted) - step)])


def test_flip_probabilities_are_those_of_a_loop_over_frames(world):
    path, whole = finetuned(world / "w.torch", seed=3, norm="none")
    for video in (world / "p").rglob("*.mp4"):  # the size of the network, so that no resizing comes between
        frames = [cv2.resize(frame, (32, 32), interpolation=cv2.INTER_AREA) for frame in frames_by_opencv(video)]
        write_video(video, frames)
    reference = {"translate": 0.5, "gaussian_noise": 0.25}
    settings = {**OF_FILE, "perturbations": str(world / "p"), "frame_step": 2, "reference_flips": reference}
    (result,) = run(path, world / "photos", world, settings)
    value = {name: each.value for name, each in result.metrics.items()}
    wanted = {}
    for name in reference:
        videos = sorted((world / "p" / name).rglob("*.mp4"))
        wanted[name] = 100 * np.mean([flips(whole, video, "noise" in name, 2) for video in videos])
        assert value[f"flip_probability({name})"] == pytest.approx(wanted[name])
        assert value[f"flip_rate({name})"] == pytest.approx(wanted[name] / reference[name])
        assert result.metrics[f"flip_rate({name})"].n == len(videos)
    assert value["flip_probability"] == pytest.approx(np.mean(list(wanted.values())))
    assert value["flip_rate"] == pytest.approx(np.mean([wanted[name] / reference[name] for name in wanted]))
    assert sum(wanted.values()) > 0 and result.headline == "flip_probability"
    interval = result.metrics["flip_probability"]
    assert interval.low <= interval.value <= interval.high
    assert "means over 2 perturbations, not over the 10 of ImageNet-P" in " ".join(result.notes)
    assert not perturbation_notes({f"{PERTURBED}{name}": None for name in MAIN}), "all 10 need no note"
    assert "top5_distance" not in value, "three classes have no first five"


def test_frames_come_in_order_and_follow_the_file(world):
    files = tuple(sorted(f.relative_to(world / "p").as_posix() for f in (world / "p").rglob("*.mp4")))

    def opened():
        return frames_of(Source("p", files, Unlabelled(len(files)), Files(files, str(world / "p"))))

    frames = opened()
    assert list(frames.ids) == sorted(frames.ids) and frames.ids[0] == "gaussian_noise/blue/0.mp4/0000"
    for i in (0, 3, len(frames) - 1):
        name, _, number = frames.ids[i].rpartition("/")
        np.testing.assert_array_equal(frames.images.read(i), frames_by_opencv(world / "p" / name)[int(number)])
    before = frames.fingerprint()
    write_video(world / "p" / files[0], moving(99, 6))
    assert opened().fingerprint() != before
    content = (world / "p" / files[1]).read_bytes()
    (world / "p" / files[1]).write_bytes(content[: len(content) // 2])
    with pytest.raises((DataError, OSError)):
        opened()
        decoded_frames(str(world / "p" / files[1]))


def test_a_limit_takes_the_same_videos_of_every_perturbation(world):
    path, _ = finetuned(world / "w.torch")
    task = make_task("robustness", {**OF_FILE, "perturbations": str(world / "p")})
    request = Request(weights=path, data=str(world / "photos"), tasks=(task,), preprocessing=SIZE, limit=3)
    (sets,) = prepare(request, RUN).sets
    names = [{each.rpartition("/")[0] for each in one.source.ids} for one in sets.values()]
    assert len(names) == 2 and names[0] == names[1] and len(names[0]) == 3


def test_what_is_no_folder_of_videos_is_refused(world):
    path, _ = finetuned(world / "w.torch")

    def refused(error, message, **settings):
        with pytest.raises(error, match=message):
            run(path, world / "photos", world, {**OF_FILE, "rotations": [90.0], **settings})

    refused(UsageError, "frame_step has no effect without perturbations", frame_step=2)
    refused(UsageError, "reference_flips has no effect without perturbations", reference_flips={"tilt": 0.1})
    refused(UsageError, "perturbations=.*nothing does not exist", perturbations=str(world / "nothing"))
    (world / "file").write_text("")
    refused(UsageError, "is not a folder", perturbations=str(world / "file"))
    refused(UsageError, "has no .mp4 files", perturbations=str(world / "photos"))
    given = str(world / "p")
    refused(
        UsageError,
        "reference_flips has no value for gaussian_noise",
        perturbations=given,
        reference_flips={"translate": 0.1},
    )
    refused(UsageError, "should be a probability", perturbations=given, reference_flips={"translate": 10.0})
    refused(UsageError, "frame_step should be 1 or more", perturbations=given, frame_step=0)
    refused(DataError, "has 5 frames; 6 to 1,000 are needed", perturbations=given, frame_step=5)
    (world / "p" / "translate" / "red" / "9.mp4").write_bytes(b"no video")
    refused(DataError, "is not a video that OpenCV can read", perturbations=given)
    (world / "p" / "translate" / "9.mp4").write_bytes(b"no video")
    refused(UsageError, "does not lie in a folder of its class", perturbations=given)
