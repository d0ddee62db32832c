"""Settings of linear SVMs, apart from the module that imports solvers with torch."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.protocols.protocol import ProtocolSettings


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of the SVM protocol."""

    costs: tuple[float, ...] = setting(
        (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0),
        "candidates of the cost (scikit-learn's C); a single value needs no selection",
        within="(0, inf)",
        filled=True,
    )
    folds: int = setting(3, "folds of the cross-validation that selects the cost", within="[2, inf)")
    normalise: bool = setting(True, "divide each feature vector by its norm + 1e-5")
    positive_weight: float = setting(2.0, "weight of positives in the loss; negatives weigh 1", within="(0, inf)")
    ignore_in_training: Literal["negative", "drop"] = setting(
        "negative", "role of labels -1 in training: negatives, as in VISSL, or left out; test always leaves them out"
    )
    intercept_scaling: float = setting(
        1.0, "constant feature whose weight, times this value, is the bias", within="(0, inf)"
    )
    solver: Literal["auto", "newton", "liblinear"] = setting(
        "auto",
        "newton: all classes, costs and folds jointly; liblinear: scikit-learn's LinearSVC, "
        "one by one; auto: newton, unless samples and features both exceed 12,288",
    )
    max_memory: float = setting(
        1.0,
        "working memory of newton beside the features, by which classes are solved together",
        unit="GB",
        changes_result=False,
        within="(0, inf)",
    )
    max_iter: int = setting(2000, "largest number of solver iterations", within="(0, inf)")
    tolerance: float = setting(
        1e-4,
        "newton: largest relative distance of the coefficients from the optimum; liblinear: its own measure",
        within="(0, inf)",
    )
