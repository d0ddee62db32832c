"""The runners of golden cases on cases of another kind than those at hand: other depths, names, NaN references.

Each case is computed here by itself: with numpy, or with torchvision's networks.
"""

import json
import math
import shutil

import numpy as np
import pytest
from golden_cases import cases_of, roots, run_topic, write_topic

DEFAULTS = {
    "lightly_swav_low0_q0": ("temperature", "sinkhorn_iterations", "sinkhorn_epsilon"),
    "lightly_vicreg_n8_d6": ("lambda_param", "mu_param", "nu_param", "eps"),
    "lightly_negcos": ("dim", "eps"),
    "lightly_ntxent_n4_T0.5": ("temperature",),
    "vissl_ce_multi_ignore": ("temperature", "ignore_index"),
    "vissl_larc_noclip_groups": ("eps", "nesterov"),
    "dino_lars": ("momentum", "eta"),
    "data_limit_0": ("skip",),
}
"""Options of shipped cases that equal the reference's own defaults."""


@pytest.mark.parametrize(
    ("topic", "left_out"),
    [("01_losses", "f32/"), ("03_larc_lars", "f64/"), *((name, "-") for name in ("02_schedules", "07_fewshot_lsr",
     "09_transforms", "10_low_shot"))],
)  # fmt: skip
def test_shipped_cases_with_other_descriptions(topic, left_out, tmp_path):
    """Without what explains a case, defaults and one precision; options in another order, beside unknown ones."""
    cases = {}
    shipped = [case for case in cases_of(roots()[0] / topic) if topic != "01_losses" or case.name in DEFAULTS]
    for case in shipped:
        meta, expected = case.meta, case.expected()
        options = reversed([*meta.get("args", {}).items(), ("recorded_with", "care")])
        args = {key: value for key, value in options if key not in DEFAULTS.get(case.name, ())}
        described = {key: meta[key] for key in ("repo", "callable") if key in meta} | {"args": args}
        kept = {key: x for key, x in expected.items() if not key.startswith(left_out)}
        cases[case.name] = described, case.inputs(), kept
    folder = write_topic(tmp_path, topic, cases)
    if (others := roots()[0] / topic / "expected.json").is_file():
        shutil.copy(others, folder)
    run_topic(folder)


