"""Images with the features of their patches, and the attention of their class tokens."""

import dataclasses
import logging
from collections.abc import Sequence

import numpy as np
from PIL import Image
from torch import Tensor

from sslbench.arrays import Matrix
from sslbench.backbones.backbone import Backbone, copied
from sslbench.backbones.dense import DenseEncoder, DenseInput, layer_inputs
from sslbench.backbones.layers import Layer
from sslbench.data.decode.handlers import picture_decoder
from sslbench.data.decode.transforms import normalise
from sslbench.data.loading import loader
from sslbench.data.source import Source
from sslbench.errors import BackboneError, DataError, UsageError
from sslbench.evaluation.preparation import extract_settings
from sslbench.evaluation.settings import RunSettings
from sslbench.features.job import check_first
from sslbench.runtime.progress import StageProgress
from sslbench.show.pictures import picture_of

_WEIGHTS = "attn.attn_drop"  # gets the weights of all heads, in networks of timm and of DINO
log = logging.getLogger("sslbench")
_TOGETHER = 4
"""Images per forward pass; the weights of the attention of one with 3,600 patches and 12 heads take 620 MB."""


def has_attention(backbone: Backbone) -> bool:
    """Return whether a backbone has a class token whose attention can be shown."""
    return bool(_attention_blocks(backbone)) and _has_class_token(backbone)


def attention_blocks(backbone: Backbone, layers: Sequence[Layer]) -> tuple[str, ...]:
    """Return the blocks that layers belong to, 'blocks.11'; the last block for those outside."""
    blocks = _attention_blocks(backbone)
    if not blocks or not _has_class_token(backbone):
        reason = "has no class token" if blocks else "is no vision transformer with modules blocks.0.attn, ..."
        raise BackboneError(f"{backbone.name} {reason}, so there is no attention to show", "Leave out attention.")
    paths = [part.path for layer in layers for part in layer.parts or (layer,)]
    named = [next((b for b in blocks if path == b or path.startswith(f"{b}.")), blocks[-1]) for path in paths]
    return tuple(block for block in blocks if block in named)


# The weights softmax(q k / sqrt(d)) of the class token's row are those of the network's own computation, with norms of
# queries and keys and rotary positions where it has them. The fused kernel does not give them, so that a copy computes
# them.
def unfused(backbone: Backbone) -> Backbone:
    """Return a copy of a backbone that computes the weights of its attention one after the other."""
    module = copied(backbone.module)
    for part in module.modules():
        if "fused_attn" in vars(part):
            part.fused_attn = False  # type: ignore[assignment]
    return dataclasses.replace(backbone, module=module)


def attention_input(block: str) -> DenseInput:
    """Return the weights of a block of an `unfused` network, (B, heads, N, N), as an input of a `DenseEncoder`."""
    path = f"{block}.{_WEIGHTS}"
    return DenseInput(f"attention {block}", (Layer(path, path),))


