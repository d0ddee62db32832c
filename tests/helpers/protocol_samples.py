"""Features with labels for the tests of the protocols."""

import numpy as np

from sslbench.features.array import Features
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel


def features(x, values, n_classes):
    kind, dtype = (MultiLabel, np.int8) if np.ndim(values) == 2 else (Classes, np.int64)
    names = tuple(f"class{c}" for c in range(n_classes))
    x = np.asarray(x, dtype=np.float32)
    x.setflags(write=False)
    labels = kind(names, np.asarray(values, dtype=dtype))
    return Features(x, labels, tuple(f"s{i:05d}" for i in range(len(x))))
