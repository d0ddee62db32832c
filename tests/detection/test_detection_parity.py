"""The same weights give the same proposals, detections, masks and losses in Detectron2.

Against recorded outputs of the real one (cases/detectron2.json) always, and against the real one where it can be
imported: `PYTHONPATH=<checkout of detectron2>` with fvcore, iopath, omegaconf, yacs, pycocotools, termcolor, tabulate
and cloudpickle installed. `SSLBENCH_RECORD=1` records the outputs anew.
"""

import functools
import importlib.util
import json
import os
from pathlib import Path

import pytest
import torch
from helpers.detector_samples import ALL, CASES, SIZES, images, small_detector, targets
from helpers.detectron2_parity import batch_for, in_order, library, ours, run, theirs

from sslbench.detection.models.boxes import rescale
from sslbench.detection.saved import from_detectron2

RECORDED = Path(__file__).parent / "cases" / "detectron2.json"
REAL = pytest.mark.skipif(
    importlib.util.find_spec("detectron2") is None, reason="detectron2 is not importable (it is on no package index)"
)


@functools.cache
def recorded():
    return json.loads(RECORDED.read_text())


def agree(mine, theirs, *, boxes, scores):
    """Both lists hold the same detections; of equal scores the order may differ."""
    assert len(mine) == len(theirs) > 5
    left = list(range(len(theirs)))
    for row in mine:
        near = [i for i in left if (row[:4] - theirs[i][:4]).abs().max() < boxes]
        same = [i for i in near if (row[4:] - theirs[i][4:]).abs().max() < scores] if len(row) > 4 else near
        assert same, row
        left.remove(same[0])


def rows(found):
    return torch.cat((found.boxes, found.scores[:, None], found.classes[:, None].float()), dim=1)


@pytest.mark.parametrize("case", sorted(CASES))
def test_recorded_outputs_of_detectron2(case):
    """Weights by the rule of detector_samples; the outputs were written by the real Detectron2."""
    torch.manual_seed(0)
    expected, (proposals, found, losses) = recorded()[case], ours(case)
    for image, wanted in enumerate(expected["images"]):
        agree(proposals[image][:20], torch.tensor(wanted["proposals"]), boxes=5e-3, scores=1e-4)
        agree(rows(found[image])[:20], torch.tensor(wanted["detections"]), boxes=5e-3, scores=1e-4)
        if wanted["mask_areas"]:
            areas = found[image].masks.sum(dim=(1, 2))[:20]
            assert torch.allclose(areas.sort()[0], torch.tensor(wanted["mask_areas"]).sort()[0], rtol=1e-3)
        if wanted.get("keypoint_scores"):
            scores = found[image].keypoints[:20, :, 2].flatten().sort()[0]
            assert torch.allclose(scores, torch.tensor(wanted["keypoint_scores"]).flatten().sort()[0], rtol=1e-2)
    assert {k: float(v) for k, v in losses.items()} == pytest.approx(expected["losses"], rel=1e-4)


def same_keypoints(mine, theirs):
    """Equal scores, and places but for heat maps in which two places have nearly the same value."""
    assert mine.shape == theirs.shape and torch.allclose(mine[:, :, 2], theirs[:, :, 2], rtol=1e-3)
    assert ((mine - theirs)[:, :, :2].abs().amax(dim=2) > 1e-2).float().mean() < 0.01


def their_rows(found):
    return torch.cat((found.pred_boxes.tensor, found.scores[:, None], found.pred_classes[:, None].float()), dim=1)


@REAL
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_real_detectron2_gives_the_same(case):
    """Proposals, detections and masks to 1e-3 pixels and 1e-5; losses with every anchor and region in them."""
    torch.manual_seed(0)
    proposals, found, losses = ours(case)
    their_proposals, their_found, their_losses = run(theirs(case, **ALL))
    for a, b in zip(proposals, their_proposals, strict=True):
        agree(a, b, boxes=1e-3, scores=1e-5)
    for a, b in zip(found, their_found, strict=True):
        agree(rows(a), their_rows(b), boxes=1e-3, scores=1e-5)
        if a.masks is not None:
            assert torch.allclose(a.masks, b.pred_masks[:, 0], atol=1e-4)
        if a.keypoints is not None:
            same_keypoints(a.keypoints, b.pred_keypoints)
    assert {k: float(v) for k, v in losses.items()} == pytest.approx(
        {k: float(v) for k, v in their_losses.items()}, rel=3e-5
    )


