"""An option that is misspelt, unknown or without effect is an error with the nearest name; all used is shown."""

from pathlib import Path

import pytest

EVAL = ("eval", "knn", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--epochz", "5"), "--epochz"),
        (("--see", "5"), "--seed"),
        (("--normalize", "False"), "--normalize"),
        (("kk=5",), "Did you mean 'k'"),
        (("--features", "x.npy"), "--features"),
        (("--test-features", "x.npy"), "--test-features"),
    ],
)
def test_options_that_nothing_reads_are_refused(world, sslbench, words, says):
    code, out, err = sslbench(*EVAL, *words)
    assert (code, out) == (2, "") and says in err and "Traceback" not in err
    assert not Path("results").exists()


def test_an_unknown_key_of_a_file_is_refused_with_the_nearest(world, sslbench):
    Path("request.yaml").write_text("version: 1\nweights: w.pth\ndatta: photos\ntasks:\n- protocol: knn\n")
    code, out, err = sslbench("run", "request.yaml")
    assert code != 0 and out == "" and "datta" in err and "'data'" in err


def test_a_dry_run_shows_every_setting_with_its_origin_on_a_page(world, sslbench):
    code, out, err = sslbench(*EVAL, "k=3", "--dry-run", "--no-estimate")
    assert code == 0, err
    assert len(out.splitlines()) <= 40
    [line] = [line for line in out.splitlines() if line.split()[:1] == ["k"] or line.strip().startswith("k ")]
    assert "3" in line and not Path("results").exists()


def test_a_record_runs_the_experiment_again(world, sslbench):
    code, _, err = sslbench(*EVAL, "k=3", "--no-floors", "--workers", "0")
    assert code == 0, err
    [record] = Path("results").rglob("*.json")
    before = record.read_text()
    code, _, err = sslbench("run", record, "--trust-code", "--out", "again")
    assert code == 0, err
    [again] = Path("again").rglob("*.json")
    assert again.name == record.name and again.read_text() != before, "made again, under the same id"
