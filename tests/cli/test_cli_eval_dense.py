"""Protocols on places in images from end to end, as a user runs them."""

from pathlib import Path

import pytest

NET = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--layers", "conv2")
SHORT = ("size=32", "crop=[32,32]", "window=null", "steps=20", "warmup_steps=2", "lr=[0.001]")


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("discovery", "--data", "kwcoco:shapes8-64", "method=lost"), "corloc"),
        (("correspondence", "--data", "homography:photos/test", "size=32"), "match_recall@5px"),
        (("segmentation", "--data", "kwcoco:shapes16-64", *SHORT), "mIoU"),
    ],
)
def test_plan_record_and_picture(words, value, world, sslbench):
    code, plan, err = sslbench("eval", *words, *NET, "--dry-run")
    assert code == 0, err
    of_images = plan.partition("preprocessing\n")[2].partition("layers\n")[0]
    assert "mean" in of_images and not {"resize", "crop", "squash", "scales"} & set(of_images.split())
    assert not (world / "results").exists()

    code, out, err = sslbench("eval", *words, *NET)
    assert code == 0, err
    from sslbench.results import records as stored

    (record,) = [each for each in stored.read_tree(Path("results")) if each.weights.name == "w.pth"]
    assert record.metrics[value].low <= record.metrics[value].value <= record.metrics[value].high
    assert {"mean", "std", "origin"} <= set(record.preprocessing)
    assert not {"resize", "crop", "squash", "resized_side", "scales"} & set(record.preprocessing)
    assert "pixels" in record.floors and value in out

    assert stored.picture_path(record).is_file() == (words[0] != "correspondence")
    code, _, err = sslbench("show", record.file, "--out", "seen")
    if words[0] == "correspondence":
        assert code == 1 and "no picture lies beside it" in err
    else:
        assert code == 0 and Path("seen/index.html").is_file() and len(list(Path("seen").glob("*.png"))) == 1

    code, _, err = sslbench("eval", *words, *NET, "--resize", "48")
    assert code == 2 and "--resize has no effect" in err
