"""Pages of leaderboards in a browser, curves, scores over a training."""

import base64
import csv
import functools
import re

import numpy as np
import pytest
from helpers.browser import Browser
from helpers.record_trees import IDS, change, make, write
from PIL import Image

from sslbench.errors import ResultError, UsageError
from sslbench.leaderboard import Published, charts, plots, table, to_html, with_published
from sslbench.leaderboard.compare import compare
from sslbench.leaderboard.over_training import draw_training, training_curves, write_training_curves
from sslbench.leaderboard.pairs import differences
from sslbench.results import BenchmarkUsed
from sslbench.train.checkpoints import Position

USED = BenchmarkUsed(name="knn/photos", version=1, sha256="")
FLOORS = {"chance": {"top1": 10.0}, "untrained": {"top1": 30.0}}
# What a reader does, and what the page shows then.
HELPERS = """
const label = row => row.cells[0].firstChild.textContent;
const shown = () => bodies.map(body => [...body.rows].filter(row => !row.hidden).map(label));
const type = (id, text) => { find(id).value = text; find(id).dispatchEvent(new Event("input")); };
const tick = (name, value) => document.querySelector(`.facet input[name="${name}"][value="${value}"]`).click();
const headings = () => heads.filter(head => head.offsetWidth).map(nameOf);
const numbersOf = i => all.map(row => row.cells[i].innerText);
"""


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
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture
def opened(browser, page):
    """The page at 1280 pixels, unfiltered."""
    browser.open("about:blank")
    browser.open(page)
    browser.run(HELPERS)
    return browser


def test_a_click_on_a_heading_sorts_every_block_by_number_and_another_click_the_other_way(opened):
    first = ["beta.torch", "Zeta <b>.torch", "alpha.torch"]
    assert opened.run("shown()") == [first, ["MoCo (resnet50w2)"], ["chance", "resnet50 untrained"]]
    assert opened.run("heads[1].click(); [shown()[2], heads[1].ariaSort]") == [
        ["resnet50 untrained", "chance"],
        "descending",
    ]
    assert opened.run("heads[1].click(); shown()[0]") == first[::-1], "9.5 comes before 70: numbers, not text"
    assert opened.run("heads[0].click(); shown()[0]") == ["alpha.torch", "beta.torch", "Zeta <b>.torch"]


@pytest.mark.parametrize(("key", "code"), [("Enter", 13), (" ", 32)])
def test_the_keyboard_sorts_too(opened, key, code):
    opened.run("heads[0].focus()")
    opened.press(key, code)
    assert opened.run("[shown()[0][0], heads[0].ariaSort]") == ["alpha.torch", "ascending"]


def test_the_address_of_the_page_holds_order_and_filters(opened):
    opened.run("heads[1].click(); heads[1].click(); type('rows', 'torch'); tick('rows', 'results')")
    address = opened.run("location.hash")
    assert "sort=1+ascending" in address and "rows=torch" in address and "rows=results" in address
    opened.run("type('rows', ''); tick('rows', 'results'); heads[0].click()")
    assert opened.run(f"location.hash = '{address}'; recall(); shown()") == [
        ["alpha.torch", "Zeta <b>.torch", "beta.torch"],
        [],
        [],
    ]
    assert opened.run("find('rows').value") == "torch"
    hostile = opened.run("location.hash = 'sort=__proto__+ascending&rows=&reference=x&__proto__=1'; recall(); shown()")
    assert [len(block) for block in hostile] == [3, 1, 2], "an address that means nothing changes nothing"


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_follow_the_system_until_a_click(browser, page, dark):
    browser.open(page, dark=dark)
    luminance = "Number(getComputedStyle(document.body).backgroundColor.match(/[0-9]+/)[0])"
    assert (browser.run(luminance) < 128) == dark
    assert (browser.run(f"find('theme').click(); {luminance}") < 128) != dark
    browser.open("about:blank")
    browser.open(page, dark=dark)
    assert (browser.run(luminance) < 128) != dark, "the choice is kept"
    assert (browser.run(f"find('theme').click(); localStorage.clear(); {luminance}") < 128) == dark


def test_without_scripts_the_page_is_a_plain_table(browser, page, tmp_path):
    plain = tmp_path / "plain.html"
    plain.write_text(re.sub("(?s)<script>.*?</script>", "", page.read_text(encoding="utf-8")), encoding="utf-8")
    browser.open(plain)
    text = browser.run("document.body.innerText")
    assert "beta.torch" in text and "80.00 [78.00, 83.00]" in text and "knn/photos top1: beta.torch is best" in text
    assert "filter weights" not in text and browser.run("document.querySelector('.tools').offsetHeight") == 0


