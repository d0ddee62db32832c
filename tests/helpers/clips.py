"""Small videos, written by PyAV."""

import av
import numpy as np

DIRECTIONS = {"left": (-3, 0), "right": (3, 0), "up": (0, -3), "down": (0, 3)}


def write_video(path, frames, *, rate=10, codec="libx264", lossless=True):
    """Write frames (T, H, W, 3); with `lossless` grey levels of flat frames stay as they are, give or take two."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        if codec == "libx264":
            stream.options = {"crf": "0" if lossless else "23", "bf": "2"}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        container.mux(stream.encode())
    return path


def counting(number, side=32, step=8):
    """Return flat frames whose grey level tells their number: 0, 8, 16, ..."""
    return [np.full((side, side, 3), step * i, np.uint8) for i in range(number)]


def number_of(pixels, step=8):
    """Return the numbers of frames (T, 3, H, W) of `counting`."""
    return [round(float(frame.float().mean()) / step) for frame in pixels]


def moving(direction, seed, number=12, side=32):
    """Return frames of a square that moves, and re-enters on the other side: only the direction tells the class."""
    x, y = np.random.default_rng(seed).integers(0, side, 2)
    dx, dy = DIRECTIONS[direction]
    place, frames = np.arange(side), []
    for t in range(number):
        frame = np.full((side, side, 3), 40, np.uint8)
        inside = ((place[None, :] - x - dx * t) % side < 8) & ((place[:, None] - y - dy * t) % side < 8)
        frame[inside] = (220, 200, 60)
        frames.append(frame)
    return frames


def write_classes(root, train=6, test=4, directions=("left", "right"), **options):
    """Write train/ and test/ with a folder of moving squares for each direction."""
    for split, each in (("train", train), ("test", test)):
        for number, direction in enumerate(directions):
            for i in range(each):
                seed = (split == "train", number, i)
                write_video(root / split / direction / f"{i}.mp4", moving(direction, seed), **options)
    return root
