"""Settings of robustness, and the names of its sets of images."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from sslbench import paths
from sslbench.config import setting
from sslbench.data.corruptions import EXTRA, MAIN, SEVERITIES
from sslbench.errors import UsageError
from sslbench.names import did_you_mean
from sslbench.protocols.linear import GRID
from sslbench.protocols.protocol import ProtocolSettings

ONE_OF_EACH_FAMILY = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")

VERSIONS, UNKNOWN = "versions", "unknown"
# Name of the set of ImageNet's validation images with several right labels (Beyer et al. 2020).
REAL = "imagenet-real"
OBJECTNET = "objectnet"
# Sets whose images have several right classes: they have metrics in the record on test, and no record of their own.
SEVERAL_RIGHT = (REAL, OBJECTNET)
# Beginning of the names of sets of videos.
PERTURBED = "perturbed-"
GROUPS: Mapping[str, tuple[str, ...]] = {"main": tuple(MAIN), "extra": tuple(EXTRA)}

_NO_PATH = "*{?:"  # characters of strings such as 'torchvision:svhn', and of shards


@dataclasses.dataclass(frozen=True)
class Settings(ProtocolSettings):
    """Settings of robustness."""

    classifier: Literal["linear", "file"] = setting(
        "linear", "linear: a linear probe trained on train; file: the classifier in the weights file, as it is"
    )
    class_names: str = setting(
        "",
        "names of the file's classes, one per line in the order of its outputs, where the file has none; "
        "empty: train's classes in the order of their names, or ImageNet's synsets",
        by_content=True,
        needs="classifier=file",
    )
    corrupt: tuple[str, ...] = setting(
        ONE_OF_EACH_FAMILY,
        "corruptions of the test images; main: the 15 of ImageNet-C; extra: the other four; []: none",
        distinct=True,
    )
    corrupted: str = setting(
        "",
        "folder of corrupted test images, CORRUPTION/SEVERITY/..., as of ImageNet-C; empty: corrupt the test images",
        by_content=True,
        needs="corrupt",
    )
    severities: tuple[int, ...] = setting(
        SEVERITIES, "severities of each corruption, 1 (weak) to 5 (strong)", distinct=True, filled=True, within="[1, 5]"
    )
    change_seed: int = setting(0, "seed of corruptions and crops: other draws of the same strength")
    reference: dict[str, tuple[float, ...]] | None = setting(
        None,
        "errors (0 to 1) of a reference classifier, for mCE: corruption -> severities 1 to 5; clean -> one number",
        needs="corrupt",
    )
    rotations: tuple[float, ...] = setting(
        (15.0, 90.0, 180.0),
        "rotations of the test images, for the similarity of features",
        unit="degrees",
        distinct=True,
        within="(-inf, inf)",
    )
    scales: tuple[float, ...] = setting(
        (0.5, 0.75, 1.5),
        "scales of the content of the test images, for the similarity of features",
        distinct=True,
        within="(0, 100)",
    )
    crops: tuple[float, ...] = setting(
        (0.5, 0.75),
        "sides of random crops of the test images, as shares, for the similarity of features",
        distinct=True,
        within="(0, 1)",
    )
    perturbations: str = setting(
        "",
        "folder of videos of perturbed images, PERTURBATION/CLASS/VIDEO.mp4, as the files of ImageNet-P",
        by_content=True,
    )
    frame_step: int = setting(
        1,
        "distance of the frames compared, for perturbations other than noise",
        unit="frames",
        within="[1, inf)",
        needs="perturbations",
    )
    reference_flips: dict[str, float] | None = setting(
        None,
        "flip probabilities (0 to 1) of a reference classifier, for the flip rate: perturbation -> probability",
        needs="perturbations",
    )
    sets: dict[str, str] | None = setting(
        None, "further test sets with train's classes or some of them: name -> location", by_content=True
    )
    lines: dict[str, tuple[float, float]] | None = setting(
        None, "for effective robustness: set -> slope and intercept of logit(accuracy there) on logit(accuracy on test)"
    )
    unknown: str = setting(
        "", "images of other classes than train's, to be detected among test images", by_content=True
    )
    known: str = setting(
        "",
        "published list of the classes that are known (imagenet-o); others and their test images are left out",
        needs="unknown",
    )
    neighbours: int = setting(
        50,
        "novelty by the cosine distance of this nearest training image; needs unknown=",
        within="[1, inf)",
        needs="unknown",
    )
    c: tuple[float, ...] = setting(
        GRID,
        "linear probe: candidates of the inverse regularisation, as for the protocol linear",
        within="(0, inf)",
        filled=True,
        needs="classifier=linear",
    )
    holdout: float = setting(
        0.2, "linear probe: share of train held out to select c", within="(0, 1)", needs="classifier=linear"
    )

    def __post_init__(self) -> None:
        """Refuse names that do not exist, and settings that do not go together."""
        super().__post_init__()
        known = (*MAIN, *EXTRA, *GROUPS)
        for name in self.corrupt:
            if name not in known:
                raise UsageError(f"robustness: there is no corruption '{name}'", did_you_mean(name, known))
        if 1 in self.scales:
            raise UsageError("robustness: scales should be other than 1")
        if self.severities != SEVERITIES and not self.corrupt:
            raise UsageError("robustness: severities has no effect without corruptions", "Name some: corrupt=main.")
        if self.change_seed and not ((self.corrupt and not self.corrupted) or self.crops):
            raise UsageError(
                "robustness: change_seed has no effect: no image is corrupted or cropped at random",
                "Name corruptions or crops, or leave change_seed out.",
            )
        self._check_references()
        # Sets share one mapping with the changed versions of the test images, whose names they must not take.
        taken = {VERSIONS, UNKNOWN, "", *(corruption_name(n, s) for n in corruptions(self) for s in self.severities)}
        for name in self.sets or {}:
            if name in taken or is_perturbed(name):
                raise UsageError(f"robustness: a set cannot be called '{name}'")
        for name in self.lines or {}:
            if name not in (self.sets or {}) or name in SEVERAL_RIGHT:
                raise UsageError(
                    f"robustness: the line of {name} has no effect without that set", f"Add {name} to sets=."
                )

    def _check_references(self) -> None:
        reference = self.reference
        if reference is not None and (missing := [name for name in corruptions(self) if name not in reference]):
            raise UsageError(f"robustness: reference has no errors for {', '.join(missing)}")
        for name, errors in (reference or {}).items():
            number = 1 if name == "clean" else len(SEVERITIES)
            if len(errors) != number or not all(0 < error <= 1 for error in errors):
                raise UsageError(
                    f"robustness: reference.{name} should be {number} error{'s' if number > 1 else ''} from 0 to 1, "
                    f"not {list(errors)}"
                )
        for name, value in (self.reference_flips or {}).items():
            if not 0 < value <= 1:
                raise UsageError(f"robustness: reference_flips.{name} should be a probability from 0 to 1, not {value}")

    @property
    def measures_nothing(self) -> bool:
        """True without any set or version of images beside test."""
        changed = self.corrupt or self.rotations or self.scales or self.crops
        return not (changed or self.perturbations or self.sets or self.unknown)


def corruptions(settings: Settings) -> tuple[str, ...]:
    """Return the names of the corruptions, groups written out, each once."""
    found = (each for name in settings.corrupt for each in GROUPS.get(name, (name,)))
    return tuple(dict.fromkeys(found))


def corruption_name(name: str, severity: int) -> str:
    """Return the name of a corruption at a severity, as a set or version of images.

    >>> corruption_name("fog", 3)
    'fog-3'
    """
    return f"{name}-{severity}"


def is_perturbed(name: str) -> bool:
    """Return whether a set of images is the frames of a perturbation."""
    return name.startswith(PERTURBED)


def located(location: str, setting: str) -> str:
    """Return a location; a name that exists only in the data folder ($SSLBENCH_DATA, else ./data) as the path there."""
    if not location or Path(location).exists():
        return location
    inside = paths.data_dir() / location
    if inside.exists():
        return str(inside)
    if "/" in location and not any(character in location for character in _NO_PATH):
        raise UsageError(
            f"{setting}={location} does not exist"
            + ("" if Path(location).is_absolute() else f", neither here nor in {paths.data_dir()}/ ($SSLBENCH_DATA)"),
            "Name an existing folder or file.",
        )
    return location
