"""Supervised classification, for comparison with self-supervised methods.

Images with several labels are trained as in VISSL, with a binary classifier for each label.
"""

import dataclasses

from torch import nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.losses import cross_entropy, multi_label_loss, top1
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Needs, Setup, Step
from sslbench.train.views import make_mix


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of supervised training."""

    label_smoothing: float = setting(0.0, "fraction of the target spread over all classes", within="[0, 1)")
    mixup: float = setting(0.0, "alpha of mixup; 0: none", within="[0, inf)")
    cutmix: float = setting(
        0.0, "alpha of CutMix; 0: none. With mixup too, each batch has one of them", within="[0, inf)"
    )


class Method(method.Method[Config]):
    """Linear classifier of the data's classes on the backbone; of several labels per image by binary cross entropy."""

    config_type = Config
    needs = Needs("supervised", views=1)
    saved_head = "head"
    has_classifier = True

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a single view, and images of at least two classes or of several labels."""
        if setup.classes < 2 and setup.targets is None:
            raise UsageError(
                "supervised training needs images of several labels, or of one of at least two classes each",
                "Give labelled data (one folder per class, or a table with a label column), or use another method.",
            )
        for name in ("label_smoothing", "mixup", "cutmix"):
            if setup.targets is not None and getattr(config, name):
                raise UsageError(
                    f"supervised: {name} has no effect on images of several labels", "Leave it out, or set it to 0."
                )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        classes = setup.classes if setup.targets is None else setup.targets.shape[1]
        self.head = nn.Linear(setup.feature_dim, classes)
        self.targets = setup.targets
        self._mix = make_mix(config.mixup, config.cutmix, classes)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the cross entropy with label smoothing, or the binary cross entropy of several labels."""
        images, labels = batch.views[0], batch.labels
        if self._mix is not None and labels is not None:
            images, labels = self._mix(images, labels)
        features = self.backbone(images)
        logits = self.head(features)
        embeddings = features.detach().float()
        # Images with several labels: a batch has one number for each image, so their rows are looked up.
        if self.targets is not None:
            targets = self.targets[batch.indices].to(logits.device)
            return Loss(multi_label_loss(logits, targets), embeddings)
        if labels is None:
            raise UsageError("supervised training received a batch without labels")
        value = cross_entropy(logits, labels, self.config.label_smoothing)
        return Loss(value, embeddings, {} if labels.is_floating_point() else {"top1": top1(logits, labels)})