def of_class_token(weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the class token's attention to the patches, (B, heads, h, w); the rest of its sum of 1 is on other tokens.

    `weights`: (B, heads, N, N); the class token is the first, the patches are the last h * w.
    """
    cells = size[0] * size[1]
    if weights.shape[-1] <= cells:
        raise BackboneError(
            f"the attention is of {weights.shape[-1]} tokens, which are not {cells} patches and a class"
        )
    return weights[:, :, 0, -cells:].reshape(*weights.shape[:2], *size)


def _attention_blocks(backbone: Backbone) -> list[str]:
    """Return the paths of the blocks with weights of attention, in their order."""
    found = [path for path, _ in backbone.module.named_modules() if path.endswith(f".{_WEIGHTS}")]
    return [path.removesuffix(f".{_WEIGHTS}") for path in found]


def _has_class_token(backbone: Backbone) -> bool:
    return any(name.rpartition(".")[2] == "cls_token" for name, _ in backbone.module.named_parameters())


@dataclasses.dataclass(frozen=True)
class EncodedImage:
    """Image as a backbone saw it, with its features.

    Attributes:
        picture: resized, and cut to whole patches.
        resized: height and width before the cut; the cut is central.
        maps: layer -> (h, w, C).
        attention: block -> (heads, h, w), the class token's attention to the patches.
    """

    id: str
    row: int
    picture: Image.Image
    resized: tuple[int, int]
    maps: dict[str, Matrix]
    attention: dict[str, Matrix]

    def cell(self, layer: str, point: tuple[float, float], full: tuple[int, int]) -> tuple[int, int]:
        """Return the row and column of the patch at a point."""
        x, y = point
        height, width = full
        if not (0 <= x < width and 0 <= y < height):
            raise UsageError(
                f"--point {self.id}:{x:g},{y:g} is outside the image, which is {width} x {height} pixels",
                "Give X,Y in pixels of the image, from the top left: 0,0.",
            )
        found = []
        for place, size, resized, cut in (
            (y, height, self.resized[0], self.picture.height),
            (x, width, self.resized[1], self.picture.width),
        ):
            inside = (place + 0.5) * resized / size - (resized - cut) // 2
            found.append(min(max(inside / cut, 0.0), 1.0))
        h, w, _ = self.maps[layer].shape
        return min(int(found[0] * h), h - 1), min(int(found[1] * w), w - 1)


def encode_images(
    backbone: Backbone,
    source: Source,
    layers: Sequence[Layer],
    blocks: Sequence[str],
    run: RunSettings,
    progress: StageProgress | None = None,
) -> list[EncodedImage]:
    """Return the images of a source with the maps of layers and the attention of blocks, from one pass."""
    settings = extract_settings(run)
    inputs = [*layer_inputs(backbone, layers), *(attention_input(block) for block in blocks)]
    encoder = DenseEncoder(
        unfused(backbone) if blocks else backbone, inputs, device=settings.device, precision=settings.float_precision()
    )
    found: list[EncodedImage] = []
    unreadable: list[loader.Unreadable] = []
    for batch in loader.batches(
        source,
        np.arange(len(source)),
        backbone.preprocessing,
        batch_size=_TOGETHER,
        workers=min(settings.workers, 4),
        start_method=settings.start_method,
        mixed_sizes=True,
    ):
        if not found:
            check_first(batch, backbone)
        unreadable += batch.unreadable
        if len(batch.indices):
            found += _encoded(batch, source, encoder, backbone, layers, blocks)
        if progress is not None:
            progress(len(found) + len(unreadable), len(source))
    _report(source, unreadable, run.on_error)
    return sorted(found, key=lambda image: image.row)


def _encoded(
    batch: loader.PictureBatch,
    source: Source,
    encoder: DenseEncoder,
    backbone: Backbone,
    layers: Sequence[Layer],
    blocks: Sequence[str],
) -> list[EncodedImage]:
    resized = (int(batch.images.shape[2]), int(batch.images.shape[3]))
    height, width = (side // encoder.multiple * encoder.multiple for side in resized)
    if not height or not width:
        raise DataError(
            f"{source.images.path(int(batch.indices[0]))} is {resized[1]} x {resized[0]} pixels after the resize, "
            f"smaller than a patch of {encoder.multiple}",
            "Give a larger --resize.",
        )
    top, left = (resized[0] - height) // 2, (resized[1] - width) // 2
    images = batch.images[:, :, top : top + height, left : left + width]
    maps = encoder(normalise(images.to(encoder.device), backbone.preprocessing))
    grid = (height // encoder.multiple, width // encoder.multiple)
    attention = {block: of_class_token(maps[attention_input(block).name], grid).cpu().numpy() for block in blocks}
    features = {layer.text: maps[layer.text].permute(0, 2, 3, 1).cpu().numpy() for layer in layers}
    return [
        EncodedImage(
            source.ids[row],
            row,
            picture_of(images[i]),
            resized,
            {name: each[i] for name, each in features.items()},
            {block: each[i] for block, each in attention.items()},
        )
        for i, row in enumerate(batch.indices.tolist())
    ]


def _report(source: Source, unreadable: Sequence[loader.Unreadable], on_error: str) -> None:
    """Refuse images that cannot be read, or warn that they are left out."""
    if not unreadable:
        return
    listed = "\n".join(f"{path}: {reason}" for _, path, reason in unreadable)
    if on_error == "stop" or len(unreadable) == len(source):
        raise DataError(
            f"{len(unreadable)} of {len(source)} images cannot be read:\n{listed}", "--on-error skip leaves them out."
        )
    log.warning(f"{len(unreadable)} of {len(source)} images cannot be read and are left out:\n{listed}")


def full_size(source: Source, row: int, backbone: Backbone) -> tuple[int, int]:
    """Return the height and width of an image in its file."""
    decoded = loader.read(source.images, row, picture_decoder(backbone.preprocessing, source.images))
    return decoded.full or (int(decoded.image.shape[1]), int(decoded.image.shape[2]))
