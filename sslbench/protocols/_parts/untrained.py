"""Protocols that score the maps of a frozen network and train nothing.

The first process of several does all the work.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

import numpy as np

from sslbench.arrays import FloatArray
from sslbench.backbones.layer_spec import Facet
from sslbench.backbones.views import OWN_SIZES
from sslbench.config import setting
from sslbench.data.source import Source
from sslbench.distributed import this_process
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

# Beginning of the names of maps of pixels.
PIXELS = "pixels"

# Shape of the network's input: that of the image, a square that the image is squashed to, or one with borders.
Shape = Literal["aspect", "square", "pad"]

# Size that is a multiple of the patch: by zeros at the right and lower side, or the nearest one by Lanczos.
Fit = Literal["pad", "resize"]

Method = Literal["tokencut", "lost", "dino_seg"]

Features = Literal["auto", "key", "query", "value", "token"]


@dataclasses.dataclass(frozen=True)
class Fitted:
    """Place of an image in the network's input; heights before widths.

    Attributes:
        original: size of the upright image in pixels.
        size: size of the resized image.
        offset: its upper left corner in the input.
        canvas: size of the input.
    """

    original: tuple[int, int]
    size: tuple[int, int]
    offset: tuple[int, int]
    canvas: tuple[int, int]

    def to_cells(self, points: FloatArray, grid: tuple[int, int]) -> FloatArray:
        """Return points (K, 2) in pixels of the image as positions on the grid of a map; see `from_cells`.

        `points`: x, y; (0, 0) is the centre of the first pixel.
        """
        # Sizes are scaled from edge to edge, and the centre of the first pixel lies half a pixel from the edge.
        place = (points + 0.5) * _xy(self.size) / _xy(self.original) + _xy(self.offset)
        return np.asarray(place * _xy(grid) / _xy(self.canvas) - 0.5)

    def from_cells(self, positions: FloatArray, grid: tuple[int, int]) -> FloatArray:
        """Return positions (K, 2) on the grid of a map, columns and rows, as pixels of the image.

        >>> place = Fitted((200, 100), (448, 224), (0, 0), (448, 224))
        >>> place.from_cells(np.array([[0.0, 0.0]]), (28, 14)).round(2).tolist()  # the centre of the first cell
        [[3.07, 3.07]]
        """
        place = (positions + 0.5) * _xy(self.canvas) / _xy(grid) - _xy(self.offset)
        return np.asarray(place * _xy(self.original) / _xy(self.size) - 0.5)

    def centres(self, grid: tuple[int, int]) -> FloatArray:
        """Return the centres (h * w, 2) of the cells in pixels of the image, row by row."""
        rows, columns = np.mgrid[: grid[0], : grid[1]]
        return self.from_cells(np.column_stack([columns.ravel(), rows.ravel()]).astype(np.float64), grid)


def _xy(size: tuple[int, int]) -> FloatArray:
    return np.array(size[::-1], dtype=np.float64)


def fit(original: tuple[int, int], size: int, shape: Shape, multiple: int) -> Fitted:
    """Return the place of an image in an input whose sides are multiples of a patch.

    `size`: longer side of the input in pixels; rounded to the nearest multiple.

    >>> fit((300, 400), 448, "aspect", 14).canvas, fit((300, 400), 448, "pad", 14).offset
    ((336, 448), (56, 0))
    """
    side = max(multiple, round(size / multiple) * multiple)
    if shape == "square":
        return Fitted(original, (side, side), (0, 0), (side, side))
    scale = side / max(original)
    if shape == "aspect":
        height, width = (max(multiple, round(length * scale / multiple) * multiple) for length in original)
        return Fitted(original, (height, width), (0, 0), (height, width))
    inner = max(1, round(original[0] * scale)), max(1, round(original[1] * scale))
    offset = (side - inner[0]) // 2, (side - inner[1]) // 2
    return Fitted(original, inner, offset, (side, side))


def pixel_floors(grids: Mapping[str, tuple[int, int]]) -> dict[str, str]:
    """Return the name of an input -> that of the map of pixels on its grid."""
    first: dict[tuple[int, int], str] = {}
    return {name: f"{PIXELS} {first.setdefault(grid, name)}" for name, grid in grids.items()}


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
        return token_cut(features, grid, weighted=self.weighted, threshold=self.threshold, epsilon=self.epsilon)


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
        joins: it takes joined layers, `concat(A,B)`.
        layers: layers of the network.
        encoder: of the maps of all rows.
        train: images to learn from, where `part` is None.
        test: images that are scored.
        engine: device, precision, workers.
        progress: called with what, images done and images in all.
    """

    name: ClassVar[str]
    takes: ClassVar[tuple[type[Target], ...]]
    needs: ClassVar[str]
    advice: ClassVar[str | None] = None
    joins: ClassVar[bool] = False

    backbone: "Backbone"
    layers: "Sequence[Layer]"
    encoder: "DenseEncoder"
    train: Source
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
        """Return the row of each result and the maps that it needs, of each part of a layer; no image is read."""
        from sslbench.backbones.dense import layer_inputs

        facet = cls.facet(settings)
        at = "" if facet == "token" else f"@{facet}"
        return {f"{layer.text}{at}": layer_inputs(backbone, layer.parts or (layer,), facet=facet) for layer in layers}

    @classmethod
    def facet(cls, settings: S) -> Facet:
        """Return the part of the tokens that the maps are of."""
        return "token"

    @classmethod
    def part(cls, settings: S) -> Part | None:
        """Return the part of the data that is used; None: both."""
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
        """Score the test part; folder and the other processes are not used."""
        from sslbench.backbones.dense import DenseEncoder

        backbone, settings, engine = inputs.backbone, inputs.settings, inputs.engine
        cls.check(settings, inputs.test.target)
        # One process scores; the images are few, and the others would compute the same.
        if this_process().rank != 0:
            return {}
        maps = {each.name: each for row in cls.maps(backbone, inputs.layers, settings).values() for each in row}
        encoder = DenseEncoder(backbone, tuple(maps.values()), device=engine.device, precision=engine.float_precision())
        parts = inputs.train, inputs.test
        return cls(backbone, inputs.layers, encoder, *parts, settings, inputs.seed, engine, inputs.progress).score()

    @classmethod
    def kind(cls, cost: Callable[[S, Shapes], Cost | str]) -> OnImages[S]:
        """Return the kind of the protocol; see `Kind` for `cost`."""
        return OnImages(
            cls.check,
            cls.rows,
            cls.run,
            cost=cost,
            takes=cls.takes,
            trains=False,
            joins=cls.joins,
            part=cls.part,
            view=OWN_SIZES,
        )


class LayerRun(MapRun[F]):
    """Run whose settings choose a facet of the layers."""

    @classmethod
    def facet(cls, settings: F) -> Facet:
        """Return the chosen part of the tokens."""
        return settings.facet
