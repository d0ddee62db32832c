"""Comparison of detectors on the same test images."""

import dataclasses

from sslbench.detection.recipe import DetectionRecipe
from sslbench.metrics.detection import Detections, Truth
from sslbench.metrics.detection.difference import ApDefinition, ap_difference
from sslbench.results import Result, percent

_METRICS: dict[str, ApDefinition] = {"coco": "coco", "voc07": "11-point", "voc12": "area"}


@dataclasses.dataclass(frozen=True, eq=False)
class DetectorResult:
    """Record of a detector and its detections on the test part."""

    result: Result
    found: Detections


def compared(
    own: DetectorResult, baselines: list[DetectorResult], truth: Truth, recipe: DetectionRecipe, *, seed: int
) -> Result:
    """Return the record with the baselines beside it: the difference of AP, its interval, and whether they are tied.

    Args:
        own: the one in question.
        baselines: the same detector trained alike from other weights.
        truth: of the test part.
        recipe: its metric counts.
        seed: of the bootstrap.
    """
    result, variants, notes, floors = own.result, dict(own.result.variants), list(own.result.notes), {}
    for other in baselines:
        weights = other.result.weights
        values = ap_difference(truth, own.found, other.found, _METRICS[recipe.metric], seed=seed)
        difference, low, high = (percent(value) for value in values)
        variants[f"AP less that of {weights.name}"] = {"difference": difference, "low": low, "high": high}
        notes.append(verdict(result, other.result, difference, low, high, truth.n_images))
        if weights.untrained:
            floors["untrained"] = {name: metric.value for name, metric in other.result.metrics.items()}
    return dataclasses.replace(result, variants=variants, notes=tuple(notes), floors={**result.floors, **floors})


def verdict(
    own: Result, other: Result, difference: float | None, low: float | None, high: float | None, images: int
) -> str:
    """'w.torch: AP 34.2, clearly above the 21.0 of resnet18 untrained (+13.2, 95 % interval +5.1 .. +20.9 ...)'."""
    first, second = (result.metrics["AP"].value for result in (own, other))
    names = own.weights.name, other.weights.name
    if difference is None or low is None or high is None or first is None or second is None:
        return f"{names[0]} and {names[1]} cannot be compared: AP is not defined."
    if low > 0:
        words = f"clearly above the {second:.1f} of {names[1]}"
    elif high < 0:
        words = f"clearly below the {second:.1f} of {names[1]}"
    else:
        words = f"tied with the {second:.1f} of {names[1]}"
    return (
        f"{names[0]}: AP {first:.1f}, {words}, trained alike ({difference:+.1f}, 95 % interval {low:+.1f} .. "
        f"{high:+.1f}: paired bootstrap over {images} test images)"
    )
