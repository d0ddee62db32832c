"""Protocols that score the maps of a frozen network and train nothing.

The first process of several does all the work.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from sslbench.arrays import FloatArray
from sslbench.backbones.layer_spec import Facet
from sslbench.backbones.views import OWN_SIZES
from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.preprocessing import Preprocessing
from sslbench.protocols.protocol import Cost, ImageInputs, OnImages, Part, ProtocolSettings, Shapes
from sslbench.results import Outcome
from sslbench.runtime.progress import Progress, StageProgress, stage_progress
from sslbench.solvers.discovery import DiscoveredObject, Ties, lost, token_cut
from sslbench.targets.target import Target

if TYPE_CHECKING:
    from sslbench.backbones.backbone import Backbone
    from sslbench.backbones.dense import DenseEncoder, DenseInput
    from sslbench.backbones.layers import Layer
    from sslbench.features.array import ExtractSettings

S = TypeVar("S")


# Shape of the network's input: that of the image, a square that the image is squashed to, or one with borders.
Shape = Literal["aspect", "square", "pad"]


# Size that is a multiple of the patch: by zeros at the right and lower side, or the nearest one by Lanczos.
Fit = Literal["pad", "resize"]


Method = Literal["tokencut", "lost", "dino_seg"]


Features = Literal["auto", "key", "query", "value", "token"]


@dataclasses.dataclass(frozen=True)
class SearchSettings(ProtocolSettings):
    """Settings of the search for an object; a protocol's `Settings` extends them. See `solvers.discovery`."""

    method: Method = setting("tokencut", "tokencut, lost or dino_seg")
    features: Features = setting(
        "auto", "key, query or value of the layer's attention, or token: its output; auto: keys where there are any"
    )
    longest_side: int = setting(
        0, "larger images are reduced to this longer side; 0: none is", unit="pixels", within="[0, inf)"
    )
    part: Literal["train", "test"] = setting("test", "part of the data that is scored, where it has parts")
    # The defaults of the searches are their authors': k of LOST, threshold and epsilon of TokenCut.
    k: int = setting(
        100,
        "lost: number of patches of lowest degree that the seed is expanded by",
        within="[1, inf)",
        needs="method=lost",
    )
    ties: Ties = setting(
        "first",
        "lost: order of patches of equal degree: first, or torch, the unstable order of the authors' code",
        needs="method=lost",
    )
    threshold: float = setting(
        0.2, "tokencut: cosine above which two patches are joined", within="[-1, 1)", needs="method=tokencut"
    )
    epsilon: float = setting(
        1e-5, "tokencut: weight of all other pairs of patches", within="(0, inf)", needs="method=tokencut"
    )
    weighted: bool = setting(
        False, "tokencut: weigh joined pairs by their cosine instead of 1", needs="method=tokencut"
    )
    # As LOST's code runs DINO-seg; the share is that of DINO's own pictures of attention.
    head: int = setting(
        4, "dino_seg: head of the attention, counted from 0", within="[0, inf)", needs="method=dino_seg"
    )
    mass: float = setting(
        0.6, "dino_seg: share of the attention that the region's patches hold", within="(0, 1]", needs="method=dino_seg"
    )

    def __post_init__(self) -> None:
        """Refuse settings that do not go together."""
        super().__post_init__()
        if self.method == "dino_seg" and self.features != "auto":
            raise UsageError(f"{self.protocol()}: dino_seg takes the attention, so features has no effect on it")

    def in_features(self, features: FloatArray, grid: tuple[int, int]) -> DiscoveredObject:
        """Return the object in features (P, C) of patches, by LOST or TokenCut."""
        if self.method == "lost":
            return lost(features, grid, k=self.k, ties=self.ties)
        how = {"threshold": self.threshold, "epsilon": self.epsilon}
        return token_cut(features, grid, weighted=self.weighted, **how)


@dataclasses.dataclass(frozen=True)
class FacetSettings(ProtocolSettings):
    """Choice among the vectors of a block of a vision transformer; a protocol's `Settings` extends it."""

    facet: Facet = setting("token", "output of the block, or the query, key or value of its attention")


