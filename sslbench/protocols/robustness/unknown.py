"""Novelty of samples by four scores of their distance from the training data; higher is less familiar."""

import numpy as np

from sslbench.arrays import FloatArray, IntArray, Matrix

_ROWS = 8192


def softmax_novelty(scores: FloatArray) -> FloatArray:
    """Return less the largest probability (MSP; Hendrycks and Gimpel, ICLR 2017) of logits (N, C).

    >>> softmax_novelty(np.array([[0.0, 0.0]])).tolist()
    [-0.5]
    """
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(-shifted.max(axis=1) / shifted.sum(axis=1))


def energy_novelty(scores: FloatArray) -> FloatArray:
    """Return the energy, less the logarithm of the sum of exponentials (Liu et al., NeurIPS 2020) of logits (N, C).

    >>> energy_novelty(np.array([[0.0, 0.0]])).round(4).tolist()
    [-0.6931]
    """
    largest = scores.max(axis=1)
    return np.asarray(-largest - np.log(np.exp(scores - largest[:, None]).sum(axis=1)))


class MahalanobisNovelty:
    """Distance to the nearest class mean under the covariance that all classes share (Lee et al., NeurIPS 2018).

    Directions in which training features do not vary about their class means but for rounding (eigenvalues below
    1e-12 of the largest) are left out: the distance along them is not known.
    """

    def __init__(self, x: Matrix, labels: IntArray) -> None:
        classes, place = np.unique(labels, return_inverse=True)
        counts = np.bincount(place)
        means = np.zeros((len(classes), x.shape[1]))
        covariance = np.zeros((x.shape[1], x.shape[1]))
        for start in range(0, len(x), _ROWS):
            np.add.at(means, place[start : start + _ROWS], x[start : start + _ROWS].astype(np.float64))
        means /= counts[:, None]
        for start in range(0, len(x), _ROWS):
            residual = x[start : start + _ROWS].astype(np.float64) - means[place[start : start + _ROWS]]
            covariance += residual.T @ residual
        values, axes = np.linalg.eigh(covariance / len(x))
        kept = values > 1e-12 * values[-1]
        self._whiten = axes[:, kept] / np.sqrt(values[kept])
        self._means = means @ self._whiten

    def __call__(self, x: Matrix) -> FloatArray:
        """Return the squared distance (N,) of features (N, D) to the nearest class mean."""
        found = np.empty(len(x))
        for start in range(0, len(x), _ROWS):
            own = x[start : start + _ROWS].astype(np.float64) @ self._whiten
            squares = (own**2).sum(axis=1)[:, None] + (self._means**2).sum(axis=1) - 2 * own @ self._means.T
            found[start : start + _ROWS] = squares.min(axis=1)
        return found
