"""The drawn digits of the demo."""

import numpy as np
from PIL import Image

from sslbench.data.grey_digits import SIDE, TRAIN, draw_digits


def test_the_digits_are_drawn_once_and_in_two_parts(tmp_path):
    folder = draw_digits(tmp_path / "digits", 3)
    train, test = (sorted((folder / part).glob("*/*.png")) for part in ("train", "val"))
    assert (len(train), len(train) + len(test)) == (TRAIN, 1797)
    assert not {file.name for file in train} & {file.name for file in test}
    pixels = np.stack([np.asarray(Image.open(file)) for file in test])
    assert pixels.shape[1:] == (SIDE, SIDE)
    corner, middle = pixels[:, 0, 0].astype(int), pixels[:, SIDE // 2].max(axis=1).astype(int)
    assert 0.2 < np.mean(middle > corner + 50) < 0.9  # strokes are brighter than the paper, or darker
    before = train[0].stat().st_mtime_ns
    assert draw_digits(folder, 3) == folder
    assert train[0].stat().st_mtime_ns == before
    assert draw_digits(tmp_path / "again", 3).joinpath(test[0].relative_to(folder)).read_bytes() == test[0].read_bytes()
