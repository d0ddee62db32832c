"""Published values of a benchmark beside the measured ones."""

from collections.abc import Mapping

from sslbench.library.benchmarks import Benchmark
from sslbench.results import MetricValue, ReferenceCompared, WeightsUsed


def compare_references(
    benchmark: Benchmark | None, weights: WeightsUsed, metrics: Mapping[str, MetricValue]
) -> tuple[ReferenceCompared, ...]:
    """Return the published values for these weights on a benchmark beside the measured ones."""
    if benchmark is None or weights.partial or weights.untrained:
        return ()
    found = []
    for each in benchmark.reference:
        if weights.name not in each.files and not (each.sha256 and weights.sha256.startswith(each.sha256)):
            continue
        value = metrics[each.metric].value if each.metric in metrics else None
        difference = None if value is None else value - each.value
        found.append(
            ReferenceCompared(
                weights=each.weights,
                metric=each.metric,
                published=each.value,
                source=each.source,
                tolerance=each.tolerance,
                difference=difference,
                within=difference is not None and abs(difference) <= each.tolerance,
            )
        )
    return tuple(found)
