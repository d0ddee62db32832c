"""Files of trained detectors, the description of the detector in a file or a checkpoint, and Detectron2's names.

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

from sslbench.backbones.build import build, check_recorded, check_size, laid_out
from sslbench.backbones.load import check_recorded_preprocessing
from sslbench.config import build as build_dataclass
from sslbench.detection.models.build import build_detector
from sslbench.detection.models.detector import Detector
from sslbench.detection.recipe import ON_TRANSFORMERS, ONE_STAGE, DetectionRecipe, changed_network, what_is_trained
from sslbench.errors import UsageError, WeightsError
from sslbench.paths import new_file
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
_ANCHORS = 8  # first version with today's anchors of RetinaNet and places of FCOS
_COUNTER = ".num_batches_tracked"
_PYRAMID, _TRUNK, _RES5 = "backbone.bottom_up.", "backbone.", "roi_heads.res5."
_RES5_NORM = f"{_RES5}norm."
# not learnt: further tensors of some Detectron2 files
_BESIDE = ("pixel_mean", "pixel_std", "proposal_generator.anchor_generator.")


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
    """Write the file atomically, replacing an existing one."""
    backbone, others = _divided(state, about.recipe)
    preprocessing = about.preprocessing
    if about.recipe.pixel_mean:
        step = -1 if about.recipe.channel_order == "BGR" else 1
        # The file holds a backbone for RGB images, whatever the order of the recipe.
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
    with new_file(path) as temporary:
        save.write_torch(temporary, content)
    return path


def _divided(state: Mapping[str, Tensor], recipe: DetectionRecipe) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split a state into the backbone under canonical names, for RGB images, and the rest."""
    # A backbone with moved strides or windows is another network than that of its name, and stays in the rest.
    backbone, others = dict[str, Tensor](), dict[str, Tensor]()
    vit, whole = recipe.architecture in ON_TRANSFORMERS, changed_network(recipe)
    for name, tensor in state.items():
        if vit:
            own = name.removeprefix(_VIT) if name.startswith(_VIT) else None
        else:
            own = canonical_name(name, pyramid=recipe.architecture != "c4")
        if own is None or whole:
            others[name] = tensor
        else:
            # Only the first layer sees channels of the image.
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


def read_detector(path: Path, device: str | torch.device = "cpu") -> tuple[Detector, DetectorDescription]:
    """Load the detector of a file, in evaluation mode, with its description."""
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
    # Built without memory first, so that a file cannot ask for a huge network that it does not hold.
    with laid_out():
        skeleton = build_detector(build(about.backbone), recipe, classes, keypoints=len(about.keypoints), device="meta")
    check_size(skeleton, f"{path}: its detector", numbers=numbers)
    backbone = dataclasses.replace(build(about.backbone), preprocessing=about.preprocessing)
    detector = build_detector(backbone, about.recipe, len(about.classes), keypoints=len(about.keypoints), device=device)
    fill(detector, _joined(file.content, about.recipe), what=str(path))
    return detector.eval(), about


def about_of(file: files.WeightsFile) -> DetectorDescription | None:
    """Return the description in an exported detector or a checkpoint of its training; None for other files."""
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


def from_detectron2(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the 'model' of a Detectron2 file under the names of a `Detector`, for `weights.fill`."""
    pyramid = any(name.startswith(_PYRAMID) for name in tensors)
    mine: dict[str, Tensor] = {}
    heads: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.startswith(_BESIDE) or name.endswith(_COUNTER):
            continue
        of_backbone = name.startswith(_PYRAMID) if pyramid else name.startswith((_TRUNK, _RES5))
        (mine if of_backbone and not name.startswith(_RES5_NORM) else heads)[name] = tensor
    canonical, _ = load_table("detectron2" if pyramid else "detectron2_c4").to_canonical(mine)
    return {place(name, pyramid=pyramid): tensor for name, tensor in canonical.items()} | heads


def canonical_name(name: str, *, pyramid: bool) -> str | None:
    """Return the canonical name of a backbone tensor; None for one of the heads or the pyramid."""
    if pyramid:
        return name.removeprefix(_PYRAMID) if name.startswith(_PYRAMID) else None
    if name.startswith(_RES5) and not name.startswith(_RES5_NORM):
        return "layer4." + name.removeprefix(_RES5)
    return name.removeprefix(_TRUNK) if name.startswith(_TRUNK) else None


def place(name: str, *, pyramid: bool) -> str:
    """Return the name of a backbone tensor in a detector."""
    if pyramid:
        return _PYRAMID + name
    return _RES5 + name.removeprefix("layer4.") if name.startswith("layer4.") else _TRUNK + name
