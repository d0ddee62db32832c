"""Features with labels for the tests of the protocols."""

import numpy as np

from sslbench.data.source import Labels
from sslbench.features.array import Features


def features(x, values, n_classes):
    kind = "multi" if np.ndim(values) == 2 else "single"
    dtype = np.int8 if kind == "multi" else np.int64
    names = tuple(f"class{c}" for c in range(n_classes))
    x = np.asarray(x, dtype=np.float32)
    x.setflags(write=False)
    labels = Labels(kind, names, np.asarray(values, dtype=dtype))
    return Features(x, labels, tuple(f"s{i:05d}" for i in range(len(x))))
