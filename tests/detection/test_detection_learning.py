"""A detector of each kind learns a few images by heart: losses, gradients and detections fit together."""

import pytest
import torch
from helpers.detector_samples import average_precision, detector, scene
from torch import nn


@pytest.mark.parametrize(
    ("architecture", "anchors", "number"),
    [("c4", ((16.0, 24.0, 32.0),), 2), ("fpn", ((8.0,), (16.0,), (24.0,), (32.0,), (64.0,)), 4)],
)
def test_a_detector_learns_a_few_images_by_heart(architecture, anchors, number):
    changes = {"anchor_sizes": anchors, "rpn_samples": 64, "roi_samples": 16, "rpn_post_nms_train": 50}
    changes |= {"pyramid_channels": 32, "box_channels": 64, "rpn_post_nms_test": 20}
    backbone = {"c4": "resnet_bottleneck_1-1-1-1w0.25", "fpn": "resnet18w0.25"}[architecture]
    if architecture == "c4":  # a small side: the fifth stage on every region is what takes the time
        changes |= {"extra_norm": True, "box_pool": 4, "roi_samples": 8}
    model = detector(architecture, backbone, **changes)
    images, truth = zip(*(scene(n) for n in range(number)), strict=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    generator, history = torch.Generator().manual_seed(0), []
    for step in range(60):
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, (step + 1) / 10)
        loss = sum(model(images, truth, generator).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss.item())
    for norm in (m for m in model.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.reset_running_stats()
        norm.momentum = None  # the plain average, as the recipe's precise_bn
    with torch.no_grad():
        for _ in range(3):
            model(images, truth, generator)
        found = model.eval()(images)
    assert sum(history[-5:]) / 5 < 0.6 * history[0]
    assert sum(average_precision(found, truth, kind) for kind in (0, 1)) / 2 > 0.5
