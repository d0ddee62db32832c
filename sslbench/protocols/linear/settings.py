"""Settings of the linear protocol."""

import dataclasses
from typing import Literal

from sslbench.config import setting

GRID = tuple(float(f"{10 ** (e / 2):.3g}") for e in range(-12, 5))


ALPHAS = tuple(float(f"{10 ** (e / 2):.3g}") for e in range(-6, 15))


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the linear probe."""

    c: tuple[float, ...] = setting(
        GRID, "candidates of the inverse regularisation (scikit-learn's C); a single value needs no selection"
    )
    refine: int = setting(0, "refinements of c: halve the spacing around the best and try its two neighbours (CLIP: 4)")
    select_on: Literal["train", "test"] = setting(
        "train", "split on which c is selected: a hold-out of train; or test, and the row is marked"
    )
    holdout: float = setting(0.2, "share of train held out to select c or alpha")
    scale: Literal["standard", "none"] = setting(
        "standard", "standard: subtract train's mean and divide by train's standard deviation; none: unchanged"
    )
    alpha: tuple[float, ...] = setting(
        ALPHAS, "numbers as labels: candidates of ridge regression's penalty (scikit-learn's alpha)"
    )
    patience: int = setting(
        0, "stop the path of c after this many values in a row with a worse loss and no better score; 0: try all"
    )
    max_iter: int = setting(1000, "largest number of solver steps for one c")
    tolerance: float = setting(
        1e-10, "largest relative distance of the objective from its minimum that counts as converged"
    )
