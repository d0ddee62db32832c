"""Distillation of a trained network into another one (Hinton et al. 2015, arXiv 1503.02531).

The student imitates the teacher's features by the mean squared error, or the logits of its classifier, as in VISSL's
distillation_loss.py. Departures: the teacher is any weights file; images of the student's normalisation are
renormalised to the teacher's; if the features differ in length, a linear layer of the student makes up for it; hard
labels have plain cross entropy, where VISSL's may be smoothed.
"""

import dataclasses
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.classifier import Classifier, find_classifier
from sslbench.backbones.load import load_backbone, load_file
from sslbench.backbones.sizes import accept_sizes, feature_dim
from sslbench.config import setting
from sslbench.data.decode.transforms import renormalise
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import cross_entropy, in_float32, top1
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step
from sslbench.weights.reading import files

SoftLoss = Literal["kl_divergence", "cross_entropy", "mse"]


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of distillation."""

    teacher: str = setting(
        "", "weights file of the teacher; 'random' for an untrained one (needs teacher_backbone)", required=True
    )
    teacher_backbone: str | None = setting(None, "backbone of the teacher, where its file does not tell")
    target: Literal["features", "logits"] = setting("features", "output of the teacher that the student imitates")
    soft_loss: SoftLoss = setting("kl_divergence", "loss between logits; features have the mean squared error")
    temperature: float = setting(
        10.0, "temperature of both softmaxes of kl_divergence and cross_entropy", within="(0, inf)"
    )
    soft_weight: float = setting(
        1.0, "weight of the teacher's logits; the labels of the data have the rest", within="(0, 1]"
    )


@in_float32
def soft_target_loss(student: Tensor, teacher: Tensor, loss: SoftLoss, temperature: float) -> Tensor:
    """Return the loss between the logits of student and teacher, without gradient for the teacher.

    `student`: (B, C); `teacher`: (B, C).

    >>> logits = torch.tensor([[1.0, 0.0]])
    >>> float(soft_target_loss(logits, logits, "kl_divergence", 10.0))
    0.0
    """
    # Divergence and cross entropy are multiplied by the squared temperature, so that gradients do not depend on it
    # (Hinton et al., section 2).
    if loss == "mse":
        return functional.mse_loss(student, teacher.detach())
    log_p = (student / temperature).log_softmax(dim=1)
    target = (teacher.detach() / temperature).softmax(dim=1)
    if loss == "cross_entropy":
        return -(target * log_p).sum(dim=1).mean() * temperature**2
    return functional.kl_div(log_p, target, reduction="batchmean") * temperature**2


class Method(method.Method[Config]):
    """Imitation of the features or logits of a frozen teacher."""

    config_type = Config
    needs = Needs("supervised", method="distillation", views=1)

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a single view, and labels if they have a weight."""
        if config.soft_weight < 1 and (config.target == "features" or setup.classes < 2):
            reason = "method.target=features has no labels" if config.target == "features" else "the data have none"
            raise UsageError(
                f"distillation: soft_weight={config.soft_weight:g} leaves a weight to labels, but {reason}",
                "Set method.soft_weight=1, or use method.target=logits with labelled data.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        teacher, classifier = _load(config, setup)
        self._normalisations = setup.normalisation, teacher.preprocessing  # of the views, and of the teacher
        self.teacher = teacher.module.requires_grad_(False).eval()
        self._classifier = classifier
        if classifier is None:
            width = feature_dim(self.teacher, setup.sizes[0], teacher.preprocessing.channels)
            same = width == setup.feature_dim
            self.head: nn.Module = nn.Identity() if same else nn.Linear(setup.feature_dim, width)
        else:
            self.head = nn.Linear(setup.feature_dim, len(classifier.info.classes))
            self.teacher_head = classifier.head

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the student; the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        if self._classifier is not None:
            self.teacher_head.eval()
        return self

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the loss between the outputs of student and teacher, and that of the labels by its weight."""
        images = batch.views[0]
        features = self.backbone(images)
        own, target = self.head(features), self._target(images)
        embeddings = features.detach().float()
        if self._classifier is None:
            return Loss(soft_target_loss(own, target, "mse", 1.0), embeddings)
        value = soft_target_loss(own, target, self.config.soft_loss, self.config.temperature)
        parts = {"soft": value.detach(), "agreement": top1(own, target.argmax(dim=1))}
        if self.config.soft_weight < 1:
            if batch.labels is None:
                raise UsageError("distillation received a batch without labels")
            hard = cross_entropy(own, batch.labels)
            value = self.config.soft_weight * value + (1 - self.config.soft_weight) * hard
            parts |= {"hard": hard.detach(), "top1": top1(own, batch.labels)}
        return Loss(value, embeddings, parts)

    @torch.no_grad()
    def _target(self, images: Tensor) -> Tensor:
        """Return features (B, D) or logits (B, C) of the teacher, of images that are normalised for the student."""
        pixels = renormalise(images, *self._normalisations)
        if self._classifier is not None:
            return self._classifier.scores(self.teacher, pixels)
        features: Tensor = self.teacher(pixels)
        return features

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the classifier of the teacher's classes, or the layer between features of different lengths."""
        return {} if isinstance(self.head, nn.Identity) else {"head": self.head}


def _load(config: Config, setup: Setup) -> tuple[Backbone, Classifier | None]:
    """Return the teacher, and its classifier if the student imitates logits."""
    path = Path(config.teacher).expanduser()
    if config.teacher == "random":
        teacher, classifier = load_backbone("random", backbone=config.teacher_backbone), None
        if config.target == "logits":
            raise UsageError("distillation: a random teacher has no classifier", "Use method.target=features.")
    else:
        file = files.read(path)
        teacher = load_file(file, backbone=config.teacher_backbone, heads=config.target == "logits")
        classifier = find_classifier(file, teacher) if config.target == "logits" else None
    accept_sizes(teacher.module, setup.sizes, name=teacher.name, channels=teacher.preprocessing.channels)
    if classifier is not None and config.soft_weight < 1 and classifier.info.classes != setup.class_names:
        names = classifier.info.classes
        # Classifiers of old files have numbers for names; their order is trusted if the count fits.
        unnamed = names == tuple(map(str, range(len(names)))) and len(names) == setup.classes
        if not unnamed:
            raise UsageError(
                f"distillation: {config.teacher} has {len(names):,} classes, not the {setup.classes:,} of the data",
                "Set method.soft_weight=1, which needs no labels, or train on the teacher's classes.",
            )
    return teacher, classifier