NETWORKS = ("resnet18", "resnet50")


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Return a function to the page of so many records with scores, of three protocols."""

    def written(number):
        folder = tmp_path_factory.mktemp("measured")
        generator = np.random.default_rng(0)
        records = []
        for i in range(number):
            name, network = f"method_{i // 3:03d}_pretrained_for_long.torch", NETWORKS[i // 3 % 2]
            result = make(name, protocol=("knn", "linear", "svm")[i % 3], weights__backbone=network, floors=FLOORS)
            records.append(write(result, generator.random(len(IDS)) < 0.3 + 0.6 * i / number, folder))
        to_html(table(records), folder / "board.html")
        return folder / "board.html"

    return functools.cache(written)


@pytest.mark.parametrize("number", [3, 30, 300])
def test_a_phone_shows_one_column_at_a_time_and_never_scrolls_sideways(browser, measured, number):
    browser.open(measured(number), width=390, height=800)
    browser.run(HELPERS)
    for place, protocol in enumerate(("knn", "linear", "svm")):
        browser.run(f"find('only').selectedIndex = {place}; find('only').dispatchEvent(new Event('input'))")
        assert browser.run("headings()") == ["weights", f"{protocol}/photos top1"]
        assert browser.run("[...document.querySelectorAll('#charts figure')].filter(f => f.offsetHeight).length") == 1
        assert browser.run("document.querySelector('#verdict').innerText").startswith(f"{protocol}/photos top1:")
        assert browser.run("document.documentElement.scrollWidth") <= 390
        assert browser.run("table.parentNode.scrollWidth - table.parentNode.clientWidth") <= 0


@pytest.mark.parametrize("number", [3, 30, 300])
def test_a_wide_page_begins_with_verdicts_then_charts_then_the_table(browser, measured, number):
    browser.open(measured(number))
    browser.run(HELPERS)
    assert browser.run("document.documentElement.scrollWidth") <= 1280
    tops = browser.run("['verdict', 'charts', 'board'].map(id => find(id).getBoundingClientRect().top)")
    assert tops == sorted(tops) and tops[0] < 150
    assert browser.run("document.querySelectorAll('#charts figure').length") == 3
    assert not browser.run("[...document.querySelectorAll('details:not(#charts)')].some(fold => fold.open)")
    # Dashed lines are where the axis has the value of the floor: all lines and all dots have the same width of track.
    widths = browser.run("[...document.querySelectorAll('.lines, .track')].map(t => Math.round(t.clientWidth))")
    assert min(widths) > 100
    first = "document.querySelector('.chart')"
    assert (
        browser.run(f"{first}.querySelector('.lines').clientWidth - {first}.querySelector('.track').clientWidth") == 0
    )
    assert browser.run(f"{first}.querySelector('.lines').clientHeight") >= browser.run(f"{first}.clientHeight") - 2


def test_boxes_limit_rows_columns_and_charts_to_what_is_ticked(browser, measured):
    browser.open(measured(30))
    browser.run(HELPERS)
    browser.run("tick('architecture', 'resnet18'); tick('protocol', 'svm')")
    assert browser.run("headings()") == ["weights", "svm/photos top1", "flags"]
    assert all(
        "resnet18" in text for text in browser.run("all.filter(r => r.offsetHeight).map(r => r.textContent)")[:5]
    )
    assert (
        browser.run("[...document.querySelectorAll('figure .result .name')].filter(name => name.offsetHeight).length")
        == 5
    )
    browser.run("tick('rows', 'results')")
    assert browser.run("shown().map(rows => rows.length)") == [5, 0]
    browser.run("type('rows', 'METHOD_002')")
    assert browser.run("[shown()[0].length, find('count').textContent]") == [1, "1 of 13 rows"]


def test_numbers_become_paired_differences_to_a_chosen_row(browser, measured):
    browser.open(measured(30))
    browser.run(HELPERS)
    before = browser.run("numbersOf(1)")
    row = browser.run("find('reference').options[2].value")
    browser.run(f"type('reference', '{row}')")
    after = dict(
        zip(
            browser.run("all.map(row => row.dataset.row)"),
            zip(before, browser.run("numbersOf(1)"), strict=True),
            strict=True,
        )
    )
    assert after[row][0] == after[row][1], "the row itself keeps its value"
    value = float(re.search(r"[0-9.]+", after[row][0])[0])
    compared = [both for own, both in after.items() if own != row and both[1] != "–"]
    assert len(compared) == 9
    for old, new in compared:
        difference = float(re.search(r"[+−][0-9.]+", new)[0].replace("−", "-"))
        assert difference == pytest.approx(float(re.search(r"[0-9.]+", old)[0]) - value, abs=0.01)
        low, high = (float(text.replace("−", "-")) for text in re.search(r"\[(.+), (.+)\]", new).groups())
        assert low <= difference <= high and new.startswith("= ") == (low <= 0 <= high)
    browser.run("type('reference', '')")
    assert browser.run("numbersOf(1)") == before


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


@pytest.mark.parametrize(("rows", "pairs", "of"), [(3, 3, "of all pairs"), (4, 3, "to the best row")])
def test_of_many_rows_the_best_alone_is_compared(tmp_path, monkeypatch, rows, pairs, of):
    monkeypatch.setattr("sslbench.leaderboard.pairs.MOST_ROWS", 3)
    right = np.arange(len(IDS))
    board = table([write(make(f"{i}.torch"), right < 50 + 40 * i, tmp_path) for i in range(rows)])
    (found,) = differences(board)
    assert len(found.found) == pairs and found.of.startswith(of)
    for a, b in found.found:
        (one,) = [compare(board.rows[a].cells[0].records[0], board.rows[b].cells[0].records[0])]
        assert found.between(a, b) == pytest.approx((one.difference, one.low, one.high))
        assert found.between(b, a) == pytest.approx((-one.difference, -one.high, -one.low))


def test_tied_rows_share_a_rank(tmp_path):
    right = np.arange(len(IDS))
    results = [
        write(make(name, protocol=protocol), right < share, tmp_path)
        for protocol in ("knn", "svm", "linear")
        for name, share in (("a", 150), ("b", 149), ("c", 80))
    ]
    board = table(results)
    drawn = charts.ranks(board, differences(board))
    assert [{text.rpartition(" ")[2] for _, _, text in line.dots} for line in drawn.lines] == [{"1"}, {"1"}, {"3"}]


@pytest.mark.parametrize("names", [("a", "b"), ("a",)])
def test_ranks_are_drawn_for_three_columns(names):
    results = [make(name, 50.0 + i, p) for i, name in enumerate(names) for p in ("knn", "svm", "linear")]
    results += [make(names[-1], 99.0, "lsr")]
    board = table(results)
    drawn = charts.ranks(board, differences(board))
    if len(names) == 1:
        assert drawn is None
        return
    upper, lower = drawn.lines
    assert (upper.label, lower.label) == ("b", "a") and upper.y < lower.y
    assert [len(line.dots) for line in drawn.lines] == [4, 3], "a gap where there is no result"


def test_rows_are_filtered_by_words_in_any_case_and_columns_by_their_name(opened):
    opened.run("type('rows', 'Zeta')")
    assert opened.run("[shown(), find('count').textContent]") == [[["Zeta <b>.torch"], [], []], "1 of 6 rows"]
    assert [len(block) for block in opened.run("type('rows', 'resnet50 crop'); shown()")] == [3, 0, 0]
    opened.run("type('rows', ''); type('columns', 'svm')")
    assert opened.run("headings()") == ["weights", "svm/photos top1", "flags"]
    assert opened.run("[...document.querySelectorAll('#charts figure')].filter(f => !f.hidden).length") == 1


def test_how_a_number_was_made_is_one_click_away(opened):
    opened.run("document.querySelector('[popovertarget]').click()")
    made = opened.run("document.querySelector(':popover-open').innerText")
    for part in ("protocol", "knn version 1", "temperature 0.07", "sha256", "fingerprint", "seed", "sslbench eval"):
        assert part in made


def test_every_number_on_the_page_has_its_details(page):
    text = page.read_text(encoding="utf-8")
    buttons = re.findall(r'<td class="[^"]*" [^>]*><button popovertarget="([^"]+)"', text)
    assert len(buttons) == len(set(buttons)) == text.count("<div popover id=") > 6
    assert all(f'<div popover id="{name}">' in text for name in buttons)


def test_the_plot_draws_the_numbers_of_the_table():
    results = [make(name, value, floors=FLOORS) for name, value in (("a", 60.0), ("b", 80.0))]
    (plot,) = charts.intervals(table(results))
    assert [mark.label for mark in plot.marks] == ["b", "a"] and plot.marks[0].leads
    per_point = (plot.marks[0].x - plot.marks[1].x) / 20
    assert plot.marks[0].high - plot.marks[0].low == pytest.approx(5 * per_point, abs=0.1)
    assert [line.label for line in plot.floors] == []
    assert plot.beyond == ("chance 10.00", "resnet50 untrained 30.00"), "far floors do not stretch the axis"
    near = charts.intervals(table([make("a", 40.0, floors=FLOORS), make("b", 80.0, floors=FLOORS)]))[0]
    assert [line.label for line in near.floors] == ["chance 10.00", "resnet50 untrained 30.00"] and not near.beyond
    per_point = (near.marks[0].x - near.marks[1].x) / 40
    assert near.marks[1].x - near.floors[1].x == pytest.approx(10 * per_point, abs=0.1)
    assert 3 <= len(plot.ticks) <= 8 and all(0 <= tick.x <= 100 for tick in plot.ticks)


@pytest.mark.parametrize("values", [(50.0,), (0.0, 0.0), (99.99, 100.0), (-3.5, 1200.0)])
def test_a_plot_of_any_numbers_has_ticks_and_stays_inside(values):
    results = [make(f"w{i}", value) for i, value in enumerate(values)]
    (plot,) = charts.intervals(table(results))
    places = [x for mark in plot.marks for x in (mark.x, mark.low, mark.high)]
    assert all(0 <= x <= 100 for x in places) and 3 <= len(plot.ticks) <= 8
    assert charts.intervals(table([])) == []


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
