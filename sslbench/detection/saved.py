"""Files of trained detectors, and the description of the detector in a file or a checkpoint.

The file is a weights file of sslbench: its `state_dict` is the trained backbone under canonical names, which every
other command reads; `detector` holds the other tensors, and the metadata the provenance.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sslbench.backbones.backbone import Backbone
from sslbench.backbones.build import build, check_recorded, check_size, laid_out
from sslbench.backbones.load import check_recorded_preprocessing
from sslbench.config import build as build_dataclass
from sslbench.detection.models.build import build_detector
from sslbench.detection.models.detector import Detector
from sslbench.detection.models.names import canonical_name, place
from sslbench.detection.recipe import ON_TRANSFORMERS, ONE_STAGE, DetectionRecipe, changed_network, what_is_trained
from sslbench.errors import UsageError, WeightsError
from sslbench.preprocessing import Preprocessing
from sslbench.results import canonical
from sslbench.train import checkpoints
from sslbench.weights import save
from sslbench.weights.fill import fill
from sslbench.weights.formats.places import tensors_at
from sslbench.weights.formats.tables import load_table
from sslbench.weights.reading import files

SUFFIX = ".detector.torch"
"""Suffix of the exported detector beside a record."""
_KEY = "detector"
_VIT = "backbone.net."
_STEM = "conv1.weight"
_MOST_LAYERS = 100  # of a head
_ANCHORS = 8  # first version with today's anchors of RetinaNet and places of FCOS


@dataclasses.dataclass(frozen=True)
class DetectorDescription:
    """Description of a trained detector.

    Attributes:
        recipe: resolved.
        classes: class names, in the detector's order.
        backbone: name that `backbones.build` takes.
        preprocessing: of the backbone before it was trained further; mean and std are the detector's unless the recipe
            has its own.
        weights: initial weights of the backbone.
        data: training data.
        benchmark: benchmark of the recipe; '' for none.
        measurement: id of the record.
        keypoints: names of the keypoints, in the detector's order.
        version: version of the protocol; 0: before 8, the first that is written.
    """

    recipe: DetectionRecipe
    classes: tuple[str, ...]
    backbone: str
    preprocessing: Preprocessing
    weights: str
    data: str
    benchmark: str
    measurement: str
    keypoints: tuple[str, ...] = ()
    version: int = 0

    def text(self) -> str:
        """Return the description as JSON, since the reader of weights files keeps text but no lists."""
        return canonical(self)


def save_detector(path: Path, state: Mapping[str, Tensor], about: DetectorDescription, *, command: str) -> Path:
    """Write the file atomically, replacing an existing one.

    Args:
        path: path of the file.
        state: state of the trained detector.
        about: description of the detector.
        command: command that trained it.

    Raises:
        UsageError: the file cannot be written.
    """
    backbone, others = _divided(state, about.recipe)
    preprocessing = about.preprocessing
    if about.recipe.pixel_mean:
        step = -1 if about.recipe.channel_order == "BGR" else 1
        mean, std = about.recipe.pixel_mean[::step], about.recipe.pixel_std[::step]
        preprocessing = dataclasses.replace(preprocessing, mean=mean, std=std, origin="recipe of a detector")
    metadata = {
        "network": "backbone of a trained detector",
        "preprocessing": json.dumps(preprocessing.record()),
        "detector": about.text(),
        "command": command,
    }
    content = save.own_content(backbone, backbone=about.backbone, metadata=metadata)
    content[_KEY] = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in others.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    with save.new_file(path) as temporary:
        save.write_torch(temporary, content)
    return path


def _divided(state: Mapping[str, Tensor], recipe: DetectionRecipe) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a state into the backbone under canonical names, for RGB images, and the rest.

    A backbone with moved strides or windows is another network than that of its name, and stays in the rest.
    """
    backbone, others = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in state.items():
        own = None if changed_network(recipe) else _canonical(name, recipe)
        if own is None:
            others[name] = tensor
        else:
            flipped = own == _STEM and recipe.channel_order == "BGR"
            backbone[own] = tensor.flip(1) if flipped else tensor
    return (backbone, others) if backbone else (others, {})