def nt_xent(rows, temperature):
    """Value and gradient by torch's own functions, in float64."""
    import torch

    x = torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    z = torch.nn.functional.normalize(x, dim=1)
    logits = (z @ z.T / temperature).masked_fill(torch.eye(len(z), dtype=torch.bool), -math.inf)
    positive = torch.roll(torch.arange(len(z)), len(z) // 2)
    value = torch.nn.functional.cross_entropy(logits, positive)
    value.backward()
    return value.item(), x.grad.numpy()


@pytest.mark.parametrize("missing", ["nothing", "f32", "f32 and f64"])
def test_a_reference_that_is_nan(missing, tmp_path):
    rows = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    value, gradient = nt_xent(rows, 0.2)
    expected = {}
    for precision, dtype in (("f32", np.float32), ("f64", np.float64)):
        nan = math.nan if precision in missing else 1.0
        expected |= {f"{precision}/loss": dtype(value * nan), f"{precision}/grad_embedding": dtype(gradient * nan)}
    args = {"T": 0.2, "made_by": "hand", "seed": 3}
    topic = write_topic(tmp_path, "01_losses", {"vissl_simclr_other": ({"args": args}, {"embedding": rows}, expected)})
    run_topic(topic)


def test_a_reference_whose_float32_is_less_exact_than_ours(tmp_path):
    rows = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    value, gradient = nt_xent(rows, 0.2)
    expected = {"f64/loss": np.float64(value), "f64/grad_embedding": gradient}
    expected |= {"f32/loss": np.float32(value * (1 + 1e-5)), "f32/grad_embedding": (gradient * 1.0005).astype("f")}
    case = {"args": {"temperature": 0.2}}, {"embedding": rows}, expected
    run_topic(write_topic(tmp_path, "01_losses", {"vissl_simclr_y": case}))


def test_variances_of_maps_of_embeddings(tmp_path):
    """lightly's VICReg takes (images, positions, d): each position is a set of its own."""
    za, zb = np.random.default_rng(0).normal(size=(2, 5, 3, 4))
    value = 25 * ((za - zb) ** 2).mean()
    for z in (za, zb):
        deviation = np.sqrt(z.var(axis=0, ddof=1) + 1e-4)
        covariances = [np.cov(z[:, position].T) for position in range(3)]
        value += 12.5 * np.maximum(0, 1 - deviation).mean()
        value += np.mean([(c**2).sum() - (np.diag(c) ** 2).sum() for c in covariances]) / 4
    case = {"callable": "lightly.loss.VICRegLoss", "args": {}}, {"za": za, "zb": zb}, {"f64/loss": np.float64(value)}
    run_topic(write_topic(tmp_path, "01_losses", {"lightly_vicreg_maps": case}))


def test_a_queue_of_swav_that_is_not_in_use_yet(tmp_path):
    """VISSL leaves it as it is, and the codes of equal scores are equal shares."""
    given = {"scores0": np.zeros((4, 5)), "queue_scores0": np.ones((2, 6, 5)), "emb": np.ones((4, 3))}
    given["queue_emb"] = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    expected = {"f64/loss": np.float64(math.log(5)), "f64/queue_emb_after": given["queue_emb"]}
    args = {"num_crops": 2, "queue": {"local_queue_length": 6, "start_iter": 3}, "_iter": 2}
    run_topic(write_topic(tmp_path, "01_losses", {"swav_early": ({"args": args}, given, expected)}))


def test_average_precision_of_no_sample(tmp_path):
    """All weights are 0: VISSL's is 0, ours no number."""
    given = {"targets": np.array([1, 0]), "scores": np.array([0.5, 0.1]), "weights": np.zeros(2)}
    run_topic(write_topic(tmp_path, "04_svm_ap", {"ap_none": ({"args": {}}, given, {"ap": np.zeros(1)})}))


def test_whitening_to_more_components_than_there_are(tmp_path):
    x = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    expected = {"mean": np.zeros(2), "abs_applied": np.array([[1 / math.sqrt(18), 0], [0, 1 / math.sqrt(2)]])}
    case = {"args": {"n_components": 5}}, {"X": x, "query": np.eye(2)}, expected
    run_topic(write_topic(tmp_path, "06_retrieval", {"pca_more": case}))


def test_cross_entropy_of_each_pixel(tmp_path):
    target = np.array([[[0, 1], [255, 1]]], np.uint8)
    logits = np.random.default_rng(0).normal(size=(1, 2, 2, 2))
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    own = np.take_along_axis(log_probs, np.minimum(target, 1)[:, None], axis=1)[:, 0]
    expected = {"f64/avg_all/loss": np.where(target == 255, 0, -own)}
    case = {"args": {"reduction": "none", "ignore_index": 255}}, {"logits": logits, "target": target}, expected
    run_topic(write_topic(tmp_path, "13_segmentation_metrics", {"ce_each": case}))


def test_a_predicted_segment_of_no_category(tmp_path):
    """panopticapi refuses it; ours counts it for none of the categories."""
    given = {"gt_ids/0": np.ones((2, 2), np.uint8), "pred_ids/0": np.ones((2, 2), np.uint8),
             "gt_segments/0": np.array([[1, 2, 0]]), "pred_segments/0": np.array([[1, 7]])}  # fmt: skip
    recorded = {"pq_x": {"error": "KeyError: unknown category"}}
    case = {"args": {"isthing": {"2": 1}}}, given, {}
    run_topic(write_topic(tmp_path, "13_segmentation_metrics", {"pq_x": case}, recorded))


def test_alignment_at_a_largest_resolution(tmp_path):
    """DINOv3 takes an image for a row of channels: it leaves out columns alone."""
    prediction = np.random.default_rng(0).uniform(1, 5, (6, 8)).astype(np.float32)
    target = (prediction**2).astype(np.float32)
    columns = np.stack([prediction[:, ::2].ravel(), np.ones(24)], axis=1)
    scale, shift = np.linalg.lstsq(columns, target[:, ::2].ravel(), rcond=None)[0]
    expected = {"dinov3/scale": np.array([scale]), "dinov3/shift": np.array([shift])}
    case = {"args": {"max_resolution": 4}}, {"pred": prediction, "gt": target}, expected
    run_topic(write_topic(tmp_path, "14_depth_normals_metrics", {"align_x": case}))


def test_masked_outputs_of_labels_in_a_column(tmp_path):
    label, head = np.array([[0], [2], [2]]), np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    masked = np.where(np.isin(np.arange(4), label), head, -np.inf)
    expected = {"masked": masked, "top1": np.float64((masked.argmax(axis=1) == label[:, 0]).mean())}
    case = {"args": {}}, {"logits": head, "label": label}, expected
    run_topic(write_topic(tmp_path, "17_robustness", {"vissl_output_mask_x": case}))


@pytest.mark.parametrize("first", [True, False])
def test_calibration_of_equal_confidences(first, tmp_path):
    """The first bin has whatever comes first: here the right ones, or the wrong ones."""
    label = np.array([0, 0, 9, 9], np.int16)
    expected = {"rms_calibration_error": np.float64(math.sqrt(0.5) * abs(first - 1 / 200))}
    expected |= {"confidence": np.full(4, 1 / 200)}
    case = {"args": {"bin": 2}}, {"logits": np.zeros((4, 1000), np.float32), "label": label}, expected
    recorded = {"class_subsets": {"imagenet_a": list(range(200))}}
    run_topic(write_topic(tmp_path, "17_robustness", {"imagenet_a_subset": case}, recorded))


def test_segmentation_of_one_class_from_its_neighbours(tmp_path):
    given = {"train_features": np.ones((1, 4, 2)), "train_label": np.zeros((1, 4, 4), np.uint8)}
    given |= {"val_features": np.ones((1, 4, 2)), "val_label": np.zeros((1, 4, 4), np.uint8)}
    expected = {"label_hat": np.ones((1, 4, 1)), "prediction": np.zeros((1, 4, 4), np.uint8)}
    case = {"args": {}}, given, {**expected, "miou_direct": np.float64(1)}
    run_topic(write_topic(tmp_path, "18_in_context_segmentation", {"hummingbird_x": case}))


@pytest.mark.parametrize("middle", [0, 1])
def test_a_cut_at_a_patch_that_is_at_the_mean(middle, tmp_path):
    features = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    mask = np.array([[1, middle, 0]], np.uint8)
    expected = {"eigenvector": np.array([[1.0, 0.0, -1.0]]), "seed": np.int64(0), "mask": mask}
    expected |= {"box": np.array([0.0, 0, 16 * (1 + middle), 16]), "components": mask.astype(np.uint16)}
    case = {"args": {"dims": [1, 3], "tau": 0.5}}, {"features": features}, expected
    run_topic(write_topic(tmp_path, "19_unsupervised_discovery", {"tokencut_x": case}))


@pytest.mark.parametrize("value", [50.0, 100.0])
def test_equal_scores_within_an_image(value, tmp_path):
    """The right detection comes first or second."""
    boxes = [{"image_id": 1, "category_id": 1, "score": 0.5, "bbox": [x, 0, 10, 10]} for x in (0, 40)]
    annotation = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 10, 10]}
    gt = {"images": [{"id": 1}], "annotations": [annotation], "categories": [{"id": 1, "name": "cat"}]}
    content = {"gt": gt, "detections": boxes, "expected_voc": {"2012": {"AP50": value}}}
    (tmp_path / "12_voc_detection_ap").mkdir()
    (tmp_path / "12_voc_detection_ap" / "cases.json").write_text(json.dumps(content))
    run_topic(tmp_path / "12_voc_detection_ap")


