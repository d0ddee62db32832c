import numpy as np
import pytest
from helpers.protocol_samples import features


@pytest.fixture
def make():
    return features


@pytest.fixture
def blobs():
    """(train, test): overlapping clusters; multi=True gives two labels per sample, some marked -1."""

    def build(n_train=120, n_test=80, *, n_classes=4, width=10, seed=0, multi=False, spread=1.5):
        generator = np.random.default_rng(seed)
        centres = generator.normal(size=(n_classes, width))
        parts = []
        for n in (n_train, n_test):
            y = np.arange(n) % n_classes
            x = centres[y] + spread * generator.normal(size=(n, width))
            if multi:
                values = (np.arange(n_classes) == y[:, None]) | (np.arange(n_classes) == (y[:, None] + 1) % n_classes)
                values = values.astype(np.int8)
                values[generator.random(values.shape) < 0.05] = -1
                y = values
            parts.append(features(x, y, n_classes))
        return parts

    return build