def _joined(content: Mapping[str, Any], recipe: DetectionRecipe) -> dict[str, Tensor]:
    """Return the detector's state from a file; the inverse of `_divided`."""
    backbone: dict[str, Tensor] = content["state_dict"]
    if changed_network(recipe):
        return dict(backbone)
    state = dict(content[_KEY])
    for name, tensor in backbone.items():
        flipped = name == _STEM and recipe.channel_order == "BGR"
        vit = recipe.architecture in ON_TRANSFORMERS
        state[_VIT + name if vit else place(name, pyramid=recipe.architecture != "c4")] = (
            tensor.flip(1) if flipped else tensor
        )
    return state


def _canonical(name: str, recipe: DetectionRecipe) -> str | None:
    if recipe.architecture in ON_TRANSFORMERS:
        return name.removeprefix(_VIT) if name.startswith(_VIT) else None
    return canonical_name(name, pyramid=recipe.architecture != "c4")


def read_detector(path: Path, device: str | torch.device = "cpu") -> tuple[Detector, DetectorDescription]:
    """Load the detector of a file, in evaluation mode, with its description.

    Raises:
        WeightsError: the file cannot be read, does not hold a detector, or contradicts its own description.
        UsageError: its backbone cannot be built here.
    """
    file = files.read(path)
    about = about_of(file)
    if about is None or file.content.get("format") != save.FORMAT:
        what = "is a training checkpoint" if about is not None else "does not hold a detector"
        raise WeightsError(
            f"{path} {what}", f"sslbench eval detection writes detectors as NAME{SUFFIX} beside its record."
        )
    numbers = sum(tensor.numel() for key in ("state_dict", _KEY) for tensor in tensors_at(file.content, key).values())
    check_recorded(about.backbone, f"{path}: detector.backbone", numbers=numbers)
    recipe, classes = about.recipe, len(about.classes)
    if recipe.architecture in ONE_STAGE and about.version < _ANCHORS:
        raise WeightsError(
            f"{path}: the anchors of {recipe.architecture} have changed since it was trained",
            "Train it again; the backbone in it is a weights file as before.",
        )
    convs = recipe.rpn_convs, recipe.box_convs, recipe.box_fcs, recipe.mask_convs, recipe.keypoint_convs
    layers = *convs, recipe.encoder_layers, recipe.decoder_layers
    if max(number or 0 for number in layers) > _MOST_LAYERS:
        raise WeightsError(f"{path}: its recipe has a head of more than {_MOST_LAYERS} layers")
    with laid_out():
        skeleton = build_detector(build(about.backbone), recipe, classes, keypoints=len(about.keypoints), device="meta")
    check_size(skeleton, f"{path}: its detector", numbers=numbers)
    backbone = dataclasses.replace(build(about.backbone), preprocessing=about.preprocessing)
    detector = build_detector(backbone, about.recipe, len(about.classes), keypoints=len(about.keypoints), device=device)
    fill(detector, _joined(file.content, about.recipe), what=str(path))
    return detector.eval(), about


