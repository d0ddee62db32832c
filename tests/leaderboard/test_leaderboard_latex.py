"""The LaTeX table: its structure, since no LaTeX is needed to run these tests."""

import re

import numpy as np
import pytest
from helpers.record_trees import make, write
from hypothesis import given
from hypothesis import strategies as st

from sslbench.errors import ResultError
from sslbench.leaderboard import Published, table, to_latex, with_published
from sslbench.leaderboard.tables import escape, latex
from sslbench.results import BenchmarkUsed, MetricValue

USED = BenchmarkUsed(name="knn/my_data", version=1, sha256="")


def body(text):
    """The cells of the rows between top and bottom rule, without the heading."""
    inside = re.search(r"\\midrule\n(.*)\\bottomrule", text, re.DOTALL)[1]
    lines = [line for line in inside.splitlines() if line != "\\midrule"]
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in lines]


def test_the_table_is_booktabs_with_one_column_for_each_of_ours():
    text = latex(table([make("a_1", 80.0, benchmark=USED), make("b", 70.0, "svm", layer="res4")]))
    assert text.startswith("% \\usepackage{booktabs}\n\\begin{tabular}{llrr}\n\\toprule\n")
    assert r"weights & layer & knn/my\_data top1 & svm/photos top1 \\" in text
    assert [len(row) for row in body(text)] == [4, 4]
    assert body(text)[0] == ["a\\_1", "avgpool", r"\textbf{80.00} {\scriptsize[78.00, 83.00]}", ""]
    for name in ("toprule", "bottomrule", "begin{tabular}", "end{tabular}"):
        assert text.count(f"\\{name}") == 1


def test_ties_are_bold_too_and_intervals_are_small(tmp_path):
    right = np.arange(200) % 5 > 0
    near, far = right.copy(), right & (np.arange(200) % 7 > 0)
    near[:1] = ~near[:1]
    board = table([write(make(n), r, tmp_path) for n, r in (("best", right), ("near", near), ("far", far))])
    bold = {row[0]: row[1].startswith(r"\textbf{") for row in body(latex(board))}
    assert sorted(bold.values()) == [False, True, True] and not bold["far"]


def test_floors_and_published_rows_are_set_apart_by_a_rule():
    ours = table([make("a", 80.0, benchmark=USED, floors={"chance": {"top1": 33.0}})])
    row = Published("knn/my_data", "MoCo", "resnet50", "top1", 85.0, "their kNN", "Paper", "table 1")
    text = latex(with_published(ours, [row]))
    assert text.count("\\midrule") == 3
    assert [cells[0] for cells in body(text)] == ["a", "MoCo (resnet50)$^{1}$", "chance"]
    assert "\\par $^{1}$ published: their kNN." in text and body(text)[1][1] == "85.00"


def test_flags_are_numbers_and_a_hole_and_a_value_that_cannot_be_computed_differ():
    text = latex(table([make("a", None, converged=False), make("b", 70.0), make("b", 60.0, "svm")]))
    rows = {cells[0]: cells for cells in body(text)}
    assert rows["a$^{1}$"][1:] == ["n/a", ""] and "$^{1}$ not converged" in text


@given(st.text())
def test_no_character_is_a_command(name):
    escaped = escape(name)
    without = re.sub(r"\\text[a-z]+\{\}|\\ldots\{\}|\$\\(pm|cdot)\$|\\[&%$#_{}]", "", escaped)
    assert not set(without) & set("\\&%$#_{}~^<>|")


def test_it_is_written_whole_or_refused(tmp_path):
    board = table([make("a", metrics={"top1": MetricValue(value=80.125)})])
    to_latex(board, tmp_path / "new" / "b.tex")
    assert "80.12" in (tmp_path / "new" / "b.tex").read_text() and "pm" not in body(latex(board))[0][1]
    with pytest.raises(ResultError, match="cannot write"):
        to_latex(board, tmp_path / "new")
