"""A folder of noisy pictures of one colour per class."""

import numpy as np
from PIL import Image

COLOURS = {"blue": (30, 30, 200), "green": (30, 200, 30), "red": (200, 30, 30)}


def write_pictures(folder, n, seed=0, classes=COLOURS):
    rng = np.random.default_rng(seed)
    for name in classes:
        (folder / name).mkdir(parents=True)
        for i in range(n):
            noise = rng.normal(0, 60, (20, 18, 3)) + COLOURS[name]
            Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / name / f"{i}.png")