def test_points_of_a_class_without_pairs(tmp_path):
    given = {"target_kps/0": np.zeros((2, 2)), "predicted_kps/0": np.array([[0.0, 5.0], [0.0, 0.0]])}
    given["max_box_side/0"] = np.float32(10)
    expected = {"pck@0.1/per_class": np.array([0.5, math.nan]), "pck@0.1/mean_of_classes": np.float64(0.5)}
    case = {"args": {"classes": ["cow", "yak"], "class_of_pair": ["cow"]}}, given, expected
    run_topic(write_topic(tmp_path, "15_correspondence_pck", {"spair_authors_x": case}))


def test_matches_in_units_that_the_names_of_the_results_say(tmp_path):
    """Both matches are 3.2 pixels off, a tenth of a patch."""
    grid = np.array([[[1.0, 0.0]], [[0.0, 1.0]]])
    given = {"features/0": grid, "features/1": grid, "size_wh": np.array([64, 32])}
    given["homography"] = np.array([[1, 0, 3.2], [0, 1, 0], [0, 0, 1.0]])
    expected = {"recall@0.05p": np.float64(0), "recall@0.2p": np.float64(1), "num_matches": np.float64(2)}
    run_topic(write_topic(tmp_path, "15_correspondence_pck", {"homography_x": ({"args": {}}, given, expected)}))


