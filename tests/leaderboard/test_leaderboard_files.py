"""The board as files: numbers that a program can read, pages that need nothing else."""

import html.parser
import io
import itertools
import re

import numpy as np
import pandas
import pytest
from helpers.record_trees import make
from rich.console import Console

from sslbench.errors import ResultError
from sslbench.leaderboard import table, to_csv, to_html, to_latex, to_markdown, to_rich
from sslbench.leaderboard.tables import markdown
from sslbench.results import BenchmarkUsed, MetricValue

FLOORS = {"chance": {"top1": 33.333333}, "untrained": {"top1": 40.0}}


@pytest.fixture
def board():
    return table(
        [
            make('a|<b>, "c".torch', 1 / 3, floors=FLOORS),
            make("großes-netz", 1234.5678901, layer="res4", converged=False),
            make("großes-netz", 70, "svm", layer="res4"),
            make("zero", 0.0, benchmark=BenchmarkUsed(name="knn/<i>", version=2, sha256="", modified=True)),
        ]
    )


def test_the_wide_csv_holds_numbers_and_holes(board, tmp_path):
    to_csv(board, tmp_path / "new" / "board.csv")
    text = (tmp_path / "new" / "board.csv").read_text(encoding="utf-8")
    assert "%" not in text and "1,234" not in text and "1234.56789" in text
    frame = pandas.read_csv(tmp_path / "new" / "board.csv", keep_default_na=True)
    assert list(frame.columns) == [
        *("weights", "backbone", "layer", "preprocessing", "precision"),
        *("knn/<i>", "svm/photos", "flags"),
    ]
    assert frame["knn/<i>"].dtype == frame["svm/photos"].dtype == np.float64
    assert list(frame["weights"]) == ["großes-netz", 'a|<b>, "c".torch', "zero", "chance", "resnet50 untrained"]
    assert frame["knn/<i>"].tolist() == pytest.approx([1234.56789, 1 / 3, 0, 33.333333, 40], abs=1e-6)
    assert frame["svm/photos"].isna().tolist() == [False, True, True, True, True]
    assert frame["flags"].fillna("").tolist()[0] == "not converged: knn/<i>"
    assert frame["flags"].fillna("").tolist()[3:] == ["floor", "floor"]


def test_the_long_csv_has_one_row_per_metric_with_intervals(board, tmp_path):
    to_csv(board, tmp_path / "long.csv", form="long")
    frame = pandas.read_csv(tmp_path / "long.csv")
    numeric = ["value", "low", "high", "n", "shown", "protocol_version", "n_train", "modified", "converged"]
    assert all(frame[name].dtype.kind in "if" for name in numeric)
    assert not frame.duplicated(["weights", "layer", "column", "metric"]).any()
    row = frame[(frame.weights == "zero") & (frame.metric == "top1")].iloc[0]
    assert (row.value, row.low, row.high, row.benchmark, row.modified, row.kind) == (0, -2, 3, "knn/<i>", 1, "result")
    assert row.settings == '{"k":[20],"temperature":0.07}' and row.test_fingerprint == "3f2a" * 8 and row.n_train == 800
    assert set(frame[frame.kind == "floor"].weights) == {"chance", "resnet50 untrained"}
    assert frame[frame.shown == 1].metric.eq("top1").all() and {"top1", "balanced_accuracy"} == set(frame.metric)


def test_the_files_do_not_depend_on_the_order_of_the_records(tmp_path):
    results = [make(n, 50 + i, p) for i, (n, p) in enumerate(itertools.product("abc", ("knn", "svm")))]
    for form in ("wide", "long"):
        written = set()
        for order in itertools.islice(itertools.permutations(results), 0, 720, 97):
            to_csv(table(order), tmp_path / "board.csv", form=form)
            written.add((tmp_path / "board.csv").read_bytes())
        assert len(written) == 1
    assert b"\r" not in next(iter(written))


def test_an_empty_board_is_a_header(tmp_path):
    to_csv(table([]), tmp_path / "board.csv")
    assert (tmp_path / "board.csv").read_text() == "weights,backbone,layer,preprocessing,precision,flags\n"


def test_a_file_that_cannot_be_written_is_one_message(board, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResultError, match="cannot write"):
        to_csv(board, tmp_path / "file" / "board.csv")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResultError, match="cannot write"):
        to_csv(board, tmp_path / "folder")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["file", "folder"]


