"""Recipes of the benchmarks of detection."""

from sslbench.config import build
from sslbench.detection.recipe import DetectionRecipe, check
from sslbench.library.benchmarks import load_benchmark


def load_recipe(name):
    """Return the checked recipe of a benchmark, by its name or its YAML file."""
    recipe = build(DetectionRecipe, load_benchmark(name).settings, f"{name}: settings")
    check(recipe)
    return recipe
