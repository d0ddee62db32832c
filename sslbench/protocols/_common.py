"""What every protocol on features does first and last: refuse what cannot be scored, and put the metrics together."""

import math

import numpy as np
import numpy.typing as npt

from sslbench.data.source import Labels
from sslbench.errors import DataError
from sslbench.features.array import Features

_ROWS = 4096  # rows looked at together, so that memory-mapped features are never copied whole


def check_features(train: Features, test: Features) -> None:
    """Refuse features and labels that no protocol can score.

    Raises:
        DataError: no labels, no samples, two widths, or features that are NaN or infinite (with the first ids).
    """
    for name, part in (("train", train), ("test", test)):
        if part.labels.kind == "none":
            raise DataError(
                f"the {name} samples have no labels, and this protocol scores features against labels",
                "Give labelled data: a folder per class, a table with a label column, or a manifest with categories.",
            )
        if not len(part):
            raise DataError(f"there are no {name} samples")
        check_finite(part, name)
    if train.x.shape[1] != test.x.shape[1]:
        raise DataError(f"train features are {train.x.shape[1]} wide, test features {test.x.shape[1]}")


def check_finite(part: Features, name: str) -> None:
    """Refuse features that are NaN or infinite.

    Raises:
        DataError: with the first ids.
    """
    bad: list[str] = []
    count = 0
    for start in range(0, len(part), _ROWS):
        rows = np.flatnonzero(~np.isfinite(part.x[start : start + _ROWS]).all(axis=1))
        count += len(rows)
        bad += [part.ids[start + row] for row in rows[: 3 - len(bad)]]
    if count:
        more = f" and {count - len(bad)} more" if count > len(bad) else ""
        raise DataError(
            f"the features of {count} of {len(part)} {name} samples are not finite numbers: {', '.join(bad)}{more}",
            "The backbone overflowed or its weights are damaged; try --precision fp32, or look at the weights.",
        )


def holdout_rows(
    labels: Labels, fraction: float, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None:
    """Rows to fit on and rows held out for a choice, stratified and seeded; None when either part would be empty."""
    from sslbench.data.splits import holdout

    if not 0 < fraction < 1 or len(labels) < 2:
        return None
    fit, held = holdout(labels, fraction, seed)
    return (fit, held) if len(fit) and len(held) else None


def percent(fraction: float) -> str:
    """A share for messages: '20 %'."""
    return f"{100 * fraction:g} %"


def is_better(score: float, best: float) -> bool:
    """Whether a score beats the best so far; NaN never does, and anything beats NaN. Of equals the first one stays."""
    return not math.isnan(score) and (math.isnan(best) or score > best)
