"""Files of leaderboards (CSV, Markdown, LaTeX, pages), published rows, and the plot over layers."""

import dataclasses
import html.parser
import io
import itertools
import json
import re

import numpy as np
import pandas
import pytest
from helpers.record_trees import make, write
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from sslbench.errors import ResultError, UsageError
from sslbench.leaderboard import (
    Published,
    plots,
    table,
    to_csv,
    to_html,
    to_latex,
    to_markdown,
    to_model_card,
    to_mteb,
    to_rich,
    to_timm_csv,
    with_published,
)
from sslbench.leaderboard.html import how_made
from sslbench.leaderboard.tables import escape, latex, markdown
from sslbench.results import BenchmarkUsed, Costs, MetricValue

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


TESTS = (" low", " high", " tied", " above_untrained", " above_pixels")


def test_the_wide_csv_holds_numbers_and_holes(board, tmp_path):
    to_csv(board, tmp_path / "new" / "board.csv")
    text = (tmp_path / "new" / "board.csv").read_text(encoding="utf-8")
    assert "%" not in text and "1,234" not in text and "1234.56789" in text
    frame = pandas.read_csv(tmp_path / "new" / "board.csv", keep_default_na=True)
    assert list(frame.columns) == [
        *("weights", "backbone", "layer", "preprocessing", "precision"),
        *(f"{column}{part}" for column in ("knn/<i>", "svm/photos") for part in ("", *TESTS)),
        "flags",
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
    assert shown.count("<tbody") == 2 and shown.count("<tr") == 1 + len(board.rows)
    assert {'a|<b>, "c".torch', "knn/<i>", "* 1234.57 [1232.57, 1237.57]", "Boards & more"} <= set(page.texts)


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
    board = table([make("[red]a[/red].torch", 80), make("b", 70), make("c", None)])
    assert "[red]a[/red].torch" in printed(board) and "n/a" in printed(board)
    cells = list(to_rich(board, 100).renderables[0].columns[1].cells)
    assert [str(cell.style) for cell in cells] == ["bold", "", ""]


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


OURS = BenchmarkUsed(name="linear/imagenet1k", version=3, sha256="")


def row(value, weights="SimCLR", benchmark="linear/imagenet1k", metric="top1", backbone="resnet50"):
    return Published(benchmark, weights, backbone, metric, value, "their linear", "Paper (2020)", "table 1")


def published_board():
    ours = [make(name, value, "linear", benchmark=OURS) for name, value in (("a", 60.0), ("b", 50.0))]
    return table([*ours, make("a", 40.0, floors={"chance": {"top1": 1.0}})], average=True)


def test_they_stand_between_ours_and_the_floors_best_first():
    shown = with_published(published_board(), [row(55.0), row(99.0, "SwAV"), row(55.5, "SwAV", backbone="resnet50w2")])
    assert [(r.label, r.kind) for r in shown.rows] == [
        *(("a", "result"), ("b", "result")),
        *(("SwAV (resnet50)", "published"), ("SwAV (resnet50w2)", "published"), ("SimCLR (resnet50)", "published")),
        ("chance", "floor"),
    ]
    assert shown.rows[2].flags == ("published: their linear",) and "not compared" in shown.notes[-1]


def test_they_are_never_best_tied_or_averaged_and_have_no_interval():
    shown = with_published(published_board(), [row(99.0)])
    cells = [cell for r in shown.rows if r.published for cell in r.cells if cell is not None]
    assert len(cells) == 1 and not cells[0].best and cells[0].tied is None and cells[0].metrics["top1"].low is None
    assert [r.average for r in shown.rows if r.published] == [None]
    ours, before = shown.rows[0], published_board().rows[0]
    assert ours == before, "nothing about our own rows changes"
    assert "**99.00**" not in markdown(shown) and "| 99.00 |" in markdown(shown)


def test_only_the_same_benchmark_and_metric_are_beside():
    others = [row(70.0, benchmark="linear/cifar10"), row(71.0, metric="top5"), row(72.0, benchmark="knn/imagenet1k")]
    shown = with_published(published_board(), others)
    assert shown.rows == published_board().rows and "No published numbers" in shown.notes[-1]


@pytest.mark.parametrize("fingerprint", ["00" * 16, "ff" * 16])
def test_they_stand_in_the_column_of_the_benchmarks_own_data(fingerprint):
    """Another data set measured under the benchmark's name has a column of its own, before or after it."""
    own = make("a", 60.0, "linear", benchmark=OURS)
    changed = dataclasses.replace(OURS, modified=True)
    other = make("a", 95.0, "linear", benchmark=changed, data__test__fingerprint=fingerprint)
    shown = with_published(table([own, other]), [row(55.0)])
    ours, published = shown.rows
    beside = next(i for i, cell in enumerate(published.cells) if cell is not None)
    assert ours.cells[beside].metrics["top1"].value == 60.0


def test_one_source_with_two_benchmarks_is_one_row():
    knn = BenchmarkUsed(name="knn/imagenet1k", version=1, sha256="")
    both = table([make("a", 60.0, "linear", benchmark=OURS), make("a", 50.0, benchmark=knn)])
    shown = with_published(both, [row(55.0), row(45.0, benchmark="knn/imagenet1k")])
    (published,) = [r for r in shown.rows if r.published]
    assert [cell.metrics["top1"].value for cell in published.cells] == [45.0, 55.0]


def test_the_long_csv_names_the_source_and_claims_nothing_of_ours(tmp_path):
    to_csv(with_published(published_board(), [row(55.0)]), tmp_path / "long.csv", form="long")
    frame = pandas.read_csv(tmp_path / "long.csv")
    (line,) = frame[frame.kind == "published"].to_dict("records")
    assert (line["value"], line["source"], line["protocol"]) == (55.0, "Paper (2020): table 1", "their linear")
    assert pandas.isna([line[n] for n in ("low", "settings", "n_train", "test_fingerprint", "protocol_version")]).all()
    assert line["benchmark"] == "linear/imagenet1k"


def test_how_it_was_made_is_its_source():
    shown = with_published(published_board(), [row(55.0)])
    published = next(r for r in shown.rows if r.published)
    cell = next(cell for cell in published.cells if cell is not None)
    assert how_made(published, cell) == [
        [("published in", "Paper (2020)"), ("where", "table 1"), ("protocol", "their linear")]
    ]


USED = BenchmarkUsed(name="knn/my_data", version=1, sha256="")


def body(text):
    """The cells of the rows between top and bottom rule, without the heading."""
    inside = re.search(r"\\midrule\n(.*)\\bottomrule", text, re.DOTALL)[1]
    lines = [line for line in inside.splitlines() if line != "\\midrule"]
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in lines]


