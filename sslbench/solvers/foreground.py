"""Foreground of images by the first principal component of their patches, and turned images (AnomalyDINO)."""

import numpy as np
import numpy.typing as npt

from sslbench.arrays import BoolArray

# Of each side, outside of the centre; and the least share of the centre that is foreground.
_BORDER, _LEAST = 0.2, 0.35


def foreground(features: npt.NDArray[np.floating], threshold: float) -> BoolArray:
    """Return the patches (h, w) whose first principal component is above a threshold; of its sign the more central.

    Enlarged by a patch to each side, and closed (Damm et al., WACV 2025, section 3.2, figure 2, and the authors' code).
    The sign of the component is that of scikit-learn: its largest loading is positive.

    >>> features = np.zeros((11, 11, 2), np.float32)
    >>> features[3:8, 3:8] = 40.0
    >>> foreground(features, 10.0).sum(axis=1).tolist()
    [0, 0, 7, 7, 7, 7, 7, 7, 7, 0, 0]

    Args:
        features: (h, w, C) of the patches of an image.
        threshold: in the units of the features.
    """
    from scipy.ndimage import binary_dilation, binary_erosion

    height, width, channels = features.shape
    x = features.reshape(-1, channels).astype(np.float64)
    x -= x.mean(axis=0)
    axis = np.linalg.svd(x, full_matrices=False)[2][0]
    first = (x @ axis * np.sign(axis[np.abs(axis).argmax()])).reshape(height, width)
    found = first > threshold
    rows, columns = (slice(int(side * _BORDER), int(side * (1 - _BORDER))) for side in (height, width))
    centre = found[rows, columns]
    if centre.sum() <= _LEAST * centre.size:
        found = -first > threshold
    square = np.ones((3, 3), bool)
    grown = binary_dilation(found, square, iterations=2)
    return np.asarray(binary_erosion(grown, square, border_value=1))


def turned(picture: npt.NDArray[np.generic], degrees: float) -> npt.NDArray[np.generic]:
    """Return a picture (C, H, W) turned about its centre, mirrored at its borders, bilinear, as the authors turn it."""
    import cv2

    height, width = picture.shape[1:]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1.0)
    return np.stack(
        [
            cv2.warpAffine(channel, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_DEFAULT)
            for channel in picture
        ]
    )