def test_a_wrong_value_is_still_wrong(tmp_path):
    rows = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    value, gradient = nt_xent(rows, 0.2)
    expected = {f"{p}/{key}": v for p in ("f32", "f64") for key, v in
                {"loss": np.float64(value * 1.01), "grad_embedding": gradient}.items()}  # fmt: skip
    case = {"args": {"temperature": 0.2}}, {"embedding": rows}, expected
    topic = write_topic(tmp_path, "01_losses", {"vissl_simclr_x": case})
    with pytest.raises(AssertionError, match="vissl_simclr_x: AssertionError"):
        run_topic(topic)


def dinov2_schedule(base, final, total, warmup, start, freeze):
    cosine = np.arange(total - warmup - freeze)
    cosine = final + 0.5 * (base - final) * (1 + np.cos(np.pi * cosine / len(cosine)))
    values = np.concatenate([np.zeros(freeze), np.linspace(start, base, warmup), cosine])
    return np.append(values, [final] * 3)  # what it gives after the end


@pytest.mark.parametrize(
    ("warmup", "freeze", "start"), [(10, 0, 0.0), (10, 5, 0.1), (0, 7, 0.0), (1, 2, 0.3), (0, 0, 0)]
)
def test_schedules_with_frozen_steps_and_any_warm_up(warmup, freeze, start, tmp_path):
    args = {"base_value": 0.5, "final_value": 0.01, "total_iters": 60, "warmup_iters": warmup,
            "start_warmup_value": start, "freeze_iters": freeze}  # fmt: skip
    wanted = dinov2_schedule(0.5, 0.01, 60, warmup, start, freeze)
    run_topic(
        write_topic(tmp_path, "02_schedules", {"dinov2_cosine_freeze": ({"args": args}, {}, {"schedule": wanted})})
    )


