"""Protocols that train dense heads: their functions on images, made of the parts that are a protocol's own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from sslbench.data.source import Labels, Source
from sslbench.labels import LabelKind
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.dense.settings import HeadSettings
from sslbench.protocols.protocol import ImageWork, OnImages, Shapes
from sslbench.results import Outcome

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.layers import Layer
    from sslbench.features.settings import ExtractSettings
    from sslbench.protocols._parts.dense.run import Plan

S = TypeVar("S", bound=HeadSettings)
S_contra = TypeVar("S_contra", bound=HeadSettings, contravariant=True)


class MakePlan(Protocol[S_contra]):
    """Signature of the function that makes a plan."""

    def __call__(
        self, train: Source, test: Source, settings: S_contra, *, preprocessing: Preprocessing, seed: int
    ) -> "Plan":
        """Return the plan for data; raise a DataError for targets of train that cannot be used."""


def heads_work(settings: HeadSettings, shapes: Shapes) -> ImageWork:
    """Return the crops of training and the test images, counted as one window each."""
    crops = float(settings.steps * settings.batch_size)
    if settings.max_epochs is not None:
        crops = min(crops, settings.max_epochs * shapes.train)
    return ImageWork(crops + shapes.test * len(settings.scales), rest="heads, windows and metrics")


def trained_heads(
    name: str, check: Callable[[S, Labels], None], plan: MakePlan[S], *, label_kinds: frozenset[LabelKind]
) -> OnImages[S]:
    """Return the functions of a protocol that trains heads on frozen maps.

    Args:
        name: of the protocol, for messages.
        check: raises a UsageError or DataError for settings or labels that cannot work.
        plan: parts of a run, from train, test, settings, the backbone's preprocessing and the seed of intervals.
        label_kinds: see `OnImages`.
    """

    def rows(
        backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: S, *, seed: int
    ) -> tuple[str, ...]:
        """Refuse what does not go together before any image is decoded; return the rows of results."""
        from sslbench.protocols._parts.dense.run import checked_rows

        return checked_rows(backbone, layers, train, settings, protocol=name, seed=seed)

    def run(  # noqa: PLR0913  the signature of every protocol on images
        backbone: "Backbone",
        layers: "Sequence[Layer]",
        train: Source,
        test: Source,
        settings: S,
        *,
        seed: int,
        engine: "ExtractSettings",
        folder: Path,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> dict[str, Outcome]:
        """Train heads on train, choose one per row on a held-out part of it, score test; see `train_and_score`."""
        from sslbench.protocols._parts.dense.run import train_and_score

        check(settings, train.labels)
        own = plan(train, test, settings, preprocessing=backbone.preprocessing, seed=seed)
        found = train_and_score(
            backbone,
            layers,
            train,
            test,
            own.task,
            settings,
            own.view,
            seed=seed,
            engine=engine,
            folder=folder,
            progress=progress,
        )
        return {name: own.outcome(row) for name, row in found.items()}

    return OnImages(
        check,
        rows,
        run,
        heads_work,
        label_kinds=label_kinds,
        reads_trained_side=lambda settings: settings.enlarge == "trained",
    )
