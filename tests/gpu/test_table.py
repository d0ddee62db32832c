"""Rows of the table of `make bench-gpu`, in tiny sizes on the processor: none fails from a slip on the day of a GPU."""

import importlib.util
import sys
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("gpu_table", Path(__file__).with_name("table.py"))
table = importlib.util.module_from_spec(SPEC)
# Dataclasses look their module up.
sys.modules["gpu_table"] = table
SPEC.loader.exec_module(table)
IN_PROCESS = [each.__name__ for each in table.BENCHMARKS if each is not table.commands]


def test_every_row_runs_in_tiny_sizes(capsys):
    assert table.main(["--smoke", "--only", *IN_PROCESS]) == 0
    out = capsys.readouterr().out
    for work in (
        "knn",
        "linear",
        "svm",
        "low-shot",
        "features of tensors",
        "JPEGs",
        "SimCLR",
        "dino",
        "mae",
        "Faster R-CNN",
    ):
        assert work in out
    assert out.rstrip().endswith("not shown: commands: not chosen")


def test_rows_without_time_or_with_an_error_are_not_shown(monkeypatch, capsys):
    assert table.main(["--smoke", "--seconds", "-1"]) == 0
    assert "not shown: encoding: -1 s were over" in capsys.readouterr().out
    monkeypatch.setattr(table, "product_rate", lambda: 1 / 0)
    assert table.main(["--smoke", "--only", "neighbours"]) == 1
    assert "not shown: neighbours: ZeroDivisionError" in capsys.readouterr().out


def test_a_benchmark_ends_with_the_row_after_which_the_time_is_over(monkeypatch):
    def benchmark(sizes, folder):
        yield table.Row("first", 1.0)
        raise AssertionError("a second row was begun")

    monkeypatch.setattr(table, "BENCHMARKS", (benchmark,))
    monkeypatch.setattr(table.time, "perf_counter", iter([0.0, 1.0, 5.0, 5.0]).__next__)
    rows, missing = table.measured(table.SMOKE, 3.0, ())
    assert [row.work for row in rows] == ["first"] and missing == ["benchmark after first: 3 s were over"]


def test_the_best_row_is_the_last_one():
    rows = [table.Row("good", 1.0, 2.0, 1.0), table.Row("slow", 2.0, 1.0, 1.0), table.Row("late", 20.0, most=10.0)]
    assert [row.work for row in sorted(rows, key=lambda row: row.score)] == ["slow", "late", "good"]
    assert rows[0].cells()[3:6] == ("2.00", ">= 1", "yes")


def test_real_sizes_need_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr(table, "DEVICE", table.torch.device("cpu"))
    with pytest.raises(SystemExit):
        table.main([])
    assert "no CUDA GPU is here" in capsys.readouterr().err
