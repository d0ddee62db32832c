"""`sklearn:digits`: 1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn.

`sklearn:digit-bags` and `sklearn:digit-places` are the same digits with other targets.
"""

import numpy as np

from sslbench.data.containers.members import numbered_ids
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.images import Arrays
from sslbench.data.labels import single_labels
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.targets.numbers import Numbers

PREFIX = "sklearn:"
_NAMES = ("digits", "digit-bags", "digit-places")
_BAG = 7  # digits, of which one or more are a 9 in half of the bags


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'sklearn:'."""
    return spec.startswith(PREFIX)


def open(spec: str) -> dict[str, Source]:
    """Return the digits, their grey values scaled from 0..16 to 0..255.

    `digit-bags`: the same in 256 bags of 7 and one of 5, labelled by whether a 9 is among them, in the manner of the
    bags of MNIST of Ilse et al. (2018, section 4.2); the attribute `bag` is the number of the bag.

    `digit-places`: the same at made places: each digit within some 100 km of a point of its own.
    """
    name = spec.removeprefix(PREFIX)
    if name not in _NAMES:
        raise UsageError(f"there is no data set '{spec}'", did_you_mean(name, _NAMES))
    from sklearn.datasets import load_digits

    digits = load_digits()
    array = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    ids, images = numbered_ids(len(array)), Arrays(array, "digits")
    if name == "digits":
        return {"all": Source(spec, ids, single_labels([str(target) for target in digits.target]), images)}
    if name == "digit-places":
        points = np.column_stack([8.0 * digits.target - 36, 36.0 * digits.target - 170])
        places = points + np.random.default_rng(0).normal(0, 0.5, points.shape)
        return {"all": Source(spec, ids, Numbers(("lat", "lon"), places.round(4)), images)}
    bags = np.empty(len(array), np.int64)
    bags[np.random.default_rng(0).permutation(len(array))] = np.arange(len(array)) // _BAG
    nines = np.bincount(bags, digits.target == 9)[bags] > 0
    labels = single_labels(["with a 9" if nine else "without a 9" for nine in nines])
    attributes = {"bag": tuple(map(str, bags.tolist()))}
    return {"all": Source(spec, ids, labels, images, attributes=attributes, grouped_by="bag")}


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
