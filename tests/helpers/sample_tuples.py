"""Pairs of images and videos in memory."""

import dataclasses

import numpy as np

from sslbench.data.image_pairs import PointPair, pairs_source
from sslbench.data.images import Arrays
from sslbench.data.labels import no_labels
from sslbench.data.poses import poses_source
from sslbench.data.source import Source
from sslbench.data.tracks import videos_source
from sslbench.data.warped import homography_pairs


def texture(rng, side=32):
    """A picture of random colours in squares of 4 x 4 pixels."""
    return np.kron(rng.integers(0, 255, (side // 4, side // 4, 3)), np.ones((4, 4, 1), int)).astype(np.uint8)


def shifted_pairs(n=3, seed=0, *, shift=(8, 4), side=32, points=5, centred=False):
    """Pairs of a texture and the same moved, with points of both, anywhere or at the centres of cells of 4 pixels."""
    rng = np.random.default_rng(seed)
    images, pairs, ids = [], [], []
    for i in range(n):
        large = texture(rng, 2 * side)
        (dx, dy) = shift
        images += [large[dy : dy + side, dx : dx + side], large[:side, :side]]
        own = rng.integers(0, side - max(shift), (points, 2)).astype(float)
        own = own // 4 * 4 + 1.5 if centred else own
        pairs.append(PointPair(2 * i, 2 * i + 1, own, own + shift, float(side)))
        ids.append(f"pair{i}")
    classes = [("cat", "dog")[i % 2] for i in range(n)]
    return pairs_source("shifted", ids, Arrays(np.stack(images), "shifted"), pairs, classes=classes)


def warped_pairs(n=2, seed=0, side=32):
    """Textures under five homographies each."""
    rng = np.random.default_rng(seed)
    array = np.stack([texture(rng, side) for _ in range(n)])
    return homography_pairs(Source("t", tuple(f"t{i}" for i in range(n)), no_labels(n), Arrays(array, "t")), "warped")


@dataclasses.dataclass(frozen=True)
class ArrayIds:
    """Object ids (M, H, W) in memory."""

    ids: np.ndarray

    def read_ids(self, row):
        return self.ids[row]

    def select(self, indices):
        return ArrayIds(self.ids[np.asarray(indices)])

    def fingerprint(self):
        return str(self.ids.sum())


def moving_squares(n=2, frames=5, seed=0, side=32, step=4, start=0):
    """Videos of one square per video, of a texture of its own, that moves to the right on black."""
    rng = np.random.default_rng(seed)
    images = np.zeros((n * frames, side, side, 3), np.uint8)
    ids = np.zeros((n * frames, side, side), np.int32)
    for video in range(n):
        own = np.maximum(texture(rng, 12), 60)
        for t in range(frames):
            left = start + step * t
            images[video * frames + t, 8:20, left : left + 12] = own
            ids[video * frames + t, 8:20, left : left + 12] = 1
    videos = {f"video{v}": range(v * frames, (v + 1) * frames) for v in range(n)}
    return videos_source("squares", videos, Arrays(images, "squares"), ArrayIds(ids))


def rolling_textures(n, frames, seed, side):
    """Textures that move to the right by 4 pixels per frame, around the border."""
    rng = np.random.default_rng(seed)
    return np.stack(
        [np.roll(own, 4 * t, axis=1) for own in (texture(rng, side) for _ in range(n)) for t in range(frames)]
    )


def moving_parts(n=2, frames=4, seed=0, side=32, classes=("background", "hat", "hair", "scarf")):
    """Videos of textures with a hat and hair as stripes of 8 pixels; in the last frame half of the hat is a scarf."""
    ids = np.zeros((n * frames, side, side), np.int32)
    for video in range(n):
        for t in range(frames):
            left = 4 * (t + video)
            ids[video * frames + t, :, left : left + 8], ids[video * frames + t, :, left + 8 : left + 16] = 1, 2
        ids[video * frames + frames - 1, :, left : left + 4] = 3
        ids[video * frames + 1, 0, :4] = 255
    images = Arrays(rolling_textures(n, frames, seed, side), "parts")
    videos = {f"video{v}": range(v * frames, (v + 1) * frames) for v in range(n)}
    return videos_source("parts", videos, images, ArrayIds(ids), classes=classes)


def moving_joints(n=2, frames=4, seed=0, side=32):
    """Clips of textures with three joints at the centres of cells of 4 pixels, and one outside the first frame."""
    start = np.array([[5.5, 5.5], [9.5, 13.5], [5.5, 25.5], [-6.5, 9.5]])
    joints = start + np.arange(frames)[:, None, None] * [4.0, 0.0]
    images = Arrays(rolling_textures(n, frames, seed, side), "joints")
    names = [f"clip{v}" for v in range(n)]
    videos = {name: range(v * frames, (v + 1) * frames) for v, name in enumerate(names)}
    sizes = dict.fromkeys(names, (side, side))
    return poses_source(
        "joints", videos, images, dict.fromkeys(names, joints), sizes, ("neck", "belly", "knee", "wrist")
    )


def tuple_sample(name):
    """Data of a protocol that trains nothing."""
    return moving_squares() if name == "tracking" else shifted_pairs()