def about_of(file: files.WeightsFile) -> DetectorDescription | None:
    """Return the description in an exported detector or a checkpoint of its training; None for other files.

    Raises:
        WeightsError: the description is of an unknown version.
    """
    content, given = file.content, None
    metadata = content.get("metadata")
    if content.get("format") == save.FORMAT and _KEY in content and isinstance(metadata, Mapping):
        given = metadata.get(_KEY)
    elif content.get("format") == checkpoints.FORMAT:
        given = content.get("about")
    if not isinstance(given, str) or not given:
        return None
    try:
        about = build_dataclass(DetectorDescription, json.loads(given), f"{file.path}: detector")
    except (UsageError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(str(error), "It may have been written by another version of sslbench.") from error
    where = f"{file.path}: detector.preprocessing"
    return dataclasses.replace(about, preprocessing=check_recorded_preprocessing(about.preprocessing, where))


_TITLES = {
    "retinanet": "RetinaNet",
    "fcos": "FCOS",
    "deformable_detr": "Deformable DETR",
    "vit_deformable_detr": "Deformable DETR on a simple feature pyramid",
}


def rows(file: files.WeightsFile, about: DetectorDescription) -> list[tuple[str, str]]:
    """Return a description for the user, as pairs of label and value."""
    recipe, content = about.recipe, file.content
    done = int(content.get("step", recipe.iterations))
    heads = [name for name, there in (("Mask", recipe.masks), ("Keypoint", recipe.keypoints)) if there]
    family = _TITLES.get(recipe.architecture)
    family = family or f"{' and '.join(heads) or 'Faster'} R-CNN, {recipe.architecture}"
    kind = f"{family}, on {about.backbone}"
    frozen = f"backbone frozen; trained: {what_is_trained(recipe)}" if recipe.freeze_at == 5 else ""
    stages = "nothing frozen" if not recipe.freeze_at else f"freeze_at={recipe.freeze_at}"
    mean = ", ".join(f"{value:g}" for value in recipe.pixel_mean or about.preprocessing.mean)
    short = f"{recipe.min_size_test} (longer side at most {recipe.max_size_test}) px"
    checkpoint = content.get("format") == checkpoints.FORMAT
    rest = "" if done == recipe.iterations else "; not finished: the same command continues"
    return [
        ("what", f"checkpoint of a detector's training{rest}" if checkpoint else "trained detector"),
        ("detector", kind),
        ("classes", f"{len(about.classes)}: {', '.join(about.classes)}"),
        *([("keypoints", f"{len(about.keypoints)}: {', '.join(about.keypoints)}")] if about.keypoints else []),
        ("trained", f"{done} of {recipe.iterations} iterations of {recipe.batch_size} images, on {about.data}"),
        ("started from", about.weights),
        ("recipe", f"{about.benchmark or 'of its own'}; norm={recipe.norm}, {frozen or stages}, lr={recipe.lr:g}"),
        ("images", f"{recipe.channel_order}, mean {mean}; shorter side {short} in evaluation"),
        ("record", about.measurement),
    ]


# Files of these formats may hold a network for BGR with its strides in the 1x1 convolutions (MSRA's ResNets).
_EITHER = ("torchvision", "plain", "module", "timm", "detectron2", "detectron2_c4", "mmpretrain")
_STRIDES = (*_EITHER, "caffe2_resnet", "caffe2_resnet_jigsaw", "detectron2_caffe2")
_DETECTRON2 = ("detectron2", "detectron2_c4")


def check_weights(backbone: Backbone, recipe: DetectionRecipe, weights: str) -> None:
    """Raise if the weights were trained with another channel order or place of the strides.

    Args:
        backbone: loaded backbone.
        recipe: its channel_order and stride_in_1x1 are checked.
        weights: weights as given by the user.

    Raises:
        UsageError: they contradict the known origin of the weights.
    """
    format = backbone.format
    if format is None:  # untrained weights work with any order
        return
    said = _said_by_file(weights) if format in _DETECTRON2 else None
    if recipe.channel_order == "BGR" and format not in _EITHER:
        turned = ", whose first convolution is converted from BGR on loading" if _turns(format) else ""
        raise UsageError(
            f"channel_order=BGR, but weights of format {format} take RGB{turned} ({weights})", "Give channel_order=RGB."
        )
    if said is not None and said != recipe.channel_order:
        raise UsageError(
            f"channel_order={recipe.channel_order}, but the pixel_mean in {weights} is in the order {said}",
            f"Give channel_order={said}, and the pixel_mean and pixel_std of the file.",
        )
    if recipe.stride_in_1x1 and format not in _STRIDES:
        raise UsageError(
            f"stride_in_1x1=true is for MSRA's weights, but {weights} is of format {format}, with "
            "strides in the 3x3 convolutions",
            "Give stride_in_1x1=false.",
        )


def _turns(format: str) -> bool:
    return any("flip_channels" in rule.operations for rule in load_table(format).rules)


def _said_by_file(weights: str) -> str | None:
    """Return the channel order of a Detectron2 file from its means: those of ImageNet fall from red to blue."""
    content = files.read(Path(weights)).content
    mean = content.get("model", content).get("pixel_mean")
    if not isinstance(mean, Tensor) or mean.numel() != 3:
        return None
    first, _, last = mean.flatten().tolist()
    return None if first == last else "RGB" if first > last else "BGR"
