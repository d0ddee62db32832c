"""Protocols that score the maps of a frozen network and train nothing: their functions on images, from their own parts.

The first process of several does all the work.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from sslbench.backbones.views import OWN_SIZES
from sslbench.data.source import Source
from sslbench.preprocessing import Preprocessing
from sslbench.protocols._parts.map_settings import FacetSettings
from sslbench.protocols.protocol import ImageWork, NotEstimated, OnImages, Part, Shapes, test_part
from sslbench.results import Outcome
from sslbench.runtime.progress import Progress, StageProgress, stage_progress
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.dense import DenseEncoder, DenseInput
    from sslbench.backbones.layers import Layer
    from sslbench.features.settings import ExtractSettings

S = TypeVar("S")
MapsOfRows = Callable[["Backbone", "Sequence[Layer]", S], "Mapping[str, tuple[DenseInput, ...]]"]
"""Function from backbone, layers and settings to the row of each result and the maps that it needs; no image is read.

It raises a UsageError for layers without such a map."""


@dataclasses.dataclass(frozen=True)
class MapRun(Generic[S]):
    """Network and images of a run.

    Attributes:
        backbone: frozen.
        layers: layers of the network.
        encoder: of the maps of all rows.
        test: images.
        settings: of the protocol.
        seed: of the intervals.
        engine: device, precision, workers.
        progress: called with what, images done and images in all.
    """

    backbone: "Backbone"
    layers: "Sequence[Layer]"
    encoder: "DenseEncoder"
    test: Source
    settings: S
    seed: int
    engine: "ExtractSettings"
    progress: Progress | None

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the network."""
        return self.backbone.preprocessing

    @property
    def report(self) -> StageProgress | None:
        """Progress of the only stage."""
        return stage_progress(self.progress, f"{self.backbone.name} on {self.test.name}")


def maps_of_layers(
    backbone: "Backbone", layers: "Sequence[Layer]", settings: FacetSettings
) -> "dict[str, tuple[DenseInput, ...]]":
    """Return a row of results per layer with its map.

    Raises:
        UsageError: a layer has a pool, or the facet is none of its parts.
    """
    from sslbench.backbones.dense import layer_inputs

    return {each.name: (each,) for each in layer_inputs(backbone, layers, facet=settings.facet)}


def without_training(
    check: Callable[[S, Target], None],
    maps: MapsOfRows[S],
    score: Callable[[MapRun[S]], dict[str, Outcome]],
    *,
    takes: tuple[type[Target], ...],
    work: Callable[[S, Shapes], ImageWork] | NotEstimated,
    part: Callable[[S], Part] = test_part,
) -> OnImages[S]:
    """Return the functions of a protocol on maps that trains nothing.

    Args:
        check: raises a UsageError or DataError for settings and labels that cannot work.
        maps: rows of results with their maps.
        score: outcome of each row; it raises a DataError for images that cannot be used.
        takes: see `OnImages`.
        work: see `OnImages`.
        part: see `OnImages`.
    """

    def rows(
        backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: S, *, seed: int
    ) -> tuple[str, ...]:
        """Return the names of the results, before any image is decoded."""
        return tuple(maps(backbone, layers, settings))

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
        progress: Progress | None = None,
    ) -> dict[str, Outcome]:
        """Score the test part; train, folder and the other processes are not used."""
        from sslbench.backbones.dense import DenseEncoder
        from sslbench.distributed.collectives import rank

        check(settings, test.target)
        if rank() != 0:
            return {}
        inputs = {each.name: each for row in maps(backbone, layers, settings).values() for each in row}
        encoder = DenseEncoder(
            backbone, tuple(inputs.values()), device=engine.device, precision=engine.float_precision()
        )
        return score(MapRun(backbone, layers, encoder, test, settings, seed, engine, progress))

    return OnImages(check, rows, run, work, takes=takes, trains=False, part=part, view=OWN_SIZES)