def test_markdown_keeps_its_columns(board, tmp_path):
    to_markdown(board, tmp_path / "board.md")
    lines = [line for line in (tmp_path / "board.md").read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(board.rows)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "**1234.57 [1232.57, 1237.57]**" in lines[2] and "a\\|&lt;b&gt;" in lines[3]


class Page(html.parser.HTMLParser):
    """Collects tags, their addresses and the text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.addresses, self.texts = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [v for k, v in attrs if k in ("src", "href", "action", "data") and not v.startswith("data:")]

    def handle_data(self, data):
        if self.tags[-1:] == ["wbr"] and self.texts:  # a place where a long name may break
            self.texts[-1] += data.strip()
        else:
            self.texts.append(data.strip())


def test_the_page_needs_nothing_else_and_shows_names_as_text(board, tmp_path):
    to_html(board, tmp_path / "board.html", title="Boards & more")
    text = (tmp_path / "board.html").read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.addresses == [] and not {"link", "img", "iframe", "i", "b"} & set(page.tags)
    assert "http" not in text and "@import" not in text and "url(" not in text
    start = text.index('<table id="board">')
    shown = text[start : text.index("</table>", start)]
    assert shown.count("<tbody") == 2 and shown.count("<tr>") == 1 + len(board.rows)
    assert {'a|<b>, "c".torch', "knn/<i>", "1234.57 [1232.57, 1237.57]", "Boards & more"} <= set(page.texts)


def test_the_page_of_an_average(tmp_path):
    board = table([make("a", 80), make("a", 60, "svm")], average=True)
    to_html(board, tmp_path / "board.html")
    assert 'data-value="70.0">70.00</td>' in (tmp_path / "board.html").read_text(encoding="utf-8")


def printed(board, width=100):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(to_rich(board, width))
    return console.export_text()


def test_the_terminal_shows_every_number_at_100_columns():
    protocols = ["knn", "linear", "svm", "finetune", "low-shot"]
    results = [
        make(name, 50 + i + 7 * j, protocol, layer=layer, floors=FLOORS, converged=False)
        for i, (name, layer) in enumerate([("moco_v2_800ep_pretrain.pth.tar", "res5avg"), ("b", "res4:avg")])
        for j, protocol in enumerate(protocols)
    ]
    board = table(results)
    text = printed(board)
    assert max(map(len, text.splitlines())) <= 100 and "…" not in text
    for i, j in itertools.product(range(2), range(5)):
        assert re.search(rf"\b{50 + i + 7 * j}\.00", text)
    assert "[1] not converged" in text and "33.33" in text


@pytest.mark.parametrize("width", [60, 90, 1000])
def test_many_columns_become_blocks_whose_numbers_are_whole(width):
    results = [make(name, 30.0 + i + 20 * j, f"p{i}") for i in range(23) for j, name in enumerate(("worse", "better"))]
    board = table([*results[:-1], make("better", 99.0, "knn", floors=FLOORS)], average=False)
    text = printed(board, width)
    assert max(map(len, text.splitlines())) <= width
    for i in range(22):
        for value in (30 + i, 50 + i):
            assert f"{value}.00 [{value - 2}.00, {value + 3}.00]" in text
    assert text.count("better") == (23 if width < 1000 else 1)
    if width < 1000:
        assert text.index("50.00 [") < text.index("30.00 ["), "the best of a column first"
        assert text.index("99.00 [") < text.index("33.33"), "floors last"


def test_the_terminal_shows_names_as_they_are_and_bold_for_the_best():
    board = table([make("[red]a[/red].torch", 80), make("b", None)])
    assert "[red]a[/red].torch" in printed(board) and "n/a" in printed(board)
    cells = list(to_rich(board, 100).columns[1].cells)
    assert [str(cell.style) for cell in cells] == ["bold", ""]


def test_an_interval_that_is_not_symmetric_is_shown_as_it_is(tmp_path):
    board = table([make("a", metrics={"top1": MetricValue(value=100.0, low=43.85, high=100.0)})])
    to_html(board, tmp_path / "board.html")
    to_latex(board, tmp_path / "board.tex")
    assert "100.00 [43.85, 100.00]" in printed(board) and "100.00 [43.85, 100.00]" in markdown(board)
    assert "100.00 [43.85, 100.00]" in (tmp_path / "board.html").read_text(encoding="utf-8")
    assert r"{\scriptsize[43.85, 100.00]}" in (tmp_path / "board.tex").read_text(encoding="utf-8")


def test_metrics_without_interval_are_shown_without():
    board = table([make("a", metrics={"top1": MetricValue(value=80.125)})])
    assert "80.12" in printed(board) and "80.12 [" not in printed(board)


def test_names_are_no_html_in_markdown(tmp_path):
    name = "<img src=x onerror=alert(1)>|<b>"
    text = markdown(table([make(name, 50)]))
    assert "<" not in text and "&lt;img src=x onerror=alert(1)&gt;\\|&lt;b&gt;" in text
