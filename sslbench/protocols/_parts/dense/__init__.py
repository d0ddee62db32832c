"""Training and scoring of heads on maps of frozen features: many heads in one pass, for any dense task.

A protocol on dense targets has a `Settings(HeadSettings)` and a class of its `DenseProtocol[Settings]`: targets, loss,
scores. `DenseProtocol.kind()` does the rest. None of these names loads torch before a run starts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sslbench.backbones.views import OWN_SIZES
from sslbench.data.source import Source
from sslbench.protocols._parts.dense.task import DenseTask, HeadSettings, S
from sslbench.protocols.protocol import Cost, ImageInputs, OnImages, Shapes
from sslbench.results import Outcome

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer

__all__ = ["DenseProtocol", "HeadSettings"]


def heads_cost(settings: HeadSettings, shapes: Shapes) -> Cost:
    """Count the crops of training and the test images, as one window each."""
    crops = float(settings.steps * settings.batch_size)
    if settings.max_epochs is not None:
        crops = min(crops, settings.max_epochs * shapes.train)
    return Cost(images=crops + shapes.test * len(settings.scales), rest="heads, windows and metrics")


class DenseProtocol(DenseTask[S]):
    """Dense task that is a protocol: it trains heads on frozen maps."""

    @classmethod
    def rows(
        cls, backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: S, *, seed: int
    ) -> tuple[str, ...]:
        """Refuse what does not go together before any image is decoded; return the rows of results."""
        from sslbench.protocols._parts.dense.run import checked_rows

        return checked_rows(backbone, layers, train, settings, protocol=cls.name, seed=seed)

    @classmethod
    def run(cls, inputs: ImageInputs[S]) -> dict[str, Outcome]:
        """Train heads on train, choose one per row on a held-out part of it, score test; see `train_and_score`."""
        from sslbench.protocols._parts.dense.run import train_and_score

        cls.check(inputs.settings, inputs.train.target)
        task = cls.of(inputs.settings, inputs.train, inputs.backbone.preprocessing, inputs.seed)
        return train_and_score(task, inputs)

    @classmethod
    def kind(cls) -> OnImages[S]:
        """Return the kind of the protocol."""
        return OnImages(
            cls.check,
            cls.rows,
            cls.run,
            cost=heads_cost,
            takes=(cls.takes,),
            view=OWN_SIZES,
            reads_trained_side=lambda settings: settings.enlarge == "trained",
            joins=True,
            restored=cls.restored,
        )
