"""Settings of robustness."""

import dataclasses
from typing import Literal

from sslbench.config import setting
from sslbench.data.corruptions import SEVERITIES
from sslbench.protocols.linear.settings import GRID

ONE_OF_EACH_FAMILY = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of robustness."""

    classifier: Literal["linear", "file"] = setting(
        "linear", "linear: a linear probe trained on train; file: the classifier in the weights file, as it is"
    )
    class_names: str = setting(
        "",
        "names of the file's classes, one per line in the order of its outputs, where the file has none; "
        "empty: train's classes in the order of their names, or ImageNet's synsets",
        by_content=True,
    )
    corrupt: tuple[str, ...] = setting(
        ONE_OF_EACH_FAMILY,
        "corruptions of the test images; main: the 15 of ImageNet-C; extra: the other four; []: none",
    )
    corrupted: str = setting(
        "",
        "folder of corrupted test images, CORRUPTION/SEVERITY/..., as of ImageNet-C; empty: corrupt the test images",
        by_content=True,
    )
    severities: tuple[int, ...] = setting(SEVERITIES, "severities of each corruption, 1 (weak) to 5 (strong)")
    change_seed: int = setting(0, "seed of corruptions and crops: other draws of the same strength")
    reference: dict[str, tuple[float, ...]] | None = setting(
        None, "errors (0 to 1) of a reference classifier, for mCE: corruption -> severities 1 to 5; clean -> one number"
    )
    rotations: tuple[float, ...] = setting(
        (15.0, 90.0, 180.0), "rotations of the test images, for the similarity of features", unit="degrees"
    )
    scales: tuple[float, ...] = setting(
        (0.5, 0.75, 1.5), "scales of the content of the test images, for the similarity of features"
    )
    crops: tuple[float, ...] = setting(
        (0.5, 0.75), "sides of random crops of the test images, as shares, for the similarity of features"
    )
    perturbations: str = setting(
        "",
        "folder of videos of perturbed images, PERTURBATION/CLASS/VIDEO.mp4, as the files of ImageNet-P",
        by_content=True,
    )
    frame_step: int = setting(1, "distance of the frames compared, for perturbations other than noise", unit="frames")
    reference_flips: dict[str, float] | None = setting(
        None, "flip probabilities (0 to 1) of a reference classifier, for the flip rate: perturbation -> probability"
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
        "", "published list of the classes that are known (imagenet-o); others and their test images are left out"
    )
    neighbours: int = setting(50, "novelty by the cosine distance of this nearest training image; needs unknown=")
    c: tuple[float, ...] = setting(
        GRID, "linear probe: candidates of the inverse regularisation, as for the protocol linear"
    )
    holdout: float = setting(0.2, "linear probe: share of train held out to select c")