def test_the_table_is_booktabs_with_one_column_for_each_of_ours():
    text = latex(table([make("a_1", 80.0, benchmark=USED), make("b", 70.0, "svm", layer="res4")]))
    assert text.startswith("% \\usepackage{booktabs}\n% ") and "\n\\begin{tabular}{llrr}\n\\toprule\n" in text
    assert r"weights & layer & knn/my\_data top1 & svm/photos top1 \\" in text
    assert [len(row) for row in body(text)] == [4, 4]
    assert body(text)[0] == ["a\\_1", "avgpool", r"80.00 {\scriptsize[78.00, 83.00]}", ""]
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


def of_layers(name, **scores):
    return [make(f"{name}.torch", top1=value, layer=layer.replace("_", ".")) for layer, value in scores.items()]


def test_profiles_are_the_scores_by_layer_without_weights_of_one_layer():
    records = [*of_layers("a", res5=70.0, res2=40.0, head_0=65.0), *of_layers("b", res5=75.0)]
    board = table(records)
    order = plots.layer_order(row.layer for row in board.rows)
    (profile,) = plots.profiles(board, 0, order)
    assert profile.label == "a.torch" and list(profile.points) == ["res2", "res5", "head.0"]
    assert [point.value for point in profile.points.values()] == [40.0, 70.0, 65.0]


def test_a_picture_is_written_whole_or_refused(tmp_path):
    target = tmp_path / "plots" / "layers.png"
    with pytest.raises(ResultError, match="no weights have results on several layers"):
        plots.draw_layers(of_layers("a", res5=70.0), target)
    assert not target.parent.exists()
    plots.draw_layers([*of_layers("a", res5=70.0, res2=40.0), *of_layers("b", res5=75.0, res2=45.0)], target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in target.parent.iterdir()] == ["layers.png"]


