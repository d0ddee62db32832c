"""Settings of the low-shot protocol."""

import dataclasses
from typing import Literal

from sslbench.config import setting

DEFAULT_K = (1, 2, 4, 8, 16)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the low-shot protocol."""

    k: tuple[int, ...] = setting(
        DEFAULT_K, "images per class; the largest gives the leading metric; []: shares of train only"
    )
    fractions: tuple[float, ...] = setting((), "shares of train to train on too, such as [0.01,0.1]")
    stratified: bool = setting(True, "draw shares of train stratified by class; false: regardless of class")
    draws: int = setting(5, "independent draws; draw i has the seed (seed of the run) x draws + i")
    classifier: Literal["svm", "logistic"] = setting("svm", "classifier trained on each draw")
    select: Literal["train", "test"] = setting(
        "train", "split on which the regularisation is selected; test: as VISSL reports it, and the row is marked"
    )
    metric: Literal["auto", "top1", "mAP"] = setting(
        "auto",
        "leading metric, which select=test maximises; auto: top1 of single labels, mAP of several. mAP "
        "of single labels averages each class against the rest",
    )
    folds: int = setting(3, "folds of the cross-validation inside a draw; fewer where most classes have fewer samples")
    costs: tuple[float, ...] = setting(
        (0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0),
        "svm: candidates of the cost (scikit-learn's C); a single value needs no selection",
    )
    fixed_cost: float = setting(1.0, "svm: cost if most classes have one sample, too few for selection")
    positive_weight: float = setting(2.0, "svm: weight of positives in the loss; negatives weigh 1")
    solver: Literal["auto", "newton", "liblinear"] = setting("auto", "svm: as in the protocol svm")
    c: tuple[float, ...] = setting(
        (0.0001, 0.001, 0.01, 0.1, 1.0, 10.0, 100.0),
        "logistic: candidates of the inverse regularisation (scikit-learn's C); a single value needs no selection",
    )
    fixed_lambda: float = setting(0.025, "logistic: if most classes have one sample, C = samples / fixed_lambda")
    tolerance: float = setting(
        1e-10, "logistic: largest relative distance of the objective from its minimum that counts as converged"
    )
    max_iter: int = setting(2000, "largest number of solver iterations")
