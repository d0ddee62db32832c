"""Unit and direction of every metric: what decides which row is the best, and which numbers may be averaged."""

import dataclasses
import re


@dataclasses.dataclass(frozen=True)
class Kind:
    """Unit and direction of a metric.

    Attributes:
        unit: in which records hold it; '%' for rates. Two metrics of one unit and direction may be averaged.
        direction: 1 where more is better, -1 where less is, 0 where that is not known.
        of_labels: its unit is that of the labels, and differs between data sets.
    """

    unit: str
    direction: int
    of_labels: bool = False

    @property
    def text(self) -> str:
        """Such as '%, more is better'."""
        words = {1: "more is better", -1: "less is better", 0: "direction not known"}
        return f"{self.unit}, {words[self.direction]}"


_RATES = (
    "top1 top5 balanced_accuracy macro_f1 micro_f1 mAP mAP_11pt mAP_noninterpolated macro_auroc auroc r2 spearman "
    "nmi ari accuracy "
    "AP AP50 AP75 APs APm APl AR1 AR10 AR100 ARs ARm ARl mask_AP mask_AP50 mask_AP75 mask_APs mask_APm mask_APl"
).split()

KINDS = {
    **{name: Kind("%", 1) for name in _RATES},
    "ece": Kind("%", -1),
    "ece_adaptive": Kind("%", -1),
    "silhouette": Kind("silhouette, -1 to 1", 1),
    "nll": Kind("nats", -1),
    "brier": Kind("Brier score, 0 to 2", -1),
    "mae": Kind("units of the labels", -1, of_labels=True),
    "rmse": Kind("units of the labels", -1, of_labels=True),
}
"""The metrics that are known; of others neither unit nor direction is."""


def kind_of(metric: str) -> Kind:
    """Unit and direction of a metric; one that is not known has a unit of its own, and no direction.

    >>> kind_of("worst_group(site).top1").text
    '%, more is better'
    >>> kind_of("rankme").direction
    0
    """
    worst = re.fullmatch(r"worst_group\(.*\)\.(\w+)", metric)
    name = worst[1] if worst else metric
    return KINDS.get(name, Kind(f"unit of {name}", 0))


def direction(metric: str) -> int:
    """1 where more of a metric is better, -1 where less is, 0 where that is not known."""
    return kind_of(metric).direction
