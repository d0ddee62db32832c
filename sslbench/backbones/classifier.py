"""Classifier on a layer of a backbone: the head that probes and finetuning train and a weights file may hold.

The file has the head's tensors in `heads` and everything else in `metadata.classifier`: the layer, the normalisation,
the attention to its tokens, the kind of the labels and the names of the classes. Files of supervised pretraining number
the layers of their heads (`head.0.weight`).
"""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from sslbench.backbones.attention import Attention
from sslbench.backbones.backbone import Backbone
from sslbench.backbones.layers import Layer, forward_layers, resolve_layers
from sslbench.errors import UsageError, WeightsError
from sslbench.weights import save
from sslbench.weights.fill import fill
from sslbench.weights.formats.schema import HEAD_NAMES
from sslbench.weights.formats.tables import load_table
from sslbench.weights.heads import widths
from sslbench.weights.reading.files import WeightsFile

HeadNorm = Literal["none", "layer", "batch"]


class ClassifierHead(nn.Module):
    """Linear layer, after an optional normalisation of the features: (B, D) -> (B, C).

    With attention, normalised tokens (B, N, D) are pooled first. Its tensors are `head.weight`, `head.bias`, and those
    of `norm` and `pool`.
    """

    def __init__(
        self, features: int, outputs: int, norm: HeadNorm = "none", attention: Attention | None = None
    ) -> None:
        super().__init__()
        norms: dict[str, Callable[[], nn.Module]] = {
            "none": nn.Identity,
            "layer": lambda: nn.LayerNorm(features, eps=1e-6),  # eps as in vision transformers
            "batch": lambda: nn.BatchNorm1d(features),
        }
        self.norm = norms[norm]()
        self.pool = nn.Identity() if attention is None else attention.pool(features)
        self.head = nn.Linear(features, outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Return the scores of features, or of tokens."""
        # BatchNorm takes the channels second.
        by_channel = features.ndim == 3 and isinstance(self.norm, nn.BatchNorm1d)
        normalised = self.norm(features.transpose(1, 2)).transpose(1, 2) if by_channel else self.norm(features)
        scores: Tensor = self.head(self.pool(normalised))
        return scores


def linear_classifier(weight: Tensor, bias: Tensor) -> ClassifierHead:
    """Return the linear classifier of weights (C, D) and biases (C,), in single precision on the CPU."""
    head = ClassifierHead(weight.shape[1], weight.shape[0])
    fill(head, {"head.weight": weight.float(), "head.bias": bias.float()}, what="head")
    return head.eval().requires_grad_(False)


@dataclasses.dataclass(frozen=True)
class ClassifierInfo:
    """Facts about a classifier that its tensors do not show.

    Attributes:
        layer: text of the backbone's layer whose pooled features it takes, such as 'res5avg' or 'blocks.11:mean'.
        labels: kind of the labels: single (scores are logits of a softmax), multi (of sigmoids) or value (numbers).
        attention: structure of the head's attention to tokens; None: it takes pooled features.
    """

    layer: str
    norm: HeadNorm
    labels: Literal["single", "multi", "value"]  # names of targets, as weights files hold them
    classes: tuple[str, ...]
    attention: Attention | None = None


@dataclasses.dataclass(frozen=True)
class Classifier:
    """Trained classifier on a layer of a backbone.

    Attributes:
        head: in evaluation mode, without gradients.
        info: facts that its tensors do not show.
    """

    head: nn.Module
    layer: Layer
    info: ClassifierInfo

    def scores(self, module: nn.Module, images: Tensor) -> Tensor:
        """Return the scores (B, C) of normalised images; `module` is the backbone's."""
        scores: Tensor = self.head(forward_layers(module, images, (self.layer,))[self.layer.text])
        return scores


def classifier_metadata(info: ClassifierInfo) -> str:
    """Return the entry 'classifier' of a file's metadata, as JSON."""
    return json.dumps(dataclasses.asdict(info), ensure_ascii=False)


def find_classifier(file: WeightsFile, backbone: Backbone, classes: Sequence[str] | None = None) -> Classifier:
    """Return the classifier in a file: that of a finetuned network, or the head of a supervised network.

    classes: names of the classes; needed for heads that are not known to be classifiers. None: the file's own names,
        else numbers.
    """
    own = read_classifier(file, backbone)
    if own is not None:
        if classes is not None:
            raise UsageError(f"{file.path} names its classes itself", "Leave --classes out.")
        return own
    head = backbone.heads.get(HEAD_NAMES[0])
    if head is None:
        raise WeightsError(
            f"{file.path} has no classifier",
            "Train one: sslbench eval finetune. Or give a file with the classifier of its training.",
        )
    count = widths(head)[1]
    if classes is None and not _is_classifier(backbone):
        raise WeightsError(
            f"{file.path}: its head of {count:,} outputs may be a projection head, not a classifier",
            "If it is a classifier, name its classes, one per line: --classes FILE, for robustness class_names=FILE.",
        )
    names = tuple(classes) if classes is not None else tuple(map(str, range(count)))
    if len(names) != count:
        raise UsageError(f"{len(names):,} names of classes, but the classifier of {file.path} has {count:,} outputs")
    layer = resolve_layers(backbone, ("output",))[0]
    return Classifier(head, layer, ClassifierInfo(layer.text, "none", "single", names))


def has_classifier(file: WeightsFile, backbone: Backbone) -> bool:
    """Return whether a file has a classifier that is known to be one."""
    return read_classifier(file, backbone) is not None or (HEAD_NAMES[0] in backbone.heads and _is_classifier(backbone))


def _is_classifier(backbone: Backbone) -> bool:
    """Return whether the format of a backbone's file says that its head is a classifier."""
    heads = load_table(backbone.format).file.head_layers if backbone.format else {}
    return HEAD_NAMES[0] in heads and heads[HEAD_NAMES[0]].classifier


def read_classifier(file: WeightsFile, backbone: Backbone) -> Classifier | None:
    """Return the classifier in a file, or None if it has none."""
    info, where = save.entry(file, "classifier", ClassifierInfo), f"{file.path}: metadata.classifier"
    if info is None:
        return None
    with save.of_file():
        (layer,) = resolve_layers(backbone, (info.layer,), tokens=info.attention is not None)
    heads = file.content.get("heads")
    tensors = (
        {str(name).replace("head.0.", "head.", 1): tensor for name, tensor in heads.items()}
        if isinstance(heads, Mapping)
        else {}
    )
    weight = tensors.get("head.weight")
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise WeightsError(f"{file.path} names a classifier but has no matrix heads.head.weight")
    if weight.shape[0] != len(info.classes):
        raise WeightsError(f"{where} names {len(info.classes):,} classes, but the head has {weight.shape[0]:,}")
    # Sizes follow from the tensors; `fill` refuses those that do not fit together.
    if info.attention is not None:
        try:
            with torch.device("meta"):  # no memory is taken for a structure that the tensors do not have
                planned = info.attention.pool(weight.shape[1])
        except UsageError as error:
            raise WeightsError(f"{where}: {error.message}") from error
        if sum(each.numel() for each in planned.parameters()) > sum(map(Tensor.numel, tensors.values())):
            raise WeightsError(f"{where} describes a head of more numbers than {file.path} has in heads")
    head = ClassifierHead(weight.shape[1], weight.shape[0], info.norm, info.attention)
    fill(head, tensors, what=f"{file.path}: heads")
    return Classifier(head.eval().requires_grad_(False), layer, info)
