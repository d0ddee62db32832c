"""Deformable DETR (Zhu et al. 2021, arXiv 2010.04159) by Hugging Face transformers, on the user's backbone.

The library has the transformer, the matching and the losses, all in PyTorch. Weights begin as the paper's code sets
them, and nothing is downloaded. Its inputs are the maps of strides 8 to 32 of a ResNet, or of a simple feature pyramid
on a vision transformer, and a fourth of stride 64 that the library adds. Boxes are shares of the image without its
padding.
"""

import copy
import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torchvision.ops import box_convert, clip_boxes_to_image

from sslbench.backbones.backbone import Backbone
from sslbench.detection.models.boxes import Generator, InstancePredictions, Maps, Sizes, Targets
from sslbench.detection.models.detector import Detector, Statistics
from sslbench.detection.models.pyramids import Trunk, channels, prepared, simple_pyramid
from sslbench.detection.recipe import DetectionRecipe
from sslbench.errors import UsageError

LEVELS = (3, 4, 5)
"""Logarithms of the strides of the maps."""
_LOSSES = {"loss_cls": ("loss_ce", 2.0), "loss_box_reg": ("loss_bbox", 5.0), "loss_giou": ("loss_giou", 2.0)}
"""Our name of a loss, transformers' name, and its weight (appendix A.4)."""
_PRIOR = 0.01  # first score of every class (Lin et al. 2017, arXiv 1708.02002, section 4.1)


