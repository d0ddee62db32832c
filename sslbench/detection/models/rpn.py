"""Region proposal network (Ren et al. 2015), with the numbers and names of Detectron2."""

import collections
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.ops import batched_nms, clip_boxes_to_image

from sslbench.detection.models import boxes as b
from sslbench.detection.models.boxes import Generator, Maps, Sizes, Targets
from sslbench.detection.models.pyramids import Conv
from sslbench.detection.recipe import DetectionRecipe, after_divergence
from sslbench.train.loop import NotFiniteError

_WEIGHTS = (1.0, 1.0, 1.0, 1.0)


class RPNHead(nn.Module):
    """Head that predicts objectness and box of each anchor from the features around it."""

    def __init__(self, channels: int, anchors: int, convs: int) -> None:
        super().__init__()
        layers = {f"conv{i}": Conv(channels, channels, 3, relu=True) for i in range(convs)}
        self.conv = layers["conv0"] if convs == 1 else nn.Sequential(collections.OrderedDict(layers))
        self.objectness_logits = nn.Conv2d(channels, anchors, 1)
        self.anchor_deltas = nn.Conv2d(channels, anchors * 4, 1)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)

    def forward(self, feature: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits (B, H * W * A) and deltas (B, H * W * A, 4), in the order of `grid_anchors`."""
        hidden = self.conv(feature)
        logits = self.objectness_logits(hidden).permute(0, 2, 3, 1).flatten(1)
        deltas = self.anchor_deltas(hidden).permute(0, 2, 3, 1)
        return logits, deltas.reshape(len(feature), -1, 4)


class RegionProposalNetwork(nn.Module):
    """Region proposal network: proposals, and the losses in training."""

    def __init__(self, recipe: DetectionRecipe, channels: int, strides: Sequence[int]) -> None:
        """Set up the network for a resolved recipe, the channels of the features, and the strides of the levels."""
        super().__init__()
        sizes = recipe.anchor_sizes or ()
        self.recipe, self.strides = recipe, tuple(strides)
        self.rpn_head = RPNHead(channels, len(sizes[0]) * len(recipe.anchor_ratios), recipe.rpn_convs or 1)
        for level, level_sizes in enumerate(sizes):
            self.register_buffer(f"cell{level}", b.cell_anchors(level_sizes, recipe.anchor_ratios), persistent=False)

    def forward(
        self, features: Maps, sizes: Sizes, targets: Targets | None = None, generator: Generator = None
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """Return the proposals (n, 4) of each image, best first, and the losses if there are targets.

        `features`: one (B, C, H, W) for each level.
        """
        anchors = [
            b.grid_anchors(self.get_buffer(f"cell{level}"), (feature.shape[2], feature.shape[3]), stride)
            for level, (feature, stride) in enumerate(zip(features, self.strides, strict=True))
        ]
        predicted = [self.rpn_head(feature) for feature in features]
        logits, deltas = [p[0].float() for p in predicted], [p[1].float() for p in predicted]  # also in half precision
        losses = {}
        if targets is not None:
            losses = self.losses(anchors, torch.cat(logits, dim=1), torch.cat(deltas, dim=1), targets, generator)
        with torch.no_grad():
            decoded = [
                b.decode(d.reshape(-1, 4), a.repeat(len(d), 1), _WEIGHTS).reshape(len(d), -1, 4)
                for d, a in zip(deltas, anchors, strict=True)
            ]
            return self.best(decoded, logits, sizes), losses

    def losses(
        self, anchors: Sequence[Tensor], logits: Tensor, deltas: Tensor, targets: Targets, generator: Generator
    ) -> dict[str, Tensor]:
        """Return both losses of the drawn anchors, divided by the nominal number of draws in all images.

        `anchors`: (n_level, 4) for each level; `logits`: (B, n); `deltas`: (B, n, 4).
        """
        recipe, every = self.recipe, torch.cat(list(anchors))
        low, high = recipe.rpn_overlaps
        # Not plain zeros: without any sample the parameters still have gradients, which other processes wait for.
        classification, location = logits.sum() * 0, deltas.sum() * 0
        for image, target in enumerate(targets):
            found = b.match(target.boxes, every, low=low, high=high, keep_best=True)
            objects, background = b.sample(
                found, number=recipe.rpn_samples, positives=recipe.rpn_positives, generator=generator
            )
            rows = torch.cat((objects, background))
            truth = (torch.arange(len(rows), device=rows.device) < len(objects)).to(logits.dtype)
            classification = classification + functional.binary_cross_entropy_with_logits(
                logits[image, rows], truth, reduction="sum"
            )
            wanted = b.encode(target.boxes[found[objects]], every[objects], _WEIGHTS)
            location = location + b.regression_loss(deltas[image, objects], wanted, recipe.rpn_smooth_l1_beta or 0.0)
        # By the number asked for, as in Detectron2, also where fewer could be drawn.
        normaliser = recipe.rpn_samples * len(targets)
        return {"loss_rpn_cls": classification / normaliser, "loss_rpn_loc": location / normaliser}

    def best(self, boxes: Maps, logits: Sequence[Tensor], sizes: Sizes) -> list[Tensor]:
        """Return the best proposals of each image: top k per level, non-maximum suppression per level, top k of all.

        `boxes`: (B, n_level, 4) for each level; `logits`: (B, n_level) for each level.
        """
        recipe = self.recipe
        before = (recipe.rpn_pre_nms_train if self.training else recipe.rpn_pre_nms_test) or 0
        after = (recipe.rpn_post_nms_train if self.training else recipe.rpn_post_nms_test) or 0
        top_boxes, top_logits, levels = [], [], []
        for level, (level_boxes, level_logits) in enumerate(zip(boxes, logits, strict=True)):
            scores, rows = level_logits.topk(min(before, level_logits.shape[1]), dim=1)
            top_boxes.append(level_boxes.gather(1, rows[..., None].expand(-1, -1, 4)))
            top_logits.append(scores)
            levels.append(torch.full_like(rows[0], level))
        every, every_logits, every_level = torch.cat(top_boxes, 1), torch.cat(top_logits, 1), torch.cat(levels)
        proposals = []
        for own, scores, size in zip(every, every_logits, sizes, strict=True):
            finite = torch.isfinite(own).all(dim=1) & torch.isfinite(scores)
            if self.training and not finite.all():
                raise NotFiniteError(
                    "the region proposals are NaN or infinite: the training diverged", after_divergence(recipe)
                )
            clipped = clip_boxes_to_image(own, size)
            keep = torch.where(finite & (clipped[:, 2] > clipped[:, 0]) & (clipped[:, 3] > clipped[:, 1]))[0]
            kept = batched_nms(clipped[keep], scores[keep], every_level[keep], recipe.rpn_nms)
            proposals.append(clipped[keep][kept][:after])
        return proposals