@REAL
@pytest.mark.parametrize("case", sorted(CASES))
def test_the_real_detectron2_draws_the_same_and_has_the_same_gradients(case):
    """With few anchors and regions drawn from the same random numbers; statistics of BatchNorm move alike too."""
    d2, few = library(), {"rpn_samples": 24, "roi_samples": 16}
    detector, model = small_detector(case, **few), theirs(case, **few).train()
    losses = detector(images(), targets(), torch.Generator().manual_seed(3))
    torch.manual_seed(3)
    with d2.utils.events.EventStorage():
        their_losses = model(in_order(model, batch_for(d2, with_targets=True)))
    assert {k: v.item() for k, v in losses.items()} == pytest.approx(
        {k: v.item() for k, v in their_losses.items()}, rel=1e-4
    )
    sum(losses.values()).backward()
    sum(their_losses.values()).backward()
    gradients = {n: p.grad for n, p in detector.named_parameters() if p.grad is not None}
    wanted = from_detectron2({n: p.grad for n, p in model.named_parameters() if p.grad is not None})
    assert set(gradients) == set(wanted)
    # Rounding turns a few ReLUs over; statistics over a batch pass that on. In double precision 1e-6 is left.
    trained = CASES[case][1].get("norm") == "batch"
    for name, gradient in gradients.items():
        # Biases before a softmax have a gradient of 0, of which rounding alone is left.
        assert (gradient - wanted[name]).norm() <= (0.05 if trained else 0.005) * wanted[name].norm() + 1e-6, name
    after = from_detectron2(model.state_dict())
    for name, tensor in detector.state_dict().items():
        if "running" in name:
            assert torch.allclose(tensor, after[name], rtol=1e-4, atol=1e-5), name


@REAL
def test_the_real_detectron2_scales_and_pastes_the_same():
    from detectron2.modeling.postprocessing import detector_postprocess

    model = theirs("fpn", **ALL)
    detector = small_detector("fpn", **ALL).eval()
    with torch.no_grad():
        found, (_, their_found, _) = detector(images()), run(model)
    for a, b, size in zip(found, their_found, SIZES, strict=True):
        big = (size[0] * 2 + 1, size[1] * 3)
        mine, other = rescale(a, seen=size, size=big), detector_postprocess(b, *big)
        agree(rows(mine), their_rows(other), boxes=1e-2, scores=1e-5)
        assert mine.masks.shape == other.pred_masks.shape
        assert (mine.masks != other.pred_masks).float().mean() < 1e-4


@REAL
def test_the_table_of_differences_stays_within_its_bounds():
    pytest.importorskip("pycocotools")
    import parity_table

    rows = parity_table.table(3)
    assert len(rows) == 18 and all(row.compared > 0 for row in rows)
    assert [row for row in rows if not row.difference <= row.bound] == []


@REAL
@pytest.mark.skipif("SSLBENCH_RECORD" not in os.environ, reason="SSLBENCH_RECORD is not set")
def test_record():
    content = {}
    for case in sorted(CASES):
        proposals, found, losses = run(theirs(case, **ALL))
        content[case] = {
            "losses": {k: float(v) for k, v in losses.items()},
            "images": [
                {
                    "proposals": _rounded(p[:20]),
                    "detections": _rounded(their_rows(f)[:20]),
                    "mask_areas": _rounded(f.pred_masks[:20, 0].sum(dim=(1, 2))) if f.has("pred_masks") else [],
                    "keypoint_scores": _rounded(f.pred_keypoints[:20, :, 2]) if f.has("pred_keypoints") else [],
                }
                for p, f in zip(proposals, found, strict=True)
            ],
        }
    RECORDED.parent.mkdir(exist_ok=True)
    RECORDED.write_text(json.dumps(content, separators=(",", ":")) + "\n")


def _rounded(tensor):
    return [[round(v, 6) for v in row] if isinstance(row, list) else round(row, 6) for row in tensor.tolist()]
