"""Settings of the SVM protocol."""

import dataclasses
from typing import Literal

from sslbench.config import setting


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the SVM protocol."""

    costs: tuple[float, ...] = setting(
        (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0),
        "costs of the SVM to choose from (scikit-learn's C); one value is used as it is",
    )
    folds: int = setting(3, "folds of the cross-validation that chooses the cost")
    normalise: bool = setting(True, "divide each feature vector by its length + 1e-5")
    positive_weight: float = setting(2.0, "weight of positives in the loss; negatives weigh 1")
    ignore_in_training: Literal["negative", "drop"] = setting(
        "negative", "what a label -1 is in training: a negative, as in VISSL, or left out; test always leaves it out"
    )
    intercept_scaling: float = setting(1.0, "value of the constant feature whose weight, times this, is the bias")
    solver: Literal["auto", "newton", "liblinear"] = setting(
        "auto",
        "newton: all classes, costs and folds together; liblinear: scikit-learn's LinearSVC, one by one; "
        "auto: newton, except where both samples and features are more than 12,288",
    )
    max_iter: int = setting(2000, "largest number of iterations of the solver")
    tolerance: float = setting(
        1e-4, "newton: largest distance of the coefficients to the optimum, of their length; liblinear: its own measure"
    )