def test_a_metric_that_no_result_has_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no result has the metric 'tpo1'"):
        plots.draw_layers([*of_layers("a", res5=70.0, res2=40.0)], tmp_path / "layers.png", metric="tpo1")


@pytest.fixture
def results():
    metrics = {"top1": MetricValue(value=76.13, low=75.0, high=77.2, n=200), "top5": MetricValue(value=92.9)}
    costs = Costs(parameters=23508032)
    return [
        make("a.torch", metrics=metrics, costs=costs, floors=FLOORS),
        make("a.torch", 70, "svm", layer="res4"),
        make("b: #1", None),
        make("b: #1", 12.5, "retrieval", preprocessing={"squash": [224, 224]}),
    ]


def test_a_model_card_keeps_its_text_and_gets_the_results(results, tmp_path):
    path = tmp_path / "model" / "README.md"
    to_model_card(table(results), path)
    path.write_text(path.read_text(encoding="utf-8") + "# My model\n", encoding="utf-8")
    to_model_card(table(results[:2]), path)
    card = ModelCard.load(path)  # parses and validates the results
    assert card.text.strip() == "# My model" and card.data.library_name == "sslbench"
    assert card.data.model_name == "a.torch"
    first, second = card.data.eval_results
    assert (first.task_type, first.dataset_name, first.metric_type) == ("image-classification", "photos", "top1")
    assert (first.metric_value, first.metric_args["low"], second.metric_value) == (76.13, 75.0, 70)
    assert [each.name for each in path.parent.iterdir()] == ["README.md"]


def test_a_file_that_is_no_model_card_stays(results, tmp_path):
    (tmp_path / "card.md").write_text("---\n- a\n- b\n---\n", encoding="utf-8")
    with pytest.raises(ResultError, match=r"card\.md is no model card"):
        to_model_card(table(results), tmp_path / "card.md")
    with pytest.raises(ResultError, match="does not end with"):
        to_model_card(table(results), tmp_path / "card.csv")
    with pytest.raises(ResultError, match="floors and published numbers alone"):
        to_model_card(table([]), tmp_path / "empty.md")
    assert (tmp_path / "card.md").read_text(encoding="utf-8").startswith("---\n- a")


def test_timms_csv_has_its_columns_and_every_top1(results, tmp_path):
    to_timm_csv(table(results), tmp_path / "timm.csv")
    frame = pandas.read_csv(tmp_path / "timm.csv")
    timm = ["model", "top1", "top1_err", "top5", "top5_err", "param_count", "img_size", "crop_pct", "interpolation"]
    assert list(frame.columns[:9]) == timm and sorted(frame["benchmark"]) == [
        "knn/photos",
        "retrieval/photos",
        "svm/photos",
    ]
    first = frame[frame["benchmark"] == "knn/photos"].iloc[0]
    assert list(first[["top1", "top1_err", "top5_err", "img_size"]]) == pytest.approx([76.13, 23.87, 7.1, 224])
    assert (first["param_count"], first["crop_pct"]) == (pytest.approx(23.508032), 0.875)
    with pytest.raises(ResultError, match="no result has a top-1"):
        to_timm_csv(table([make("a", None)]), tmp_path / "none.csv")


def test_mtebs_files_have_fractions_and_no_names_of_its_tasks(results, tmp_path):
    to_mteb(table(results), tmp_path)
    [file] = tmp_path.rglob("knn-photos.json")
    found = json.loads(file.read_text(encoding="utf-8"))
    [scores] = found["scores"]["test"]
    assert scores["main_score"] == scores["top1"] == 0.7613 and scores["hf_subset"] == "default"
    assert found["task_name"] == file.stem and isinstance(found["dataset_revision"], str)
    meta = json.loads((file.parent / "model_meta.json").read_text(encoding="utf-8"))
    assert meta["name"] == "a.torch avgpool" and meta["revision"] == file.parent.name
    assert len(list(tmp_path.rglob("*.json"))) == 6, "no floor and no value that cannot be computed has a file"
