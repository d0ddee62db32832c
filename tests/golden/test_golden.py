"""Our results against those recorded from the reference implementations.

Runs every case of every topic in `cases/` beside this file and in the folder that $SSLBENCH_GOLDEN names. A case is
matched to a runner by its id. One that matches none fails, unless it stands in NOT_BUILT_YET. That list only shrinks.
"""

from collections.abc import Callable
from fnmatch import fnmatchcase

import golden_correspondence
import golden_depth
import golden_detection
import golden_discovery
import golden_in_context
import golden_knn
import golden_losses
import golden_losses_distillation
import golden_losses_distributed
import golden_low_shot
import golden_models
import golden_optimizers
import golden_retrieval
import golden_robustness
import golden_schedules
import golden_segmentation
import golden_svm_ap
import golden_transforms
import golden_video
import golden_weights
import pytest
from golden_cases import Case, find_cases, roots

SCHEDULES = ("constant", "cosine", "linear", "multistep", "step", "polynomial", "composite", "cwr", "inverse_sqrt")
SCHEDULES_OF_OTHERS = ("layer_decay", "dino_cosine", "dinov2_cosine", "lightly_", "solo_")

RUNNERS: dict[str, Callable[[Case], None]] = {
    **{f"01_losses/{kind}": run for kind, run in golden_losses.PATTERNS.items()},
    **{f"01_losses/{kind}": run for kind, run in golden_losses_distillation.PATTERNS.items()},
    "01_losses/vissl_bce_multi_*": golden_models.heads_of_several_labels,
    **{f"01b_losses_distributed/{kind}": run for kind, run in golden_losses_distributed.PATTERNS.items()},
    **{f"01b_losses_distributed/{kind}": run for kind, run in golden_losses_distillation.PATTERNS_2_PROCESSES.items()},
    **{f"02_schedules/{kind}*": golden_schedules.recorded for kind in (*SCHEDULES, *SCHEDULES_OF_OTHERS)},
    "02_schedules/autoscale/*": golden_schedules.auto_scaling,
    "03_larc_lars/*": golden_optimizers.trajectory,
    "04_svm_ap/ap_*": golden_svm_ap.average_precision,
    "04_svm_ap/meter_*": golden_svm_ap.mean_average_precision,
    "04_svm_ap/svm_*": golden_svm_ap.linear_svm,
    "05_knn/vissl_*": golden_knn.classification,
    "05_knn/dino_*": golden_knn.classification,
    "05_knn/dinov2_*": golden_knn.classification,
    "05_knn/solo_*": golden_knn.classification,
    "05_knn/lightly_*": golden_knn.classification,
    "08_weight_conversion/vissl/rn*": golden_weights.vissl,
    "08_weight_conversion/vissl/model_state_dict_style*": golden_weights.vissl,
    "08_weight_conversion/vissl/feature_extractor_prefix*": golden_weights.linear_evaluation,
    "08_weight_conversion/vissl/dino_teacher*": golden_weights.dino_teacher,
    "08_weight_conversion/caffe2_resnet*/*": golden_weights.caffe2_resnet,
    "08_weight_conversion/caffe2_alexnet/*": golden_weights.caffe2_alexnet,
    "08_weight_conversion/alexnet_*": golden_weights.alexnet,
    "08_weight_conversion/moco_to_detectron2*": golden_weights.moco,
    "08_weight_conversion/detectron2_align/vissl_*": golden_weights.detectron2_names,
    "08_weight_conversion/detectron2_align/convert_basic_c2_names": golden_weights.caffe2_names,
    "08_weight_conversion/helpers": golden_weights.helpers,
    "09_transforms/patches_*": golden_transforms.cut,
    "09_transforms/shuffle_*": golden_transforms.shuffle,
    "09_transforms/rotate_*": golden_transforms.rotate,
    "09_transforms/lab_*": golden_transforms.lab,
    "09_transforms/jigsaw_N*": golden_transforms.permutations,
    "09_transforms/jigsaw_error_*": golden_transforms.too_many_permutations,
    **golden_low_shot.PATTERNS,
    **golden_retrieval.PATTERNS,
    **golden_robustness.PATTERNS,
    **golden_correspondence.PATTERNS,
    **golden_video.PATTERNS,
    **golden_in_context.PATTERNS,
    **golden_discovery.PATTERNS,
    "11_models_params/resnet*_features*": golden_models.resnet_features,
    "11_models_params/linear_heads/*": golden_models.linear_heads,
    "11_models_params/param_groups/*": golden_optimizers.groups,
    "12_voc_detection_ap/*": golden_detection.average_precision,
    **golden_segmentation.PATTERNS,
    **golden_depth.PATTERNS,
}

NOT_BUILT_YET: tuple[str, ...] = ()

# Shipped beside this file, so that forgetting to copy them cannot pass for success.
SHIPPED = {
    "01_losses": 21,
    "01b_losses_distributed": 9,
    "02_schedules": 106,
    "03_larc_lars": 5,
    "04_svm_ap": 41,
    "05_knn": 11,
    "07_fewshot_lsr": 1,
    "08_weight_conversion": 10,
    "09_transforms": 16,
    "10_low_shot": 7,
    "11_models_params": 7,
    "12_voc_detection_ap": 1,
    "13_segmentation_metrics": 4,
    "14_depth_normals_metrics": 2,
}


def runners_of(case: str) -> list[str]:
    return [pattern for pattern in RUNNERS if fnmatchcase(case, pattern)]


def is_not_built(case: str) -> bool:
    return any(fnmatchcase(case, pattern) for pattern in NOT_BUILT_YET)


def parameters() -> list[object]:
    ids = [(case, f"{root.name}:{case.id}") for root in roots() for case in find_cases(root)]
    return [pytest.param(case, id=name) for case, name in ids]


@pytest.mark.parametrize("case", parameters())
def test_golden(case: Case) -> None:
    found = runners_of(case.id)
    if not found and is_not_built(case.id):
        pytest.skip("not built yet")
    assert len(found) == 1, f"{case.id}: {len(found)} runners know this kind of case; it is not in NOT_BUILT_YET either"
    RUNNERS[found[0]](case)


def test_the_shipped_cases_are_all_there() -> None:
    counts: dict[str, int] = {}
    for case in find_cases(roots()[0]):
        counts[case.topic.name] = counts.get(case.topic.name, 0) + 1
    assert counts == SHIPPED


def test_what_is_built_does_not_stand_in_the_list() -> None:
    cases = [case.id for root in roots() for case in find_cases(root)]
    assert [case for case in cases if is_not_built(case) and runners_of(case)] == []
