import pytest

from sslbench.backbones.build import build
from sslbench.errors import UsageError
from sslbench.evaluation import Request, RunSettings, make_task, prepare
from sslbench.evaluation.preparation import with_preprocessing


def test_a_protocol_on_one_part_leaves_both_to_the_others():
    tasks = make_task("geometry", {"part": "test"}), make_task("knn", {})
    request = Request("pixels:8", "sklearn:digits", tasks=tasks, limit=100)
    data = prepare(request, RunSettings(device="cpu", workers=0)).data
    assert not set(data.train.ids) & set(data.test.ids)


@pytest.mark.parametrize("resize", [32, [32, 500]])
def test_a_resize_that_leaves_most_of_the_crop_black_is_refused(resize):
    with pytest.raises(UsageError, match=r"do not fill the centre crop of 224x224") as caught:
        with_preprocessing(build("resnet18w0.25"), {"resize": resize})
    assert "--crop none" in str(caught.value)


@pytest.mark.parametrize("values", [{"resize": 32, "crop": None}, {"resize": 32, "crop": [224, 224]}, {"resize": 224}])
def test_a_crop_that_was_asked_for_and_one_that_is_filled_are_taken(values):
    used = with_preprocessing(build("resnet18w0.25"), values)[0].preprocessing
    assert (used.resize, used.crop) == (values["resize"], tuple(values["crop"]) if values.get("crop") else used.crop)


@pytest.mark.parametrize("values", [{"resize": 10**400}, {"crop": [10**400, 8]}, {"resize": 16_385}, {"crop": [0, 8]}])
def test_sizes_that_no_image_has_are_refused(values):
    with pytest.raises(UsageError, match="sizes should be from 1 to 16,384 pixels"):
        with_preprocessing(build("resnet18w0.25"), values)
