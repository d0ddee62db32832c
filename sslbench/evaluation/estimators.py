"""Protocols on features as estimators of scikit-learn, with the protocols' defaults.

`fit` keeps or trains, `predict` and `score` are those of any classifier, so that they go into pipelines, grid searches
and cross-validation. One class per sample; several labels per sample are scored by `sslbench.evaluate`.
"""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from sslbench.features.array import Features
from sslbench.names import find_module
from sslbench.targets.classes import Classes
from sslbench.targets.none import Unlabelled
from sslbench.targets.target import Target

knn, linear = find_module("protocol", "knn"), find_module("protocol", "linear")
_KNN, _LINEAR = knn.PROTOCOL.settings(), linear.PROTOCOL.settings()


class _Probe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Checked inputs and the prediction, which both probes share."""

    classes_: npt.NDArray[Any]

    def _labelled(self, x: Any, y: Any) -> Features:
        """Return checked features (N, D) with their labels; `classes_` has the values of the classes."""
        x, y = validate_data(self, x, y, dtype=np.float32)
        check_classification_targets(y)
        self.classes_, values = np.unique(y, return_inverse=True)
        names = tuple(map(str, self.classes_))
        return _features(x, Classes(names, values.astype(np.int64)))

    def _unlabelled(self, x: Any) -> Features:
        """Return checked features (N, D) to predict."""
        check_is_fitted(self)
        x = validate_data(self, x, dtype=np.float32, reset=False)
        return _features(x, Unlabelled(len(x)))


def _features(x: npt.NDArray[np.floating], labels: Target) -> Features:
    return Features(np.ascontiguousarray(x), labels, tuple(f"{i:09d}" for i in range(len(x))))


class KNNProbe(_Probe):
    """Weighted nearest neighbours, as the protocol `knn` computes them.

    Attributes:
        classes_: (C,) the classes, sorted.
        k_: number of neighbours, the best on a held-out part of the samples; values of `k` above their number are left
            out.

    Examples:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> probe = KNNProbe().fit(x[:1000], y[:1000])
        >>> probe.k_, round(probe.score(x[1000:], y[1000:]), 2)
        (10, 0.96)
    """

    def __init__(
        self,
        k: int | tuple[int, ...] = _KNN.k,
        *,
        temperature: float = _KNN.temperature,
        metric: Literal["cosine", "dot", "l2"] = _KNN.metric,
        vote: Literal["softmax", "uniform", "inverse"] = _KNN.vote,
        seed: int = 0,
    ) -> None:
        # scikit-learn clones an estimator from these attributes, so they are the arguments as given; `fit` checks them.
        self.k = k
        self.temperature = temperature
        self.metric = metric
        self.vote = vote
        self.seed = seed

    def fit(self, x: Any, y: Any) -> "KNNProbe":
        """Keep features (N, D) and labels (N,), and choose k.

        Raises:
            UsageError: a setting is not possible.
            ValueError: the features or labels are not.
        """
        train = self._labelled(x, y)
        ks = (self.k,) if isinstance(self.k, int) else tuple(self.k)
        self._settings = knn.Settings(k=ks, temperature=self.temperature, metric=self.metric, vote=self.vote)
        knn.check(self._settings, train.target)
        self._train = train
        self.k_ = knn.choose_k(train, self._settings, seed=self.seed)[0]
        return self

    def predict_proba(self, x: Any) -> npt.NDArray[np.floating]:
        """Return each class's share of the neighbours' weight, (M, C); rows sum to 1."""
        test = self._unlabelled(x)
        shares: npt.NDArray[np.floating] = knn.scores(self._train, test, self.k_, self._settings)
        return shares

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the class of each sample, (M,)."""
        best = np.argmax(self.predict_proba(x), axis=1)
        found: npt.NDArray[Any] = self.classes_[best]
        return found


class LinearProbe(_Probe):
    """Logistic regression to convergence, as the protocol `linear` fits it.

    Attributes:
        classes_: (C,) the classes, sorted.
        c_: inverse regularisation, the best on a held-out part of the samples.
        converged_: true if the objective is proven to be near its minimum.
        n_iter_: number of steps of the solver in the final fit.

    Examples:
        >>> from sklearn.datasets import load_digits
        >>> x, y = load_digits(return_X_y=True)
        >>> probe = LinearProbe(c=0.01).fit(x[:1000], y[:1000])
        >>> probe.converged_, round(probe.score(x[1000:], y[1000:]), 2)
        (True, 0.91)
    """

    def __init__(
        self,
        c: float | tuple[float, ...] = _LINEAR.c,
        *,
        holdout: float = _LINEAR.holdout,
        scale: Literal["standard", "none"] = _LINEAR.scale,
        max_iter: int = _LINEAR.max_iter,
        seed: int = 0,
    ) -> None:
        # As given, see KNNProbe.
        self.c = c
        self.holdout = holdout
        self.scale = scale
        self.max_iter = max_iter
        self.seed = seed

    def fit(self, x: Any, y: Any) -> "LinearProbe":
        """Fit to features (N, D) and labels (N,), and choose c.

        Raises:
            UsageError: a setting is not possible.
            ValueError: the features or labels are not; a single class has nothing to learn.
        """
        train = self._labelled(x, y)
        if len(self.classes_) < 2:
            raise ValueError(f"y has one class, {self.classes_[0]!r}, so nothing can be learned")
        cs = (float(self.c),) if isinstance(self.c, int | float) else tuple(self.c)
        settings = linear.PROTOCOL.settings(cs, holdout=self.holdout, scale=self.scale, max_iter=self.max_iter)
        self._labels = train.target
        self._probe = linear.train_probe(train, settings, seed=self.seed)
        self.c_, self.converged_ = self._probe.selected["c"], self._probe.model.converged
        # scikit-learn's checks of estimators demand at least one iteration.
        self.n_iter_ = max(1, self._probe.model.iterations)
        return self

    def decision_function(self, x: Any) -> npt.NDArray[np.floating]:
        """Return decision values: (M, C), or (M,) of the second of two classes."""
        values = self._probe_scores(x)
        # Of two classes scikit-learn expects one column, positive for the second class.
        return values[:, 1] - values[:, 0] if values.shape[1] == 2 else values

    def predict_proba(self, x: Any) -> npt.NDArray[np.floating]:
        """Return the softmax of the decision values, (M, C)."""
        values = self._probe_scores(x)
        # Less the maximum, as exp overflows from 710 on; the shares are the same.
        exponents = np.exp(values - values.max(axis=1, keepdims=True))
        shares: npt.NDArray[np.floating] = exponents / exponents.sum(axis=1, keepdims=True)
        return shares

    def predict(self, x: Any) -> npt.NDArray[Any]:
        """Return the class of each sample, (M,)."""
        best = np.argmax(self._probe_scores(x), axis=1)
        found: npt.NDArray[Any] = self.classes_[best]
        return found

    def _probe_scores(self, x: Any) -> npt.NDArray[np.floating]:
        test = self._unlabelled(x)
        values: npt.NDArray[np.floating] = self._probe.scores(test.x, self._labels)
        return values