F = TypeVar("F", bound=FacetSettings)


@dataclasses.dataclass(frozen=True)
class MapRun(Generic[S]):
    """Run on the maps of a frozen network; each protocol that trains nothing extends it.

    Attributes:
        name: that of the protocol, for messages.
        takes: kinds of the targets of samples.
        needs: words between the name and "and these samples have ...", for data with other targets.
        advice: data to give instead of those.
        layers: layers of the network.
        encoder: of the maps of all rows.
        engine: device, precision, workers.
        progress: called with what, images done and images in all.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[type[Target], ...]]
    needs: ClassVar[str]
    advice: ClassVar[str | None] = None

    backbone: "Backbone"
    layers: "Sequence[Layer]"
    encoder: "DenseEncoder"
    test: Source
    settings: S
    seed: int
    engine: "ExtractSettings"
    progress: Progress | None

    @classmethod
    def check(cls, settings: S, target: Target) -> None:
        """Refuse settings and targets that cannot work, before any image is decoded."""
        if not isinstance(target, cls.takes):
            raise DataError(f"{cls.name} {cls.needs}, and these samples have {target.title}", cls.advice)

    @classmethod
    def maps(
        cls, backbone: "Backbone", layers: "Sequence[Layer]", settings: S
    ) -> "Mapping[str, tuple[DenseInput, ...]]":
        """Return the row of each result and the maps that it needs; no image is read."""
        raise NotImplementedError

    @classmethod
    def part(cls, settings: S) -> Part:
        """Return the part of the data that is scored."""
        return "test"

    def score(self) -> dict[str, Outcome]:
        """Return the outcome of each row."""
        raise NotImplementedError

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the network."""
        return self.backbone.preprocessing

    @property
    def report(self) -> StageProgress | None:
        """Progress of the only stage."""
        return stage_progress(self.progress, f"{self.backbone.name} on {self.test.name}")

    @classmethod
    def rows(
        cls, backbone: "Backbone", layers: "Sequence[Layer]", train: Source, settings: S, *, seed: int
    ) -> tuple[str, ...]:
        """Return the names of the results, before any image is decoded."""
        return tuple(cls.maps(backbone, layers, settings))

    @classmethod
    def run(cls, inputs: ImageInputs[S]) -> dict[str, Outcome]:
        """Score the test part; train, folder and the other processes are not used."""
        from sslbench.backbones.dense import DenseEncoder
        from sslbench.distributed.collectives import rank

        backbone, settings, engine = inputs.backbone, inputs.settings, inputs.engine
        cls.check(settings, inputs.test.target)
        # One process scores; the images are few, and the others would compute the same.
        if rank() != 0:
            return {}
        maps = {each.name: each for row in cls.maps(backbone, inputs.layers, settings).values() for each in row}
        encoder = DenseEncoder(backbone, tuple(maps.values()), device=engine.device, precision=engine.float_precision())
        return cls(
            backbone, inputs.layers, encoder, inputs.test, settings, inputs.seed, engine, inputs.progress
        ).score()

    @classmethod
    def kind(cls, cost: Callable[[S, Shapes], Cost | str]) -> OnImages[S]:
        """Return the kind of the protocol; see `Kind` for `cost`."""
        return OnImages(
            cls.check, cls.rows, cls.run, cost=cost, takes=cls.takes, trains=False, part=cls.part, view=OWN_SIZES
        )


class LayerRun(MapRun[F]):
    """Run whose rows are the layers, each with its map."""

    @classmethod
    def maps(
        cls, backbone: "Backbone", layers: "Sequence[Layer]", settings: F
    ) -> "Mapping[str, tuple[DenseInput, ...]]":
        """Return a row of results per layer with its map."""
        from sslbench.backbones.dense import layer_inputs

        return {each.name: (each,) for each in layer_inputs(backbone, layers, facet=settings.facet)}
