"""What the user wants of a detection: the request, and the recipe with the origin of every setting."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from sslbench.backbones.backbone import Backbone
from sslbench.benchmarks import Benchmark
from sslbench.config import resolve
from sslbench.data.objects import TrainTestObjects
from sslbench.detection.recipe import DetectionRecipe, check, resolved
from sslbench.evaluation.request import RunSettings

Backend = Literal["torchvision", "detectron2"]


@dataclasses.dataclass(frozen=True)
class DetectionRequest:
    """What the user wants; every field means what the flag of the same name means.

    Attributes:
        recipe: of the detector and its training.
        origins: of each setting of it, for the user.
        benchmark: where the recipe comes from, or None.
        baselines: 'random' for the untrained backbone, or weights: the same detector is trained from each, and its
            result stands beside.
        backend: what trains and runs the detector.
        d2: d2.KEY=value: changes of Detectron2's configuration, without 'd2.'.
    """

    weights: str
    data: str
    recipe: DetectionRecipe
    origins: dict[str, str]
    benchmark: Benchmark | None = None
    test_data: str | None = None
    backbone: str | None = None
    format: str | None = None
    allow_partial: bool = False
    trust_pickle: bool = False
    stem: str | None = None
    baselines: tuple[str, ...] = ()
    backend: Backend = "torchvision"
    d2: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class PreparedDetection:
    """Everything opened and checked, nothing decoded yet.

    Attributes:
        backend: name and settings of the backend, which stand beside the recipe's among the settings of the record:
            results of two backends do not share a column.
        baselines: what was asked for in their place, and the backbone.
    """

    request: DetectionRequest
    run: RunSettings
    backbone: Backbone
    data: TrainTestObjects
    backend: dict[str, Any]
    baselines: tuple[tuple[str, Backbone], ...] = ()


def make_recipe(
    overrides: Mapping[str, Any], benchmark: Benchmark | None, *, limit_iterations: int | None = None
) -> tuple[DetectionRecipe, dict[str, str], Benchmark | None]:
    """The recipe: defaults, then the benchmark's, then the user's; with the origin of every setting.

    Args:
        overrides: settings by the user.
        benchmark: of detection; it comes back as modified if the user changed anything.
        limit_iterations: training ends after so many; its rates are those of the whole.

    Raises:
        UsageError: an unknown setting or a wrong value.
    """
    layers: list[tuple[str, Mapping[str, Any]]] = []
    if benchmark is not None:
        layers.append((f"benchmark {benchmark.name}", benchmark.settings))
    layers.append(("command line", overrides))
    recipe, origins = resolve(DetectionRecipe, layers)
    check(recipe)
    full = resolved(recipe)
    filled = [f.name for f in dataclasses.fields(full) if getattr(full, f.name) != getattr(recipe, f.name)]
    origins |= dict.fromkeys(filled, f"default of {recipe.architecture}")
    iterations = min(limit_iterations or full.iterations, full.iterations)
    shortened = iterations < full.iterations
    if shortened:
        full = dataclasses.replace(full, iterations=iterations)
        origins["iterations"] = "flag --limit-iters"
    if benchmark is not None and (overrides or shortened):
        benchmark = dataclasses.replace(benchmark, modified=True)
    return full, origins, benchmark
