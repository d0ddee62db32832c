"""Settings of the protocol: the recipe of a detector, and the program that trains it."""

import dataclasses
from typing import Any, Literal

from sslbench.config import result_settings, setting
from sslbench.detection.detectron2 import library
from sslbench.detection.recipe import DetectionRecipe, check, resolved
from sslbench.errors import UsageError


@dataclasses.dataclass(frozen=True)
class DetectionSettings(DetectionRecipe):
    """Recipe of the detector, and the settings of the program that trains it."""

    limit_iters: int | None = setting(
        None,
        "largest number of iterations, to shorten a recipe; rates, steps and warm-up stay those of the whole",
        within="[1, inf)",
        changes_result=False,  # `iterations` is what is measured
    )
    program: Literal["torchvision", "detectron2"] = setting(
        "torchvision",
        "library that trains the detector (--backend)",
        changes_result=False,  # a benchmark is not modified by it; `recorded` has it
    )
    d2: dict[str, Any] | None = setting(None, "d2.KEY=value: changes of Detectron2's own configuration")

    @property
    def recipe(self) -> DetectionRecipe:
        """Recipe alone, as files of detectors hold it."""
        names = (field.name for field in dataclasses.fields(DetectionRecipe))
        return DetectionRecipe(**{name: getattr(self, name) for name in names})


def check_settings(settings: DetectionSettings) -> None:
    """Refuse settings that are not possible, whatever the data.

    Raises:
        UsageError: one is not, or is of the other backend, or Detectron2 cannot be used (it says how it is installed).
    """
    check(settings)
    if settings.program != "detectron2" and settings.d2:
        key = next(iter(settings.d2))
        raise UsageError(
            f"d2.{key} is a setting of Detectron2, but the backend is {settings.program}", "Add --backend detectron2."
        )
    if settings.program == "detectron2" and (settings.metric == "lvis" or settings.repeat_threshold):
        key = "metric=lvis" if settings.metric == "lvis" else f"repeat_threshold={settings.repeat_threshold:g}"
        raise UsageError(f"{key} is a setting of the torchvision backend", "Leave out --backend detectron2.")
    if settings.program == "detectron2":
        library.require()


def complete(settings: DetectionSettings) -> tuple[DetectionSettings, dict[str, str]]:
    """Return the settings with the defaults of the architecture, and at most `limit_iters` iterations."""
    full = resolved(settings)
    names = (field.name for field in dataclasses.fields(full))
    origins = {
        name: f"default of {full.architecture}" for name in names if getattr(full, name) != getattr(settings, name)
    }
    if settings.limit_iters is None or settings.limit_iters >= full.iterations:
        return full, origins
    return dataclasses.replace(full, iterations=settings.limit_iters), origins | {"iterations": "flag --limit-iters"}


def recorded(settings: DetectionSettings) -> dict[str, Any]:
    """Return the settings as records hold them: results of two backends do not share a column."""
    of_backend = {"d2": settings.d2 or {}} if settings.program == "detectron2" else {}
    return {**result_settings(settings.recipe), "backend": settings.program, **of_backend}
