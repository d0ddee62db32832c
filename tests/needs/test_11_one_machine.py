"""One command without flags runs on one machine: no launcher, no process group, an estimate first, a first look."""

from pathlib import Path

import pytest

from sslbench.results.records import read_tree

EVAL = ("eval", "knn", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")


def test_no_flag_no_launcher_and_no_process_group(world, sslbench, monkeypatch):
    """Without a GPU and without a variable of a launcher."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("torch.distributed.init_process_group", lambda *_, **__: pytest.fail("a group was made"))
    code, _, err = sslbench(*EVAL, "--no-floors")
    assert code == 0, err
    assert {record.protocol.name for record in read_tree(Path("results"))} == {"knn"}


def test_time_memory_and_disk_are_told_before_anything_is_decoded(world, sslbench):
    code, out, err = sslbench(*EVAL, "--dry-run")
    assert code == 0, err
    estimate = out[out.index("estimate, measured on this machine") :]
    assert "extraction: 51 images" in estimate and "of memory" in estimate and "in the feature store" in estimate


def test_a_first_look_takes_a_few_images_and_says_so(world, sslbench):
    code, _, err = sslbench(*EVAL, "--limit", "6", "--no-floors")
    assert code == 0 and "limited to 6" in err
    [record] = read_tree(Path("results"))
    assert (record.data.train.n_used, record.data.test.n_used) == (6, 6)
