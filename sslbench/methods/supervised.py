"""Supervised classification, for comparison with self-supervised methods."""

import dataclasses

from torch import nn

from sslbench.config import setting
from sslbench.errors import UsageError
from sslbench.methods._parts.checks import need_views
from sslbench.methods._parts.classification import cross_entropy, top1
from sslbench.train import method
from sslbench.train.method import Batch, Loss, Setup, Step


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of supervised training."""

    label_smoothing: float = setting(0.0, "fraction of the target spread over all classes")


class Method(method.Method[Config]):
    """Linear classifier of the data's classes on the backbone."""

    config_type = Config
    has_classifier = True

    @classmethod
    def check(cls, backbone: nn.Module, config: Config, setup: Setup) -> None:
        """Require a single view, and images of at least two classes."""
        need_views(setup, 1, method="supervised")
        if setup.classes < 2:
            raise UsageError(
                "supervised training needs data in which every image has one of at least two classes",
                "Give labelled data (one folder per class, or a table with a label column), or use another method.",
            )

    def __init__(self, backbone: nn.Module, config: Config, setup: Setup) -> None:
        super().__init__(backbone, config, setup)
        self.head = nn.Linear(setup.feature_dim, setup.classes)

    def loss(self, batch: Batch, step: Step) -> Loss:
        """Return the cross entropy with label smoothing."""
        if batch.labels is None:
            raise UsageError("supervised training received a batch without labels")
        features = self.backbone(batch.views[0])
        logits = self.head(features)
        value = cross_entropy(logits, batch.labels, self.config.label_smoothing)
        return Loss(value, features.detach().float(), {"top1": top1(logits, batch.labels)})

    def heads(self, exported: str) -> dict[str, nn.Module]:
        """Return the classifier."""
        return {"head": self.head}
