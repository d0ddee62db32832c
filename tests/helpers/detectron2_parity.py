"""Detectron2's model of a case of detector_samples, with the same weights, and the outputs of both."""

import functools
import warnings

import torch

from helpers.detector_samples import ALL, CASES, CLASSES, SKELETON, images, small_detector, targets, to_detectron2
from sslbench.backbones.build import build
from sslbench.detection.detectron2.config import detectron2_options
from sslbench.detection.recipe import DetectionRecipe


def ours(case):
    """Return the proposals and detections of each image, and the losses when nothing is drawn."""
    detector = small_detector(case, **ALL)
    with torch.no_grad():
        detector.eval()
        batch, sizes = detector.batched(images())
        proposals, _ = detector.proposal_generator(detector.backbone(batch), sizes)
        found = detector(images())
        losses = detector.train()(images(), targets())  # last: it moves the statistics of BatchNorm
    return proposals, found, losses


@functools.cache
def library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import detectron2.config
        import detectron2.layers
        import detectron2.modeling
        import detectron2.structures
        import detectron2.utils.events
        from detectron2.modeling.roi_heads import ROI_HEADS_REGISTRY, Res5ROIHeads

    if "Res5ROIHeadsExtraNorm" not in ROI_HEADS_REGISTRY:

        class Res5ROIHeadsExtraNorm(Res5ROIHeads):
            @classmethod
            def _build_res5_block(cls, cfg):
                blocks, channels = super()._build_res5_block(cfg)
                blocks.add_module("norm", detectron2.layers.get_norm(cfg.MODEL.RESNETS.NORM, channels))
                return blocks, channels

        ROI_HEADS_REGISTRY.register(Res5ROIHeadsExtraNorm)
    return detectron2


def configuration(case, **changes):
    """Return Detectron2's configuration of the same recipe."""
    name, settings = CASES[case]
    recipe = DetectionRecipe(**{**settings, **changes})
    cfg = library().config.get_cfg()
    cfg.MODEL.DEVICE = "cpu"
    options = detectron2_options(build(name), recipe, CLASSES, SKELETON)
    cfg.merge_from_list([part for pair in options.items() for part in pair])
    return cfg


def theirs(case, **changes):
    """Return Detectron2's model of the same recipe with the same weights; every tensor has to be taken."""
    d2, cfg = library(), configuration(case, **changes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = d2.modeling.build_model(cfg)
    weights = to_detectron2(small_detector(case, **changes).state_dict())
    names = {n for n in model.state_dict() if not n.endswith("num_batches_tracked")}
    assert names == set(weights)
    model.load_state_dict(weights, strict=False)
    return model


def batch_for(d2, *, with_targets):
    batch = []
    for image, target in zip(images(), targets(), strict=True):
        entry = {"image": image * 255}
        if with_targets:
            entry["instances"] = d2.structures.Instances(
                tuple(image.shape[1:]),
                gt_boxes=d2.structures.Boxes(target.boxes),
                gt_classes=target.classes,
                gt_masks=d2.structures.BitMasks(target.masks),
                gt_keypoints=d2.structures.Keypoints(target.keypoints),
            )
        batch.append(entry)
    return batch


def in_order(model, batch):
    """Turn the channels as Detectron2's data loader does."""
    if model.input_format == "BGR":
        batch = [{**entry, "image": entry["image"].flip(0)} for entry in batch]
    return batch


def run(model, *, seed=0):
    """Return the same as `ours`, of a model of Detectron2."""
    d2 = library()
    torch.manual_seed(seed)
    with torch.no_grad(), d2.utils.events.EventStorage():
        model.eval()
        batch = in_order(model, batch_for(d2, with_targets=False))
        prepared = model.preprocess_image(batch)
        proposals, _ = model.proposal_generator(prepared, model.backbone(prepared.tensor))
        found = model.inference(batch, do_postprocess=False)
        losses = model.train()(in_order(model, batch_for(d2, with_targets=True)))
    return [p.proposal_boxes.tensor for p in proposals], found, losses
