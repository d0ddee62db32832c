"""Trained heads of dense tasks in files beside their records, and their predictions on other images."""

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sslbench import names, protocols
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.dense import DenseEncoder
from sslbench.backbones.layers import Layer, resolve_layers
from sslbench.config import build, result_settings
from sslbench.data.loading.joint import PixelTarget
from sslbench.data.source import Source
from sslbench.errors import WeightsError
from sslbench.features.array import ExtractSettings
from sslbench.preprocessing import LARGEST_SIDE, Preprocessing
from sslbench.protocols._parts.dense.heads import DenseHead, MapEncoder, Sizes, head_inputs
from sslbench.protocols._parts.dense.scoring import Inference, Scoring
from sslbench.protocols._parts.dense.task import DenseTask, HeadSettings
from sslbench.protocols.protocol import Kind
from sslbench.results import NetworkWeights
from sslbench.runtime.progress import Progress
from sslbench.runtime.seeds import seeded
from sslbench.solvers.dense import resized
from sslbench.weights.fill import fill
from sslbench.weights.reading.files import WeightsFile
from sslbench.weights.save import entry, of_file

_ENTRY = "dense"


@dataclasses.dataclass(frozen=True)
class HeadInfo:
    """Facts about a head that its tensors do not show.

    Attributes:
        layers: text of the layers that were evaluated together.
        row: row of the results, which names the head's input among those of the layers.
        sizes: of images.
        settings: of the protocol, but for the optimizer, which has no effect any more and may be Python code.
        task: facts of the task, such as the names of the classes, see `DenseTask.stored`.
    """

    layers: tuple[str, ...]
    row: str
    sizes: Sizes
    settings: dict[str, Any]
    task: dict[str, Any]


def as_weights(head: DenseHead, scoring: Scoring, layers: Sequence[Layer]) -> NetworkWeights:
    """Return a head for its file; `layers`: those that were evaluated together."""
    task = scoring.task
    settings = {name: value for name, value in result_settings(task.settings).items() if name != "optimizer"}
    facts = {name: getattr(task, name) for name in task.stored}
    evaluated = tuple(layer.text for layer in layers)
    info = HeadInfo(evaluated, head.input.row, scoring.inference.sizes, settings, facts)
    text = json.dumps(dataclasses.asdict(info), ensure_ascii=False)
    tensors = {name: value.cpu() for name, value in head.state_dict().items()}  # free on the device before the next run
    return NetworkWeights(tensors, {}, metadata={_ENTRY: text})


def is_dense(probe: WeightsFile) -> bool:
    """Return whether the file of a probe holds a head that predicts maps."""
    return _ENTRY in probe.content["metadata"]


@dataclasses.dataclass(frozen=True)
class SavedHead:
    """Head in a file of a probe.

    Attributes:
        protocol: name of the protocol that trained it.
        settings: of the protocol.
        make: see `Kind.restored`.
    """

    file: WeightsFile
    protocol: str
    settings: HeadSettings
    info: HeadInfo
    make: Callable[[HeadSettings, Mapping[str, Any], Preprocessing], DenseTask[Any]]

    @classmethod
    def of(cls, probe: WeightsFile) -> Self:
        """Return the head in a file, see `is_dense`."""
        name, info = probe.content["metadata"].get("method"), entry(probe, _ENTRY, HeadInfo)
        if name not in names.modules("protocol"):  # a file never chooses the code that runs
            raise WeightsError(
                f"{probe.path} was trained by '{name}', which is neither built in nor installed",
                names.plugin_remedy(str(name))
                or "Install the protocol as a plug-in: an entry point of sslbench.protocol.",
            )
        definition = protocols.find(name)
        if definition.kind.restored is None or info is None:
            raise WeightsError(f"{probe.path} is damaged: {name} trains no heads for maps")
        with of_file(f"{probe.path}: metadata.{_ENTRY}"):
            used = {key: value for key, value in info.settings.items() if key != "optimizer"}
            settings: HeadSettings = build(definition.settings, used, "settings")
        sizes, scales = info.sizes, (1.0, *settings.scales)
        window, short = sizes.window or sizes.stride, sizes.crop if sizes.short_side is None else (sizes.short_side,)
        sides = (*sizes.crop, *window, *sizes.stride, *short)
        if min(sides) < 1 or min(scales) * min(short) < 1 or max(scales) * max(sides) > LARGEST_SIDE:
            raise WeightsError(f"{probe.path}: sizes should be from 1 to {LARGEST_SIDE:,} pixels at all scales")
        if any(step > side for step, side in zip(sizes.stride, window, strict=True)):
            raise WeightsError(
                f"{probe.path}: stride={list(sizes.stride)} leaves gaps between windows of {list(window)}"
            )
        return cls(probe, name, settings, info, definition.kind.restored)

    @property
    def kind(self) -> Kind[Any]:
        """Kind of the protocol."""
        return protocols.find(self.protocol).kind

    def on(self, backbone: Backbone, engine: ExtractSettings, progress: Progress | None = None) -> "TrainedHead":
        """Return the head on the backbone that it was trained on, which has the preprocessing of the file."""
        info, settings = self.info, self.settings
        with of_file(f"{self.file.path}: metadata.{_ENTRY}"):
            try:
                task = self.make(settings, info.task, backbone.preprocessing)
            except TypeError as error:
                raise WeightsError(f"task is incomplete: {error}") from error
            layers = resolve_layers(backbone, info.layers)
            inputs, maps = head_inputs(backbone, layers, settings, protocol=self.protocol)
            input = next((each for each in inputs if each.row == info.row), None)
            if input is None:
                raise WeightsError(f"the layers {', '.join(info.layers)} give no row '{info.row}'")
        used = [each for each in maps if each.name in input.parts]
        encoder = DenseEncoder(backbone, used, device=engine.device, precision=engine.float_precision())
        encode = MapEncoder(encoder, backbone.preprocessing.channels, pixels=False)
        head = _filled(self.file, lambda: DenseHead(0, input, settings.lr[0], encode, task.outputs, settings))
        # The record's batch, but a file never takes more memory than was asked for.
        batch = min(settings.batch_size, engine.batch_size)
        inference = Inference(info.sizes, settings.scales, settings.flip_test, batch)
        scoring = Scoring(backbone, encode, task, inference, engine, progress)
        return TrainedHead(self, head.to(engine.device), scoring)


