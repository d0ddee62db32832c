"""Pages of leaderboards in a browser, curves, scores over a training."""

import base64
import csv
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from helpers.record_trees import IDS, change, make, write
from PIL import Image

from sslbench.errors import ResultError, UsageError
from sslbench.leaderboard import Published, charts, plots, table, to_html, with_published
from sslbench.leaderboard.over_training import draw_training, training_curves, write_training_curves
from sslbench.results import BenchmarkUsed
from sslbench.train.checkpoints import Position

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
USED = BenchmarkUsed(name="knn/photos", version=1, sha256="")
FLOORS = {"chance": {"top1": 10.0}, "untrained": {"top1": 30.0}}
# What a reader does, and what the page shows then; the answers are left in the document for --dump-dom.
SCRIPT = """<script>
const seen = {}, errors = [];
window.addEventListener("error", event => errors.push(event.message));
const names = rows => rows.map(row => row.cells[0].firstChild.textContent);
const shown = () => bodies.map(body => names([...body.rows].filter(row => !row.hidden && !body.hidden)));
const type = (id, text) => {
  const input = document.querySelector(id);
  input.value = text;
  input.dispatchEvent(new Event("input"));
};
seen.first = shown();
heads[1].click(); seen.down = shown(); seen.aria = heads[1].ariaSort;
heads[1].click(); seen.up = shown();
heads[0].click(); seen.names = shown();
heads[1].click(); heads[1].click(); type("#rows", "torch"); seen.address = location.hash;
type("#rows", ""); heads[0].click();
location.hash = seen.address; recall(); seen.recalled = shown();
seen.recalledWords = document.querySelector("#rows").value;
location.hash = "sort=__proto__+ascending&without=constructor"; recall(); seen.hostile = shown();
location.hash = ""; recall(); heads[0].click();
seen.sticky = getComputedStyle(document.querySelector("#board td")).position;
seen.beyond = document.documentElement.scrollWidth - window.innerWidth;
type("#rows", "Zeta"); seen.zeta = shown(); seen.count = document.querySelector("#count").textContent;
type("#rows", "resnet50 crop"); seen.words = shown(); type("#rows", "");
type("#columns", "svm"); seen.columns = heads.filter(h => !h.hidden).map(h => h.textContent);
seen.figures = [...document.querySelectorAll("figure")].filter(f => !f.hidden).length; type("#columns", "");
const box = document.querySelector(".block[value=floor]"); box.click(); seen.unfloored = shown(); box.click();
document.querySelector("[data-made]").click();
const open = document.querySelector("dialog[open]");
seen.made = open.textContent; seen.visible = open.offsetHeight > 50;
seen.widths = [...document.querySelectorAll("svg")].map(s => s.getBBox().width > 100);
seen.errors = errors;
document.body.insertAdjacentHTML("beforeend", "<pre id=seen></pre>");
document.querySelector("#seen").textContent = JSON.stringify(seen);
</script></body>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    results = [
        make("Zeta <b>.torch", 70.0, benchmark=USED, floors=FLOORS),
        make("alpha.torch", 9.5, benchmark=USED, command="sslbench eval knn --weights alpha.torch"),
        make("beta.torch", 80.0, benchmark=USED, per_class={"cat": 90.0, "dog": 70.0}),
        make("beta.torch", 60.0, "svm"),
    ]
    row = Published("knn/photos", "MoCo", "resnet50w2", "top1", 75.0, "their kNN", "Paper", "table 1")
    path = tmp_path_factory.mktemp("page") / "board.html"
    to_html(with_published(table(results), [row]), path)
    return path


@pytest.fixture(scope="module")
def seen(page):
    if CHROMIUM is None:
        pytest.skip("no chromium is installed, in which the page could be looked at")
    acted = page.with_name("acted.html")
    acted.write_text(page.read_text(encoding="utf-8").replace("</body>", SCRIPT), encoding="utf-8")
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=500,900",  # the narrowest that a headless window can be
        f"--user-data-dir={page.parent}/profile",
    ]
    done = subprocess.run(
        [CHROMIUM, *flags, "--virtual-time-budget=5000", "--dump-dom", acted.as_uri()],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    found = re.search(r'<pre id="seen">(.*)</pre>', done.stdout, re.DOTALL)
    assert found, f"the page's script did not run to its end: {done.stderr[-500:]}"
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def test_no_script_fails(seen):
    assert seen["errors"] == [] and all(seen["widths"])


def test_a_click_on_a_heading_sorts_every_block_by_number_and_another_click_the_other_way(seen):
    first = ["beta.torch", "Zeta <b>.torch", "alpha.torch"]
    assert seen["first"] == [first, ["MoCo (resnet50w2)"], ["chance", "resnet50 untrained"]]
    assert (seen["down"], seen["aria"]) == (
        [first, ["MoCo (resnet50w2)"], ["resnet50 untrained", "chance"]],
        "descending",
    )
    assert seen["up"][0] == first[::-1], "9.5 comes before 70: numbers, not text"
    assert seen["names"][0] == ["alpha.torch", "beta.torch", "Zeta <b>.torch"]


def test_the_address_of_the_page_holds_order_and_filters(seen):
    assert "sort=1+ascending" in seen["address"] and "rows=torch" in seen["address"]
    assert seen["recalled"] == [["alpha.torch", "Zeta <b>.torch", "beta.torch"], [], []]
    assert seen["recalledWords"] == "torch"
    assert [len(block) for block in seen["hostile"]] == [3, 1, 2], "an address that means nothing changes nothing"


def test_on_a_phone_the_table_scrolls_below_its_first_column(seen):
    assert seen["sticky"] == "sticky" and seen["beyond"] <= 0


def test_holes_classes_and_the_csv_are_on_the_page(page):
    text = page.read_text(encoding="utf-8")
    assert text.count('<span class="hole" title="no result">–</span>') > 2
    assert "2 classes, the lowest top1 first" in text and text.index("<td>dog</td>") < text.index("<td>cat</td>")
    encoded = re.search(r"data:text/csv;charset=utf-8;base64,([^\"]+)", text)
    assert base64.b64decode(encoded[1]).decode().startswith("weights,backbone,layer")


def test_a_single_network_is_drawn_beside_its_floors_and_names_break_between_words(tmp_path):
    to_html(table([make("long_name.torch", 80.0, floors=FLOORS)]), tmp_path / "board.html")
    text = (tmp_path / "board.html").read_text(encoding="utf-8")
    assert "dashed: chance 10.00" in text and "far off" not in text
    assert "<span>long_<wbr>name.<wbr>torch</span>" in text


@pytest.mark.parametrize("names", [("a", "b"), ("a",)])
def test_ranks_are_drawn_for_three_columns(names):
    results = [make(name, 50.0 + i, p) for i, name in enumerate(names) for p in ("knn", "svm", "linear")]
    results += [make(names[-1], 99.0, "lsr")]
    drawn = charts.ranks(table(results))
    if len(names) == 1:
        assert drawn is None
        return
    upper, lower = drawn.lines
    assert (upper.label, lower.label) == ("b", "a") and upper.y < lower.y
    assert [len(line.dots) for line in drawn.lines] == [4, 3], "a gap where there is no result"


def test_rows_are_filtered_by_words_in_any_case_and_columns_by_their_name(seen):
    assert seen["zeta"] == [["Zeta <b>.torch"], [], []] and seen["count"] == "1 of 6 rows"
    assert len(seen["words"][0]) == 3 and seen["words"][1] == []
    assert [re.sub(r"\W.*", "", text) for text in seen["columns"]] == ["weights", "svm", "flags"] and seen[
        "figures"
    ] == 1
    assert seen["unfloored"][2] == [] and len(seen["unfloored"][0]) == 3


def test_how_a_number_was_made_is_one_click_away(seen):
    assert seen["visible"]
    for part in ("protocol", "knn version 1", "temperature 0.07", "sha256", "fingerprint", "seed", "sslbench eval"):
        assert part in seen["made"]


def test_every_number_on_the_page_has_its_details(page):
    text = page.read_text(encoding="utf-8")
    buttons = re.findall(r'data-made="([^"]+)"', text)
    assert len(buttons) == len(set(buttons)) == text.count("<dialog id=") > 6
    assert all(f'<dialog id="{name}">' in text for name in buttons)


def test_the_plot_draws_the_numbers_of_the_table():
    results = [make(name, value, floors=FLOORS) for name, value in (("a", 60.0), ("b", 80.0))]
    (plot,) = charts.plots(table(results))
    assert [mark.label for mark in plot.marks] == ["b", "a"] and plot.marks[0].leads
    per_point = (plot.marks[0].x - plot.marks[1].x) / 20
    assert plot.marks[0].high - plot.marks[0].low == pytest.approx(5 * per_point, abs=0.3)
    assert [line.label for line in plot.floors] == []
    assert plot.beyond == ("chance 10.00", "resnet50 untrained 30.00"), "far floors do not stretch the axis"
    near = charts.plots(table([make("a", 40.0, floors=FLOORS), make("b", 80.0, floors=FLOORS)]))[0]
    assert [line.label for line in near.floors] == ["chance 10.00", "resnet50 untrained 30.00"] and not near.beyond
    per_point = (near.marks[0].x - near.marks[1].x) / 40
    assert near.marks[1].x - near.floors[1].x == pytest.approx(10 * per_point, abs=0.3)
    assert 3 <= len(plot.ticks) <= 8 and all(0 <= tick.x <= charts.WIDTH for tick in plot.ticks)


@pytest.mark.parametrize("values", [(50.0,), (0.0, 0.0), (99.99, 100.0), (-3.5, 1200.0)])
def test_a_plot_of_any_numbers_has_ticks_and_stays_inside(values):
    results = [make(f"w{i}", value) for i, value in enumerate(values)]
    (plot,) = charts.plots(table(results))
    places = [x for mark in plot.marks for x in (mark.x, mark.low, mark.high)]
    assert all(0 <= x <= charts.WIDTH for x in places) and 3 <= len(plot.ticks) <= 8
    assert charts.plots(table([])) == []


def with_curve(name, values, **changes):
    variants = {f"k={k}": {"top1": v, "top1_low": v - 3, "top1_high": v + 2} for k, v in values.items()}
    return make(name, top1=list(values.values())[-1], protocol="low-shot", variants=variants, **changes)


def test_lines_are_the_means_with_their_intervals_floors_apart():
    records = [
        with_curve("a.torch", {1: 40.0, 16: 70.0, 4: 60.0}),
        with_curve("pixels:8", {1: 20.0, 4: 30.0, 16: 35.0}, weights__backbone="pixels:8"),
    ]
    own, floor = plots._lines(table(records), 0, "k")
    assert (own.label, own.floor, floor.floor) == ("a.torch", False, True)
    assert list(own.points) == [1, 4, 16]
    assert (own.points[4].value, own.points[4].low, own.points[4].high) == (60.0, 57.0, 62.0)
    assert plots._lines(table(records), 0, "%") == []


def test_seeds_are_averaged_and_shares_of_train_stand_apart():
    one, two = (with_curve("a.torch", {1: value, 4: 60.0}, seed=seed) for seed, value in ((0, 40.0), (1, 50.0)))
    one.variants["10 %"] = two.variants["10 %"] = {"top1": 55.0, "top1_low": None, "top1_high": None}
    (line,) = plots._lines(table([one, two]), 0, "k")
    assert (line.points[1].value, line.points[1].low, line.points[1].high) == (45.0, 0.0, 100.0)
    (line,) = plots._lines(table([one, two]), 0, "%")
    assert list(line.points) == [10.0]


def test_a_picture_is_written_whole_or_refused(tmp_path):
    target = tmp_path / "plots" / "curve.png"
    with pytest.raises(ResultError, match="no result has scores for several numbers"):
        plots.data_efficiency([make("a.torch")], target)
    assert not target.parent.exists()
    records = [with_curve(f"{name}.torch", {1: 40.0 + i, 4: 60.0 + 2 * i}) for i, name in enumerate("abc")]
    plots.data_efficiency([*records, make("a.torch")], target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in target.parent.iterdir()] == ["curve.png"]


def test_a_metric_that_is_named_is_the_one_that_is_drawn(tmp_path, monkeypatch):
    records = [with_curve("a.torch", {1: 40.0, 4: 60.0})]
    shown = []
    monkeypatch.setattr(plots, "_panel", lambda _axis, column, *_: shown.append(column.metric))
    plots.data_efficiency(records, tmp_path / "curve.png", metric="top1")
    assert shown == ["top1"]
    with pytest.raises(UsageError, match="no result has the metric 'tpo1'"):
        plots.data_efficiency(records, tmp_path / "curve.png", metric="tpo1")


RIGHT = {20: 0.5, 10: 0.3, 100: 0.9}


@pytest.fixture
def results(tmp_path):
    """Three checkpoints, the later ones right on more of the same images; not in the order of training."""
    order = np.random.default_rng(0).permutation(len(IDS))
    return [
        (Position(step, step / 10), [write(make(f"step_{step:09d}.ckpt"), order < share * len(IDS), tmp_path)])
        for step, share in RIGHT.items()
    ]


def test_a_curve_is_in_the_order_of_updates_with_the_paired_gain(results):
    (curve,) = training_curves(results)
    assert [(point.at.step, point.score.value) for point in curve.points] == [(10, 30), (20, 50), (100, 90)]
    assert curve.gain.difference == pytest.approx(60) and curve.gain.low > 45 and curve.gain.high < 75
    assert curve.gain.value_a == 90 and curve.gain.n == 200


def test_protocols_and_layers_are_curves_of_their_own_and_one_checkpoint_has_no_gain():
    records = [make("a"), make("a", protocol="linear"), make("a", layer="res3")]
    curves = training_curves([(Position(5, None), records)])
    assert [curve.title for curve in curves] == [
        "knn on photos/ (test), avgpool",
        "linear on photos/ (test), avgpool",
        "knn on photos/ (test), res3",
    ]
    assert all(curve.gain is None for curve in curves)


def test_without_scores_of_each_image_there_is_no_gain():
    (curve,) = training_curves([(Position(i, None), [make(f"{i}.ckpt", top1=50.0 + i)]) for i in (2, 1)])
    assert len(curve.points) == 2 and curve.gain is None


def test_csv_and_picture_have_every_checkpoint(results, tmp_path):
    floors = {"untrained": {"top1": 20.0}, "chance": {"top1": 100 / 3}}
    results = [(at, [change(result, floors=floors) for result in own]) for at, own in results]
    table, picture = write_training_curves(training_curves(results), "my run", tmp_path / "out")
    assert (table.name, picture.name) == ("training-my-run-knn.csv", "training-my-run-knn.png")
    rows = list(csv.DictReader(table.open()))
    assert [(row["step"], row["epoch"], float(row["value"])) for row in rows] == [
        ("10", "1", 30),
        ("20", "2", 50),
        ("100", "10", 90),
    ]
    assert all(row["record"].endswith(".json") and row["metric"] == "top1" for row in rows)
    with Image.open(picture) as image:
        assert len(image.convert("RGB").getcolors(1 << 24)) > 20


def test_nothing_to_draw_is_said(tmp_path):
    curves = training_curves([(Position(1, 1.0), [make("a", top1=None)])])
    with pytest.raises(ResultError, match="no checkpoint of a has a score"):
        draw_training(curves, "a", tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()
