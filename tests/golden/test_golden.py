"""Our results against those recorded from the reference implementations.

Runs every case of every topic in `cases/` beside this file and in the folder that $SSLBENCH_GOLDEN names. One test runs
a topic and names all cases that differ. A case that no runner knows fails, unless it stands in NOT_BUILT_YET.
"""

from pathlib import Path

import pytest
from golden_cases import cases_of, find_cases, is_not_built, roots, run_topic, runners_of, topics

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


@pytest.mark.parametrize(
    "topic", [pytest.param(t, id=f"{root.name}:{t.name}") for root in roots() for t in topics(root)]
)
def test_golden(topic: Path) -> None:
    run_topic(topic)


def test_the_shipped_cases_are_all_there() -> None:
    assert {topic.name: len(cases_of(topic)) for topic in topics(roots()[0])} == SHIPPED


def test_what_is_built_does_not_stand_in_the_list() -> None:
    cases = [case for root in roots() for case in find_cases(root)]
    assert [case.id for case in cases if is_not_built(case) and runners_of(case)] == []
