"""JHMDB (Rename_Images/, joint_positions/, splits/): clips of one person each with 15 joints in every frame.

Jhuang et al., ICCV 2013. Frames are Rename_Images/ACTION/CLIP/00001.png ..., joints the array pos_img (2, 15, T) in
joint_positions/ACTION/CLIP/joint_positions.mat, counted from 1. splits/ACTION_test_split1.txt has the lines CLIP.avi 1
(train) or 2 (test); the first of the three splits is read, as in label propagation. Joints may lie outside the image.
"""

import zlib
from pathlib import Path
from typing import Any

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data.format import SourceFormat, plain_reader
from sslbench.data.images import Files
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.regular import matching
from sslbench.data.source import Source
from sslbench.data.videos import frames_in, poses_source
from sslbench.data.wording import counted, some
from sslbench.errors import DataError
from sslbench.targets.videos import Poses

JOINTS = (
    *("neck", "belly", "face", "right shoulder", "left shoulder", "right hip", "left hip", "right elbow"),
    *("left elbow", "right knee", "left knee", "right wrist", "left wrist", "right ankle", "left ankle"),
)
_SPLITS = {"1": "train", "2": "test"}
_LIST = "_test_split1"
# Height and width of the frames as published; files of joints say none
_SIZE = (240, 320)


def recognises(spec: str) -> bool:
    """Return whether the location is a folder with Rename_Images/ and joint_positions/."""
    return (Path(spec) / "Rename_Images").is_dir() and (Path(spec) / "joint_positions").is_dir()


def open(spec: str) -> dict[str, Source]:
    """Return the clips of train and test of the first split."""
    root = Path(spec)
    lists = matching(root / "splits", f"*{_LIST}.txt")
    if not lists:
        raise DataError(
            f"{spec}: there is no list of clips, splits/ACTION{_LIST}.txt", "Unpack the lists of JHMDB into splits/."
        )
    clips: dict[str, list[str]] = {}
    for file in lists:
        action = file.stem.removesuffix(_LIST)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            if not (words := line.split()):
                continue
            if len(words) != 2 or words[1] not in (*_SPLITS, "0"):
                raise DataError(
                    f"{file}, line {number}: '{line.strip()[:80]}' is not a clip with 1 (train) or 2 (test)"
                )
            if words[1] in _SPLITS:
                clips.setdefault(_SPLITS[words[1]], []).append(f"{action}/{words[0].removesuffix('.avi')}")
    if not clips:
        raise DataError(f"{spec}: the lists in splits/ name no clip")
    return {split: _split(f"{spec} ({split})", root, sorted(set(clips[split]))) for split in sorted(clips)}


def _split(name: str, root: Path, clips: list[str]) -> Source:
    found = {clip: frames_in(root / "Rename_Images" / clip, "*.png") for clip in clips}
    mats = {clip: root / "joint_positions" / clip / "joint_positions.mat" for clip in clips}
    problems = {
        "no frames in Rename_Images/": [clip for clip in clips if not found[clip]],
        "no joint_positions.mat": [clip for clip in clips if not mats[clip].is_file()],
    }
    lines = [f"  {len(v):,} of {len(clips):,} clips have {what}: {some(v, 5)}" for what, v in problems.items() if v]
    if lines:
        raise DataError(f"{name}:\n" + "\n".join(lines))
    frames, videos, cut = list[str](), dict[str, list[int]](), list[str]()
    joints, sizes = dict[str, FloatArray](), dict[str, tuple[int, int]]()
    for clip in clips:
        own = _joints(mats[clip])
        number = min(len(own), len(found[clip]))
        if len(own) != len(found[clip]):
            cut.append(f"{clip} ({len(found[clip])} and {len(own)})")
        joints[clip] = own[:number]
        sizes[clip] = size_in_file(root / "Rename_Images" / clip / found[clip][0])
        videos[clip] = list(range(len(frames), len(frames) + number))
        frames += [f"{clip}/{frame}" for frame in found[clip][:number]]
    notes = [
        f"{name}: {len(cut):,} clips have unequal numbers of frames and joints: {some(cut)}; the smaller one counts"
    ] * bool(cut)
    if other := [f"{clip} ({w} x {h})" for clip, (h, w) in sizes.items() if (h, w) not in ((0, 0), _SIZE)]:
        notes.append(
            f"{name}: joints are of frames of {_SIZE[1]} x {_SIZE[0]} pixels as published, and "
            f"{counted(len(other), 'clip')} have others: {some(other)}; of resized frames, the scores are wrong"
        )
    images = Files(tuple(frames), str(root / "Rename_Images"))
    return poses_source(name, videos, images, joints, sizes, JOINTS, tuple(notes))


def _joints(file: Path) -> FloatArray:
    """Return the joints (T, 15, 2) in a file; (0, 0) is the centre of the first pixel."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content: dict[str, Any] = loadmat(file, variable_names="pos_img")
        found = np.asarray(content["pos_img"], dtype=np.float64)
    except KeyError:
        raise DataError(f"{file} has no array pos_img") from None
    except (OSError, ValueError, TypeError, IndexError, NotImplementedError, zlib.error, MatReadError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error
    found = found[..., None] if found.ndim == 2 else found  # MATLAB drops the last axis of a clip of one frame
    if found.shape[:2] != (2, len(JOINTS)) or found.ndim != 3:
        raise DataError(f"{file}: pos_img is {found.shape}, not (2, {len(JOINTS)}, frames)")
    # MATLAB counts pixels from 1.
    return np.ascontiguousarray(found.transpose(2, 1, 0)) - 1


FORMAT = SourceFormat(__doc__, readers={Poses: plain_reader(recognises, open)})
