"""`sklearn:digits`: 1,797 handwritten digits of 8 x 8 pixels, bundled with scikit-learn."""

import numpy as np

from sslbench.data.containers.members import numbered_ids
from sslbench.data.format import NoOptions, SampleReader, SourceFormat
from sslbench.data.images import Arrays
from sslbench.data.labels import single_labels
from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.names import did_you_mean

PREFIX = "sklearn:"


def recognises(spec: str) -> bool:
    """Return whether the string starts with 'sklearn:'."""
    return spec.startswith(PREFIX)


def open(spec: str) -> dict[str, Source]:
    """Return the digits, their grey values scaled from 0..16 to 0..255."""
    name = spec.removeprefix(PREFIX)
    if name != "digits":
        raise UsageError(f"there is no data set '{spec}'", did_you_mean(name, ["digits"]))
    from sklearn.datasets import load_digits

    digits = load_digits()
    array = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    labels = single_labels([str(target) for target in digits.target])
    return {"all": Source(spec, numbered_ids(len(array)), labels, Arrays(array, "digits"))}


FORMAT = SourceFormat(__doc__, SampleReader(recognises, lambda request: open(request.spec), NoOptions))
