"""Pairs of images with the relative pose of their cameras: NAVI, a table (first, second, qw, ...), `rotations:PLACE`.

NAVI (Jampani et al., NeurIPS 2023) is a folder with OBJECT/multiview_*/annotations.json: for each image of a scene its
file, its split and the camera (quaternion, w first, and translation in millimetres, from world to camera).
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sslbench.arrays import FloatArray, IntArray
from sslbench.config import setting
from sslbench.data.containers.listed import find_listed, folders_beside
from sslbench.data.containers.members import split_name
from sslbench.data.format import Reader, SourceFormat
from sslbench.data.formats.table import read_cells
from sslbench.data.formats.table.lists import TableColumns
from sslbench.data.image_pairs import WarpedImages
from sslbench.data.images import Files
from sslbench.data.maps.layout import in_order
from sslbench.data.objects.boxes import size_in_file
from sslbench.data.open import open_data
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.target import Images
from sslbench.text import printable
from sslbench_visbench.signal_maps import READERS
from sslbench_visbench.targets import CameraPairs

PREFIX = "rotations:"
ROTATION = ("qw", "qx", "qy", "qz")
TRANSLATION = ("tx", "ty", "tz")
_METRE = 1000.0  # NAVI's translations are in millimetres
_TILT, _ROLL = 15.0, 60.0
"""Largest turns of a made view about the x and y axes and about the line of sight, in degrees."""
_VIEWS = 4
_LEAST = 1e-6
"""Length of a quaternion above which it is a rotation; usual ones have length 1."""


@dataclasses.dataclass(frozen=True)
class PoseOptions:
    """Options behind a '?': navi?partners=8."""

    partners: int = setting(1, "NAVI: pairs of each image of train, with as many other images of its scene; test: 1")
    max_angle: float = setting(120.0, "NAVI: largest rotation between the images of a pair", unit="degrees")


def recognises(spec: str) -> bool:
    """Return whether a location starts with 'rotations:', is a table of pairs, or NAVI's folder."""
    path = Path(spec)
    return (
        spec.startswith(PREFIX) or (path.suffix.lower() in (".csv", ".tsv") and path.is_file()) or bool(_scenes(path))
    )


def _scenes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/multiview_*/annotations.json")) if folder.is_dir() else []


def open(spec: str, options: PoseOptions) -> dict[str, Source]:
    """Return the pairs of every split.

    Their values are the pose of the second camera relative to the first: x2 = R x1 + t for a point in the coordinates
    of both cameras.
    """
    if spec.startswith(PREFIX):
        return {split: made_rotations(part) for split, part in open_data(spec.removeprefix(PREFIX)).items()}
    if options.partners < 1 or not 0 < options.max_angle <= 180:
        raise UsageError(f"{spec}: partners should be at least 1, and max_angle from above 0 to 180")
    if scenes := _scenes(Path(spec)):
        return _navi(spec, Path(spec), scenes, options)
    if options != PoseOptions():
        raise UsageError(f"{spec} is a table of pairs, so partners= and max_angle= have no effect", "Leave them out.")
    return _table(spec, Path(spec))


def pairs_source(
    name: str,
    ids: Sequence[str],
    images: Images,
    places: IntArray,
    poses: FloatArray,
    scenes: Sequence[str],
    sized: bool = False,
) -> Source:
    """Return the source of N pairs, in order of their ids; pairs of one scene stay together.

    `name`: location as the user wrote it, with the split; `ids`: N unique ids; `places`: (N, 2), of M images; `poses`:
    (N, 4) or (N, 7), quaternions and perhaps translations; `sized`: see `CameraPairs.exact`.
    """
    order = np.array(sorted(range(len(ids)), key=ids.__getitem__), dtype=np.int64)
    names = (*ROTATION, *TRANSLATION)[: poses.shape[1]]
    quaternions = poses[order, :4] / np.linalg.norm(poses[order, :4], axis=1, keepdims=True)
    quaternions = np.where(quaternions[:, :1] < 0, -quaternions, quaternions)  # q and -q are one rotation
    return Source(
        name,
        tuple(ids[i] for i in order),
        CameraPairs(names, np.concatenate([quaternions, poses[order, 4:]], axis=1), images, places[order], sized),
        images.select(places[order, 0]),
        attributes={"scene": tuple(scenes[i] for i in order)},
        grouped_by="scene",
    )


