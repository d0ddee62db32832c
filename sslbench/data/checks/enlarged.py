"""Images that a default transform makes several times larger."""

import numpy as np

from sslbench.data.maps.types import size_and_turn
from sslbench.preprocessing import Preprocessing
from sslbench.targets.target import Images

_LOOKED_AT = 9
_FACTOR = 2


def enlargement(images: Images, preprocessing: Preprocessing) -> str | None:
    """Return a warning if a default resize more than doubles the images; None otherwise.

    A network that was trained on 32 pixels scores far lower, and many times slower, on the same images of 224. Sizes
    that weights, a preset or a flag name are wanted.

    Args:
        images: a few of them are looked at: the heads of their files.
        preprocessing: of the backbone.
    """
    is_default = "default" in preprocessing.origin and "resize" not in preprocessing.origin
    if not is_default or not isinstance(preprocessing.resize, int):
        return None
    indices = np.unique(np.linspace(0, max(len(images) - 1, 0), min(len(images), _LOOKED_AT)).astype(int))
    sizes = [size for index in indices if (size := size_and_turn(images, int(index))[0])]
    if not sizes:
        return None
    height, width = (int(side) for side in np.median(sizes, axis=0))
    side = min(height, width)
    if preprocessing.resize <= _FACTOR * side:
        return None
    return (
        f"the images ({width} x {height} pixels) are enlarged to {preprocessing.resize}, a default; for a network "
        f"trained on such images give --resize {side} --crop {side}"
    )
