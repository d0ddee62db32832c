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
        GRID, "inverse regularisation strengths to choose from (scikit-learn's C); one value is used as it is"
    )
    refine: int = setting(
        0, "how often the spacing of c is then halved around the best, and its two neighbours tried (CLIP: 4)"
    )
    select_on: Literal["train", "test"] = setting(
        "train", "what c is chosen on: a held-out part of train; or test, and the row is marked"
    )
    holdout: float = setting(0.2, "share of train that is held out to choose c or alpha on")
    scale: Literal["standard", "none"] = setting(
        "standard", "standard: features minus their mean, divided by their deviation, both of train; none: as they are"
    )
    alpha: tuple[float, ...] = setting(
        ALPHAS, "labels that are numbers: strengths of ridge regression (scikit-learn's alpha) to choose from"
    )
    patience: int = setting(
        0, "the values of c end early after so many in a row with a worse loss and no better score; 0: all are tried"
    )
    max_iter: int = setting(1000, "largest number of steps of the solver for one c")
    tolerance: float = setting(
        1e-10, "largest distance of the objective to its lowest value, relative to that, that counts as converged"
    )