def test_schedules_with_other_names_grids_and_arguments(tmp_path):
    where = np.linspace(0, 1, 13)
    cases = {
        "linear_down": ({"args": {"name": "linear", "start_value": 3, "end_value": 1, "seed": 0}},
                        {"where": where}, {"value": 3 - 2 * where}),
        "layer_decay_half": ({"args": {"lr_decay": 0.5}, "callable": "LayerDecayScheduler(cosine(2,.5),lr_decay)"},
                             {"where": where}, {"value": 0.5 * (0.5 + 0.75 * (1 + np.cos(np.pi * where)))}),
        "solo_other": ({"args": {"warmup_epochs": 2, "max_epochs": 6, "warmup_start_lr": 0.1, "eta_min": 0.0},
                        "callable": "LinearWarmupCosineAnnealingLR (base lr 0.8), lr in effect at epoch i"},
                       {}, {"schedule": [0.1, 0.8, *(0.4 * (1 + math.cos(math.pi * i / 4)) for i in range(4))]}),
    }  # fmt: skip
    run_topic(write_topic(tmp_path, "02_schedules", cases))


def test_an_unknown_kind_of_schedule_fails(tmp_path):
    topic = write_topic(tmp_path, "02_schedules", {"sawtooth": ({"args": {"name": "sawtooth"}}, {}, {})})
    with pytest.raises(AssertionError, match="sawtooth: "):
        run_topic(topic)