def relative_pose(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the pose (7,) of the second camera relative to the first.

    >>> still, moved = np.array([1.0, 0, 0, 0, 0, 0, 0]), np.array([1.0, 0, 0, 1.0, 3, 0, 0])  # a quarter turn about z
    >>> relative_pose(still, moved).round(3).tolist()
    [0.707, 0.0, 0.0, 0.707, 3.0, 0.0, 0.0]

    Args:
        first: (7,), quaternion (w first, any length) and translation from world to camera.
        second: the same of the other camera.
    """
    from scipy.spatial.transform import Rotation

    turns = [Rotation.from_quat(np.roll(pose[:4], -1)) for pose in (first, second)]
    turn = turns[1] * turns[0].inv()
    return np.concatenate([np.roll(turn.as_quat(), 1), second[4:] - turn.apply(first[4:])])


def made_rotations(source: Source, views: int = _VIEWS) -> Source:
    """Return pairs of views of each image by a camera that turns in front of it; the rotation between them is exact.

    A view is the image under the homography K R K^-1 of a rotation R, with a field of view of 53 degrees along either
    side; beyond the border the image is mirrored. Rotations follow from the id of an image alone.
    """
    from scipy.spatial.transform import Rotation

    camera = np.array([[1, 0, 0.5], [0, 1, 0.5], [0, 0, 1]], dtype=np.float64)  # of the unit square
    inverse = np.linalg.inv(camera)
    matrices, poses, ids = [], [], []
    for sample in source.ids:
        draw = np.random.default_rng(list(hashlib.sha256(sample.encode()).digest()))
        for view in range(views):
            angles = draw.uniform(-1, 1, (2, 3)) * (_TILT, _TILT, _ROLL)
            first, second = (Rotation.from_euler("xyz", each, degrees=True) for each in angles)
            matrices += [camera @ turn.as_matrix() @ inverse for turn in (first, second)]
            poses.append(np.roll((second * first.inv()).as_quat(), 1))
            ids.append(f"{sample} {view}")
    rows = np.repeat(np.arange(len(source), dtype=np.int64), 2 * views)
    images = WarpedImages(source.images, rows, np.array(matrices), reflected=True)
    places = np.arange(2 * len(ids), dtype=np.int64).reshape(-1, 2)
    scenes = [sample for sample in source.ids for _ in range(views)]
    return pairs_source(source.name, ids, images, places, np.array(poses), scenes)


def _navi(text: str, root: Path, scenes: Sequence[Path], options: PoseOptions) -> dict[str, Source]:
    """Return the pairs of NAVI's splits; both images of a pair are of one split."""
    pairs: dict[str, list[tuple[str, str, str, FloatArray]]] = {}
    sized = True
    for scene in scenes:
        name = scene.parent.relative_to(root).as_posix()
        views: dict[str, list[tuple[str, FloatArray]]] = {}
        own_views, own_sized = _views(scene)
        sized = sized and own_sized
        for file, split, pose in own_views:
            views.setdefault(split_name(split) or split, []).append((f"{name}/images/{file}", pose))
        for split, own in views.items():
            number = options.partners if split == "train" else 1
            pairs.setdefault(split, []).extend((name, *pair) for pair in _drawn(own, number, options.max_angle))
    if not pairs:
        raise DataError(f"{text}: none of the images that its annotations list exists")
    found = {}
    for split, listed in pairs.items():
        if not listed:
            raise DataError(f"{text} ({split}) has no two images of a scene within {options.max_angle:g} degrees")
        places, files = _placed([(first, second) for _, first, second, _ in listed], [root], text)
        ids = [f"{first} {second}" for _, first, second, _ in listed]
        poses, names = np.array([pose for *_, pose in listed]), [name for name, *_ in listed]
        found[split] = pairs_source(f"{text} ({split})", ids, files, places, poses, names, sized)
    return in_order(found)


def _views(scene: Path) -> tuple[list[tuple[str, str, FloatArray]], bool]:
    """Return file, split and pose in metres of each image of a scene whose file exists, and whether sizes are known."""
    try:
        records: Any = json.loads(scene.read_text(encoding="utf-8"))
        found = [
            (
                str(record["filename"]),
                str(record.get("split") or "train"),
                np.array(
                    [*record["camera"]["q"], *(each / _METRE for each in record["camera"]["t"])], dtype=np.float64
                ),
            )
            for record in records
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{scene} is damaged, or no file of NAVI ({error})") from error
    if wrong := [file for file, _, pose in found if pose.shape != (7,) or not _usable(pose[None])[0]]:
        raise DataError(f"{scene}: the camera of {wrong[0]} is no pose of four and three numbers")
    there = [each for each in found if (scene.parent / "images" / each[0]).is_file()]
    given = {str(record["filename"]): record.get("image_size") for record in records}
    if not all(isinstance(size, list) and len(size) == 2 for size in given.values()):
        return there, False
    for file, *_ in there:
        height, width = given[file]
        own_height, own_width = size_in_file(scene.parent / "images" / file)
        if (height - width) * (own_height - own_width) < 0:
            raise DataError(
                f"{scene}: {file} is {own_width} x {own_height} pixels, but its annotation is for {width} x {height}",
                "Cameras are those of the upright image: keep the EXIF orientation of the files, or turn their pixels.",
            )
    return there, True


def _drawn(views: Sequence[tuple[str, FloatArray]], number: int, max_angle: float) -> list[tuple[str, str, FloatArray]]:
    """Return pairs of each view with up to `number` others, drawn from a seed of its own."""
    found = []
    for i, (file, pose) in enumerate(views):
        poses = [relative_pose(pose, other) for _, other in views]
        angles = np.degrees([2 * math.acos(min(1.0, abs(each[0]))) for each in poses])
        near = [k for k in range(len(views)) if k != i and 0 < angles[k] <= max_angle]
        draw = np.random.default_rng(list(hashlib.sha256(file.encode()).digest()))
        chosen = sorted(draw.permutation(near)[:number].tolist())
        found += [(file, views[k][0], poses[k]) for k in chosen]
    return found


def _placed(pairs: Sequence[tuple[str, str]], folders: Sequence[Path], where: str) -> tuple[IntArray, Files]:
    """Return the places (N, 2) of pairs of files among all files, and these."""
    names = sorted({path for pair in pairs for path in pair})
    position = {path: i for i, path in enumerate(names)}
    found = find_listed(where, names, folders)
    return np.array([[position[path] for path in pair] for pair in pairs], dtype=np.int64), found.files


def _table(text: str, path: Path) -> dict[str, Source]:
    table = read_cells(path)
    columns = table.columns
    if missing := [name for name in ("first", "second", *ROTATION) if name not in columns]:
        raise UsageError(f"{path} has no column '{missing[0]}'", did_you_mean(missing[0], list(columns)))
    absent = [name for name in TRANSLATION if name not in columns]
    if 0 < len(absent) < len(TRANSLATION):
        raise UsageError(f"{path} has no column '{absent[0]}'", "Translations have tx, ty and tz.")
    names = ROTATION if absent else (*ROTATION, *TRANSLATION)
    poses = np.array([[_number(table, name, row) for name in names] for row in range(len(columns["first"]))])
    if (wrong := np.flatnonzero(~_usable(poses))).size:
        raise DataError(f"{path}, {table.row_name(int(wrong[0]))}: a pose is not finite, or its quaternion is 0")
    parts: dict[str, list[int]] = {}
    for row, split in enumerate(columns.get("split", ["all"] * len(poses))):
        parts.setdefault(split_name(split) or split or "all", []).append(row)
    found = {}
    for split, rows in parts.items():
        pairs = [(columns["first"][row], columns["second"][row]) for row in rows]
        places, files = _placed(pairs, folders_beside(path), str(path))
        ids = [f"{printable(a)} {printable(b)} {i:06d}" for i, (a, b) in enumerate(pairs)]
        scenes = [columns["scene"][row] if "scene" in columns else "" for row in rows]
        # Splits know further images that pairs share (`groups.inseparable`).
        scenes = [scene or first for scene, (first, _) in zip(scenes, pairs, strict=True)]
        name = text if split == "all" else f"{text} ({split})"
        found[split] = pairs_source(name, ids, files, places, poses[rows], scenes)
    return in_order(found)


def _number(table: TableColumns, name: str, row: int) -> float:
    cell = table.columns[name][row]
    try:
        return float(cell)
    except ValueError as error:
        raise DataError(f"{table.name}, {table.row_name(row)}: {name} is '{cell}', which is no number") from error


def _usable(poses: FloatArray) -> npt.NDArray[np.bool_]:
    """Return whether poses (N, 4 or 7) are finite, with quaternions whose lengths are no rounding errors, (N,)."""
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(poses[:, :4], axis=1)
    return np.asarray(np.isfinite(poses).all(axis=1) & np.isfinite(lengths) & (lengths > _LEAST))


FORMAT = SourceFormat(
    __doc__,
    readers={
        CameraPairs: Reader(
            lambda spec, _: recognises(spec), open, PoseOptions, unresolved=lambda spec: spec.startswith(PREFIX)
        ),
        **READERS,  # one format for all kinds of the plug-in, as a plug-in names its formats one by one
    },
)