@dataclasses.dataclass(frozen=True)
class TrainedHead:
    """Head of a file, on the backbone that it was trained on."""

    saved: SavedHead
    head: DenseHead
    scoring: Scoring

    @torch.inference_mode()
    def predictions(self, source: Source) -> Iterator[tuple[int, npt.NDArray[Any], str]]:
        """Yield the position of every image, its map (H, W, ...) and why there is none; '' where there is one."""
        for whole, outputs in self.scoring.every([self.head], source, _only_size):
            if whole.unreadable:
                yield whole.index, np.empty(0), whole.unreadable[0][2]
            else:
                yield whole.index, self.scoring.task.predicted(next(outputs), whole.target), ""


class ExportedHead(nn.Module):
    """Backbone and head as one network for images of one size: (B, C, H, W), normalised -> (B, K, H, W).

    The outputs are logits, depths, vectors or probabilities of one window, without averages over scales and flips.

    Attributes:
        size: height and width of the images: those of a window or, without one, of a crop in training.
    """

    def __init__(self, trained: TrainedHead) -> None:
        super().__init__()
        sizes, self.task = trained.saved.info.sizes, trained.scoring.task
        self.size = sizes.window or sizes.crop
        self.encoder, self.head = trained.scoring.encode.encoder, trained.head
        self.network = self.encoder.for_size(self.size)

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs at the size of the images."""
        return resized(self.task.activated(self.head(self.encoder.maps(self.network, images))), self.size)


def _filled(probe: WeightsFile, make: Callable[[], DenseHead]) -> DenseHead:
    """Return a head with the tensors of a file, in evaluation mode and without gradients."""
    heads = probe.content.get("heads")
    tensors = {str(name): each for name, each in heads.items()} if isinstance(heads, Mapping) else {}
    held = sum(each.numel() for each in tensors.values() if isinstance(each, Tensor))
    try:
        with torch.device("meta"):  # no memory is taken for a structure that the tensors do not have
            planned = sum(each.numel() for each in make().parameters())
    except RuntimeError:  # more numbers than can be counted
        planned = held + 1
    if planned > held:
        raise WeightsError(f"{probe.path} describes a head of more numbers than it has in heads")
    with seeded(0):  # new layers draw their first weights
        head = make()
    try:
        fill(head, tensors, what=f"{probe.path}: heads")
    except WeightsError as error:
        raise WeightsError(f"{probe.path}: its tensors in heads are not those of the head that it describes") from error
    return head.eval().requires_grad_(False)


def _only_size(source: Source, index: int, size: tuple[int, int]) -> PixelTarget:
    """Return a target without values at the size of an image."""
    return np.empty((0, *size), dtype=np.float32)