class _FinerStages(nn.Module):
    """Maps of strides 8 to 32 of a ResNet."""

    def __init__(self, bottom_up: Trunk) -> None:
        super().__init__()
        self.bottom_up = bottom_up

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return three maps, finest first, of images (B, channels, H, W)."""
        return cast(list[Tensor], self.bottom_up(images)[1:])


class _GivenMaps(nn.Module):
    """Stand-in for the backbone of transformers' model: hands over the maps of the detector's own backbone."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: Sequence[Tensor] = ()

    def forward(self, images: Tensor, inside: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return the maps with their masks, True where a place is inside of its image."""
        return [
            (one, nn.functional.interpolate(inside[None].float(), size=one.shape[-2:])[0].bool()) for one in self.maps
        ]


class DeformableDetr(Detector):
    """Deformable DETR."""

    def __init__(
        self,
        recipe: DetectionRecipe,
        classes: int,
        *,
        backbone: nn.Module,
        widths: Sequence[int],
        statistics: Statistics,
        divisor: int,
    ) -> None:
        """Set up the transformer for the maps of a backbone."""
        super().__init__(recipe, classes, backbone=backbone, statistics=statistics, divisor=divisor)
        self.network = _network(recipe, classes, widths)
        self._given = _GivenMaps()
        self.network.model.backbone = self._given

    def losses(self, features: Maps, sizes: Sizes, targets: Targets, generator: Generator) -> dict[str, Tensor]:
        """Return the losses of all layers of the decoder, and of any proposals; nothing is drawn."""
        # All are computed in fp32: half precision would round the places of boxes. Losses of outputs that are not
        # finite are NaN.
        wanted = []
        for target, (height, width) in zip(targets, sizes, strict=True):
            shares = target.boxes / target.boxes.new_tensor((width, height, width, height))
            wanted.append({"class_labels": target.classes, "boxes": box_convert(shares, "xyxy", "cxcywh")})
        with torch.autocast(features[0].device.type, enabled=False):
            outputs = self._outputs(features, sizes, wanted)
        losses = dict(cast(dict[str, Tensor], outputs.loss_dict))
        if self.recipe.two_stage:
            # Of the encoder's proposals, in which every object is of one class (appendix A.4): transformers has no such
            # loss.
            config = copy.deepcopy(self.network.config)
            config.auxiliary_loss = False
            one_class = [{**target, "class_labels": torch.zeros_like(target["class_labels"])} for target in wanted]
            logits, boxes = outputs.enc_outputs_class, outputs.enc_outputs_coord_logits.sigmoid()
            of_proposals = self.network.loss_function(logits, one_class, logits.device, boxes, config)[1]
            losses |= {f"{name}_proposals": loss for name, loss in of_proposals.items()}
        return {
            name: weight * torch.stack([v for key, v in losses.items() if key.startswith(theirs)]).sum()
            for name, (theirs, weight) in _LOSSES.items()
        }

    def denominator(self, sizes: Sizes, targets: Targets) -> int:
        """Return the number of objects."""
        return sum(len(target.classes) for target in targets)

    def detections(self, features: Maps, sizes: Sizes) -> list[InstancePredictions]:
        """Return the best pairs of query and class in each image; without suppression, which DETR has not."""
        outputs = self._outputs(features, sizes, None)
        found = []
        for logits, shares, (height, width) in zip(outputs.logits, outputs.pred_boxes, sizes, strict=True):
            scores, order = logits.sigmoid().flatten().sort(descending=True, stable=True)
            kept = (scores > self.recipe.score_threshold).nonzero()[: self.recipe.detections, 0]
            scores, order = scores[kept], order[kept]
            boxes = box_convert(shares, "cxcywh", "xyxy") * shares.new_tensor((width, height, width, height))
            boxes = clip_boxes_to_image(boxes[order // self.classes], (height, width))
            found.append(InstancePredictions(boxes, scores, order % self.classes))
        return found

    def _outputs(self, features: Maps, sizes: Sizes, wanted: list[dict[str, Tensor]] | None) -> Any:
        """Return transformers' outputs, with losses where `wanted` has the objects of each image."""
        self._given.maps = [one.float() for one in features]
        if self.recipe.two_stage:  # every place of the four maps is a proposal, and a small image has few
            sides = [(one.shape[-2], one.shape[-1]) for one in features]
            sides.append((-(-sides[-1][0] // 2), -(-sides[-1][1] // 2)))
            places = sum(rows * columns for rows, columns in sides)
            self.network.model.config.two_stage_num_proposals = min(self.recipe.queries, places)
        height, width = self.padded(sizes)
        inside = torch.zeros(len(sizes), height, width, dtype=torch.long, device=features[0].device)
        for mask, (h, w) in zip(inside, sizes, strict=True):
            mask[:h, :w] = 1
        # Only device, type and size of the batch are used, not its pixels.
        pixels = torch.empty(len(sizes), 0, height, width, device=features[0].device)
        try:
            return self.network(pixels, pixel_mask=inside, labels=wanted)
        finally:
            self._given.maps = ()


def deformable_detr(
    backbone: Backbone, recipe: DetectionRecipe, classes: int, statistics: Statistics
) -> DeformableDetr:
    """Build the detector of a resolved recipe on a ResNet or a vision transformer."""
    if recipe.architecture == "vit_deformable_detr":
        trunk: nn.Module = simple_pyramid(backbone, recipe, LEVELS)
        widths, divisor = (recipe.pyramid_channels,) * len(LEVELS), 32
    else:
        network = prepared(backbone, recipe)
        trunk, divisor = _FinerStages(Trunk(network, 4)), 1
        widths = tuple(channels(network.spec, level - 2) for level in LEVELS)
    return DeformableDetr(recipe, classes, backbone=trunk, widths=widths, statistics=statistics, divisor=divisor)


def _network(recipe: DetectionRecipe, classes: int, widths: Sequence[int]) -> Any:
    """Return transformers' model with random weights, for maps of the given channels."""
    try:
        from transformers import DeformableDetrConfig, DeformableDetrForObjectDetection, ResNetConfig
    except ImportError as error:
        raise UsageError(
            f"architecture={recipe.architecture} needs the package transformers ({error})",
            "pip install 'sslbench[detr]', or another architecture.",
        ) from error
    # The library cannot build the model without a backbone: this one has the channels of ours, and is replaced.
    stand_in: dict[str, Any] = {
        "embedding_size": 1,
        "hidden_sizes": [4, *widths],
        "depths": [1] * 4,
        "layer_type": "bottleneck",
        "out_features": ["stage2", "stage3", "stage4"],
    }
    settings: dict[str, Any] = {
        "backbone_config": ResNetConfig(**stand_in),
        "num_labels": classes,
        "num_queries": recipe.queries,
        "d_model": recipe.transformer_width,
        "encoder_layers": recipe.encoder_layers,
        "decoder_layers": recipe.decoder_layers,
        "encoder_ffn_dim": recipe.transformer_mlp,
        "decoder_ffn_dim": recipe.transformer_mlp,
        "dropout": recipe.dropout,
        "attention_dropout": recipe.dropout,
        "activation_dropout": recipe.dropout,
        "with_box_refine": recipe.refine_boxes,
        "two_stage": recipe.two_stage,
        "two_stage_num_proposals": recipe.queries,
        "auxiliary_loss": True,
        "class_cost": 2,  # 1 in the library
        "disable_custom_kernels": True,
    }
    model: Any = DeformableDetrForObjectDetection(DeformableDetrConfig(**settings))
    if recipe.refine_boxes:  # the library shares one classifier among the layers; in the paper's code each has its own
        model.class_embed = nn.ModuleList(copy.deepcopy(head) for head in model.class_embed)
    if recipe.two_stage:
        model.model.decoder.class_embed = model.class_embed
    model.model.encoder.dropout = 0.0  # of the encoder's input, which the paper's code does not drop
    library_loss = model.loss_function

    def loss(logits: Tensor, labels: list[dict[str, Tensor]], device: torch.device, *outputs: Any) -> tuple[Any, ...]:
        """Return transformers' losses, or NaN for outputs that are not finite, which its matching cannot take."""
        if bool(torch.isfinite(outputs[0]).all() and torch.isfinite(logits).all()):
            return cast(tuple[Any, ...], library_loss(logits, labels, device, *outputs))
        nan = logits.sum() * torch.nan
        return nan, {theirs: nan for theirs, _ in _LOSSES.values()}, None

    model.loss_function = loss
    _initialise(model)
    return model


@torch.no_grad()
def _initialise(model: Any) -> None:
    """Set the first weights as the paper's code does; transformers' are those of language models."""
    core = model.model
    for layer in (*core.encoder.layers, *core.decoder.layers):
        for linear in (layer.mlp.fc1, layer.mlp.fc2):
            nn.init.xavier_uniform_(linear.weight)
            bound = linear.in_features**-0.5
            nn.init.uniform_(linear.bias, -bound, bound)
    for layer in core.decoder.layers:
        attention = layer.self_attn
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj):
            nn.init.xavier_uniform_(linear.weight, gain=0.5**0.5)  # torch draws the three as one matrix
        nn.init.xavier_uniform_(attention.o_proj.weight)
    if model.config.two_stage:
        for linear in (core.enc_output, core.pos_trans):
            linear.reset_parameters()
            nn.init.xavier_uniform_(linear.weight)
    else:
        nn.init.normal_(core.query_position_embeddings.weight)
    for projection in core.input_proj:
        nn.init.xavier_uniform_(projection[0].weight)
    for head in model.class_embed:
        head.reset_parameters()
        nn.init.constant_(head.bias, -math.log((1 - _PRIOR) / _PRIOR))
    for head in model.bbox_embed:
        for linear in head.layers[:-1]:
            linear.reset_parameters()
        nn.init.zeros_(head.layers[-1].weight)
        nn.init.zeros_(head.layers[-1].bias)
    if not model.config.two_stage:  # whose boxes begin at the proposals
        model.bbox_embed[0].layers[-1].bias[2:] = -2.0  # small; further layers share the head, or refine its boxes