def test_lars_with_other_parameters_and_fewer_steps(tmp_path):
    random = np.random.default_rng(0)
    shapes, lrs = {"embedding": (3, 2), "scale": (4,)}, [0.2, 0.1, 0.3]
    given = {f"p0/{name}": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    given |= {
        f"grad{i}/{name}": random.normal(size=s).astype(np.float32) for i in range(3) for name, s in shapes.items()
    }
    expected = {}
    for precision, dtype in (("f32", np.float32), ("f64", np.float64)):
        for name, shape in shapes.items():
            p, momentum = given[f"p0/{name}"].astype(np.float64), np.zeros(shape)
            for i, lr in enumerate(lrs):
                step = given[f"grad{i}/{name}"].astype(np.float64)
                if len(shape) > 1:
                    step = step + 0.01 * p
                    step = step * 0.002 * np.linalg.norm(p) / np.linalg.norm(step)
                momentum = 0.8 * momentum + step
                p = p - lr * momentum
                expected |= {f"{precision}/p{i + 1}/{name}": p.astype(dtype)}
    args = {"momentum": 0.8, "weight_decay": 0.01, "eta": 0.002}
    given["lr"] = np.array(lrs)
    run_topic(write_topic(tmp_path, "03_larc_lars", {"dino_lars_small": ({"args": args}, given, expected)}))


def test_votes_that_overflow(tmp_path):
    """VISSL's votes without L2 norm: exp of large similarities is infinite, and its figures are no figures."""
    random = np.random.default_rng(0)
    given = {"train_x": 100 * random.normal(size=(30, 4)), "train_y": np.arange(30) % 3}
    given |= {"test_x": 100 * random.normal(size=(9, 4)), "test_y": np.arange(9) % 4}  # a class that train has not
    given = {key: x.astype(np.float32) if key.endswith("x") else x for key, x in given.items()}
    votes = np.full((9, 3), np.nan, np.float32)
    wanted = {"l20_s0.07_k5/probs": votes, "l20_s0.07_k5/top1": np.float64(0), "l20_s0.07_k5/top5": np.float64(0)}
    meta = {"args": {"SIGMA": [0.07], "TOPK": [5], "L2_NORM_FEATS": [False]}}
    run_topic(write_topic(tmp_path, "05_knn", {"vissl_overflow": (meta, given, wanted)}))


@pytest.mark.parametrize("depth", [18, pytest.param(101, marks=pytest.mark.long)])
def test_features_of_other_depths_sizes_and_pools(depth, tmp_path):
    import torch
    import torchvision
    from golden_models import recipe

    name, seed, size = f"resnet{depth}", 5, 64
    network = getattr(torchvision.models, name)()
    network.fc = torch.nn.Identity()
    for key, tensor in network.state_dict().items():
        tensor.copy_(torch.from_numpy(np.asarray(recipe(key, tuple(tensor.shape), "v:"))))
    taken = {}
    for layer, module in (("res3", network.layer2), ("res5", network.layer4), ("res5avg", network.avgpool)):
        module.register_forward_hook(lambda _, __, output, layer=layer: taken.update({layer: output.detach()}))
    image = np.random.RandomState(seed).standard_normal((2, 3, size, size)).astype(np.float32)
    with torch.inference_mode():
        network.eval()(torch.from_numpy(image))
    taken["res3"] = torch.nn.functional.avg_pool2d(taken["res3"], 3, stride=2, padding=1)
    expected = {}
    for layer, x in taken.items():
        values = x.flatten(1).double().numpy()
        expected |= {f"{layer}/shape": np.array(x.shape), f"{layer}/sum": values.sum(),
                     f"{layer}/abs_mean": np.abs(values).mean(), f"{layer}/first64": values[:, :64]}  # fmt: skip
    pools = [["res5avg", "['Identity', []]"], ["res3", "['AvgPool2d', [[3, 3], 2, 1]]"], ["res5", "['Identity', []]"]]
    args = {"salt": "v:", "size": size, "pool_ops": pools, "note": "made"}
    case = ({"args": args}, {"image_seed": np.array(seed)}, expected)
    run_topic(write_topic(tmp_path, "11_models_params", {f"{name}_features_{size}": case}))


def test_parameter_groups_of_another_network_and_heads(tmp_path):
    import torchvision

    names = [n for n, _ in torchvision.models.resnet18().named_parameters() if not n.startswith("fc.")]
    backbone = [f"trunk._feature_blocks.{name}" for name in names]
    norms = [name for name in backbone if ".bn" in name or "downsample.1" in name]
    head = ["heads.0.clf.0.weight", "heads.0.clf.0.bias", "heads.0.clf.3.weight", "heads.0.clf.3.bias"]
    groups = [
        {"lr": "LR", "names": [n for n in backbone if n not in norms], "weight_decay": "0.01"},
        {"lr": "LR", "names": norms, "weight_decay": "0.0"},
        {"lr": "LR_HEAD", "names": head, "weight_decay": "0.02"},
        {"lr": "LR_HEAD", "names": ["heads.0.clf.1.weight", "heads.0.clf.1.bias"], "weight_decay": "0.0"},
    ]
    optimizer = {
        "weight_decay": 0.01,
        "regularize_bn": False,
        "regularize_bias": True,
        "non_regularized_parameters": [],
    }
    recorded = {"param_groups/other": {"groups": groups, "optimizer": optimizer, "head_wd": 0.02}}
    run_topic(write_topic(tmp_path, "11_models_params", {}, recorded))


def test_label_maps_with_values_outside_the_classes_an_ignored_class_and_another_beta(tmp_path):
    """The references drop what is outside from its area and keep the other one; NaN is replaced."""
    random = np.random.default_rng(0)
    labels, predictions = random.choice([0, 1, 2, 5, 8], (3, 9, 9)), random.integers(0, 7, (3, 9, 9))
    counted, n = labels != 0, 6
    both, predicted, labelled = (
        np.array([((a == c) & (b == c) & counted).sum() for c in range(n)])
        for a, b in ((labels, predictions), (predictions, predictions), (labels, labels))
    )
    union = predicted + labelled - both
    with np.errstate(divide="ignore", invalid="ignore"):
        iou, p, r = both / union, both / predicted, both / labelled
        f = 5 * p * r / (4 * p + r)
    expected = {f"area_{k}": v for k, v in
                {"intersect": both, "union": union, "pred": predicted, "label": labelled}.items()}  # fmt: skip
    expected |= {f"mmseg/{k}": np.nan_to_num(v, nan=0.5) for k, v in {"IoU": iou, "Fscore": f, "Recall": r}.items()}
    expected |= {"mmseg_rounded/mFscore": round(100 * np.nan_to_num(f, nan=0.5).mean(), 2)}
    given = {f"pred/{i}": x.astype(np.uint8) for i, x in enumerate(predictions)}
    given |= {f"label/{i}": x.astype(np.uint8) for i, x in enumerate(labels)}
    args = {"num_classes": n, "ignore_index": 0, "reduce_zero_label": False, "beta": 2, "nan_to_num": 0.5}
    run_topic(write_topic(tmp_path, "13_segmentation_metrics", {"iou_other": ({"args": args}, given, expected)}))


def test_panoptic_quality_of_things_alone(tmp_path):
    """panopticapi divides by 0 for stuff, and of two crowds of a class keeps the last."""
    ids = np.zeros((4, 8), np.uint8)
    ids[:, 2:4], ids[:, 4:6], ids[:, 6:] = 1, 2, 3
    given = {"gt_ids/0": ids, "gt_id_values/0": np.array([0, 7, 8, 9]), "pred_ids/0": ids,
             "pred_id_values/0": np.array([0, 4, 5, 6]), "pred_segments/0": np.array([[4, 2], [5, 2], [6, 2]]),
             "gt_segments/0": np.array([[7, 2, 0], [8, 2, 1], [9, 2, 1]])}  # fmt: skip
    value = {"pq": 1 / 1.5, "sq": 1.0, "rq": 1 / 1.5}
    recorded = {"all": {**value, "n": 1}, "things": {**value, "n": 1}, "stuff": {"error": "ZeroDivisionError"}}
    recorded["per_class"] = {"2": {**value, "tp": 1, "fp": 1, "fn": 0}}
    meta = {"args": {"isthing": {"2": 1, "5": 0}}}
    run_topic(write_topic(tmp_path, "13_segmentation_metrics", {"pq_x": (meta, given, {})}, {"pq_x": recorded}))


def test_depth_of_an_image_without_depth_and_of_one_with_a_negative_prediction(tmp_path):
    target = np.array([[[1000, 2000, 4000]], [[0, 0, 0]]], np.uint16)
    prediction = np.array([[[2.0, 2.0, 4.0]], [[1.0, 1.0, 1.0]]], np.float32)
    rmse = math.sqrt(1 / 3)
    expected = {"bts/rms": np.array([rmse, math.nan]), "toolbox/rmse": np.float64(rmse), "visbench/rmse": rmse / 2,
                "probe3d/rmse/0": rmse, "probe3d/rmse/1": 0.0, "dinov3_FULL/silog": 50 * math.sqrt(2) / 3 * math.log(2),
                "dinov3_FULL/a1": np.float64(2 / 3)}  # fmt: skip
    args = {"depth_scale": 1000, "min_depth": 0.001, "max_depth": 10.0, "crop": "none"}
    given = {f"gt_mm/{i}": x for i, x in enumerate(target)} | {f"pred_low/{i}": x for i, x in enumerate(prediction)}
    negative = given | {"pred_low/0": np.array([[-1.0, 2.0, 4.0]], np.float32)}
    clipped = {"bts/rms": np.array([math.sqrt((1 - 0.001) ** 2 / 3), math.nan]), "toolbox/a1": np.float64(1.0)}
    cases = {"by_hand_holes": ({"args": args}, given, expected), "by_hand_minus": ({"args": args}, negative, clipped)}
    run_topic(write_topic(tmp_path, "14_depth_normals_metrics", cases))


def test_normals_without_length(tmp_path):
    truth = np.zeros((2, 3, 2, 2), np.float32)
    truth[:, 2] = 1
    found = truth.copy()
    found[0, :, 0, 0], found[0, :, 0, 1] = 0, (0, 1, 0)
    mask = np.ones((2, 1, 2, 2), bool)
    mask[1] = False
    expected = {"pooled/mean": 45.0, "pooled/median": 45.0, "pooled/a5": 50.0, "angular_loss": math.nan,
                "angular_loss_uncertainty": math.nan, "probe3d_per_image/d1": np.array([0.5, 0.0])}  # fmt: skip
    given = {"pred": found, "gt": truth, "mask": mask, "kappa": np.zeros((2, 1, 2, 2), np.float32)}
    expected = {key: np.asarray(value) for key, value in expected.items()}
    run_topic(write_topic(tmp_path, "14_depth_normals_metrics", {"normals_x": ({"args": {}}, given, expected)}))


def test_video_masks_with_void_pixels(tmp_path):
    truth, found = np.random.default_rng(0).integers(0, 3, (2, 5, 12, 14)).astype(np.uint8)
    void = np.zeros(truth.shape, bool)
    void[:, :4] = True
    expected = {}
    for name, radius in (("J", None), ("F", 1)):
        each = np.zeros((2, 5))
        for k, t in np.ndindex(2, 5):
            a, b = ((masks[t] == k + 1) & ~void[t] for masks in (truth, found))
            each[k, t] = (a & b).sum() / (a | b).sum() if radius is None else f_of_boundaries(a, b)
        recall, decay = (each > 0.5).mean(1), each[:, :2].mean(1) - each[:, 3:].mean(1)
        expected |= {name: each, f"{name}_mean_recall_decay": np.stack([each.mean(1), recall, decay], axis=1)}
    meta = {"args": {"objects": 2, "bound_th": 1, "void": True}}
    run_topic(
        write_topic(
            tmp_path, "16_video_segmentation", {"jf_void": (meta, {"gt": truth, "pred": found, "void": void}, expected)}
        )
    )


def f_of_boundaries(a, b):
    """The boundary measure with a tolerance of one pixel to the sides."""
    lines = []
    for mask in (a, b):
        padded = np.pad(mask, ((0, 1), (0, 1)), mode="edge")
        others = (padded[1:, :-1], padded[:-1, 1:], padded[1:, 1:])
        line = np.any([mask != other for other in others], axis=0)
        lines.append(line)
    near = []
    for line in lines:
        wide = np.pad(line, 1)
        near.append(wide[1:-1, 1:-1] | wide[:-2, 1:-1] | wide[2:, 1:-1] | wide[1:-1, :-2] | wide[1:-1, 2:])
    precision, recall = (lines[1] & near[0]).sum() / lines[1].sum(), (lines[0] & near[1]).sum() / lines[0].sum()
    return 2 * precision * recall / (precision + recall)


def test_a_weighted_cut_on_another_grid(tmp_path):
    random = np.random.default_rng(3)
    mask = np.zeros((7, 9), bool)
    mask[1:4, 2:6] = True
    means = random.normal(size=(2, 6))
    features = means[mask.ravel().astype(int)] + 0.05 * random.normal(size=(63, 6))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    edges = np.where(unit @ unit.T > 0.3, unit @ unit.T, 1e-4)
    degree = np.diag(edges.sum(1))
    values, vectors = np.linalg.eig(np.linalg.inv(degree) @ (degree - edges))
    vector = vectors[:, np.argsort(values.real)[1]].real
    seed = np.abs(vector).argmax()
    vector = vector * np.sign(vector[seed])
    assert mask.ravel()[seed]
    expected = {"box": np.array([16.0, 8, 48, 32]), "mask": mask.astype(np.uint8), "seed": seed,
                "eigenvector": vector.reshape(7, 9), "components": mask.astype(np.uint16)}  # fmt: skip
    args = {"dims": [7, 9], "patch": 8, "image_hw": [50, 70], "tau": 0.3, "eps": 1e-4, "weighted": True}
    given = {"features": features.astype(np.float32)}
    run_topic(
        write_topic(tmp_path, "19_unsupervised_discovery", {"tokencut_weighted": ({"args": args}, given, expected)})
    )
