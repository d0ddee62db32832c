"""Changed versions of the test images that the settings ask for, and the scores of a classifier on them."""

import functools
from collections.abc import Sequence

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.data import changed
from sslbench.data.changed import ByteImage, ImageChange
from sslbench.data.corruptions import SMALLEST, code_of, corrupt
from sslbench.data.decode.transforms import output_size
from sslbench.errors import UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.protocols.robustness.checks import corruption_name, corruptions
from sslbench.protocols.robustness.settings import Settings


def corruption_changes(settings: Settings) -> dict[tuple[str, int], ImageChange]:
    """Return the change of each corruption and severity; {} where the corrupted images are files."""
    if settings.corrupted:
        return {}
    return {
        (name, severity): ImageChange(
            corruption_name(name, severity), functools.partial(_corrupt, name=name, severity=severity), code_of(name)
        )
        for name in corruptions(settings)
        for severity in settings.severities
    }


def geometric_changes(settings: Settings) -> dict[str, ImageChange]:
    """Return the rotations, scales and crops by their names in metrics: 'rotation,15'."""
    code = f"geometry {changed.GEOMETRY_VERSION}"
    found = {}
    for name, values, apply in (
        ("rotation", settings.rotations, _rotate),
        ("scale", settings.scales, _rescale),
        ("crop", settings.crops, _crop),
    ):
        for value in values:
            change = ImageChange(f"{name}-{value:g}", functools.partial(apply, value=value), code)
            found[f"{name},{value:g}"] = change
    return found


def _corrupt(image: ByteImage, rng: np.random.Generator, *, name: str, severity: int) -> ByteImage:
    return corrupt(image, name, severity, rng)


def _rotate(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return changed.rotate(image, value)


def _rescale(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return changed.rescale(image, value)


def _crop(image: ByteImage, rng: np.random.Generator, *, value: float) -> ByteImage:
    return changed.crop(image, value, rng)


def check_pictures(settings: Settings, preprocessing: Preprocessing) -> None:
    """Refuse images that the changes cannot be applied to.

    Raises:
        UsageError: other channels than RGB or grey, or corruptions of pictures that are too small.
    """
    if preprocessing.channels not in (1, 3):
        raise UsageError(
            f"robustness: images are changed in RGB, and the backbone takes {preprocessing.channels} bands"
        )
    size = output_size(preprocessing)
    if corruption_changes(settings) and size is not None and min(size) < SMALLEST:
        raise UsageError(
            f"robustness: corruptions need {SMALLEST} pixels a side, and the backbone takes {size[0]}x{size[1]}",
            f"Give --resize {SMALLEST} --crop {SMALLEST} or more, or 'corrupt=[]'.",
        )


def reference_errors(settings: Settings, named: Sequence[str]) -> tuple[FloatArray | None, float | None]:
    """Return the errors (C, S) of the reference for corruptions at the severities asked for, and on clean images."""
    if settings.reference is None:
        return None, None
    places = [severity - 1 for severity in settings.severities]
    errors = np.array([settings.reference[name] for name in named])[:, places]
    return errors, settings.reference["clean"][0] if "clean" in settings.reference else None
