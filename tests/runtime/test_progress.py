"""Progress lines: rates of the last seconds, and solvers that work for longer than two seconds."""

import io
import itertools
import logging
import re
import sys
import time
import types

import click
import pytest
from helpers.waiting import SECONDS, until

from sslbench.cli import terminal
from sslbench.cli.echo import echo, echo_text
from sslbench.runtime import progress
from sslbench.steps import counted, shown_by


class Clock:
    """Time that a test moves."""

    now = 1000.0


@pytest.fixture
def clock(monkeypatch):
    moved = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: moved.now)
    return moved


def test_rate_starts_with_the_first_batch_and_forgets_loading_and_pauses(clock):
    rate = progress.Rate()
    assert rate(64) is None  # the first batch took an unknown time
    for done in range(128, 1280, 64):
        clock.now += 1
        found = rate(done)
    assert found == pytest.approx(64)
    clock.now += 100  # a pause
    rate(1280)
    for done in range(1380, 3380, 100):
        clock.now += 1
        found = rate(done)
    assert found == pytest.approx(100)


def test_lines_without_a_terminal_have_the_rate_of_the_last_seconds(clock, capsys):
    lines = terminal.ProgressLines()
    for second in range(31):
        lines("net on photos", 50 * (second + 1), 1550)
        clock.now += 1
    rates = re.findall(r"(\d+) images/s", capsys.readouterr().err)
    assert set(rates) == {"50"}


def test_a_job_has_a_line_every_ten_seconds_and_none_at_its_end(clock, capsys):
    lines = terminal.ProgressLines()
    for done in (64, 128):
        lines("net on photos", done, 128)
    assert capsys.readouterr().err == "", "the result that follows has the number and the rate"
    for done in (64, 128):
        clock.now += 11
        lines("net on photos", done, 128)
    assert [line[:24] for line in capsys.readouterr().err.splitlines()] == ["net on photos: 64 of 128"]


def test_a_message_is_printed_once_per_command(capsys):
    log = logging.getLogger("sslbench")
    for _ in range(2):
        terminal.show_messages()
        for name in ("a", "b"):
            log.warning("did not converge")
            log.info(f"{name}: loaded")
    wanted = ["warning: did not converge", "a: loaded", "b: loaded"]
    assert capsys.readouterr().err.splitlines() == wanted * 2


def test_solver_writes_a_line_in_every_interval_and_none_if_it_is_fast(monkeypatch, capsys):
    written = []

    def has_two_lines():
        written.append(capsys.readouterr().err)
        return "".join(written).count("linear: 1 of 4 fits after 0:") >= 2

    with shown_by(terminal.ProgressLines().steps):
        monkeypatch.setattr(terminal, "STEPS_EVERY", SECONDS)
        with counted("fast", "fits", 2) as advance:
            advance(2)
        monkeypatch.setattr(terminal, "STEPS_EVERY", 0.01)
        with counted("linear", "fits", 4) as advance, counted("inner", "rows", 9):
            advance(1)
            until(has_two_lines)
        with counted("all", "runs", 2, alone=False), counted("each", "fits", 4) as advance:
            advance(1)
            until(lambda: written.append(capsys.readouterr().err) or "each: 1 of 4" in "".join(written))
    shown = "".join(written)
    assert "fast" not in shown
    assert "inner" not in shown
    assert re.search(r"linear: 1 of 4 fits after 0:\d\d, about 0:\d\d left", shown)


def test_terminal_shows_a_solver_after_a_while(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=itertools.count(0.0, 0.3).__next__))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with terminal.progress():
        monkeypatch.setattr(progress, "STEPS_AFTER", SECONDS)
        with counted("fast", "fits", 2) as advance:
            advance(2)
        monkeypatch.setattr(progress, "STEPS_AFTER", 0.01)
        with counted("svm: choice of the cost of a very long title", "cross-validations", 4000) as advance:
            until(lambda: "svm: choice" in stderr.getvalue())
            for _ in range(3):
                advance(1000)
            until(lambda: "3000/4000" in stderr.getvalue())  # all numbers fit beside a long title into 80 columns
    shown = stderr.getvalue()
    assert "fast" not in shown
    assert re.search(r"cross-validations \d+\.\d/s", shown)
    assert re.search(r"\d:\d\d:\d\d", shown)


def test_solvers_are_silent_without_a_listener(capsys):
    with counted("linear", "fits", 4) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")


def narrow(monkeypatch):
    """Make stderr a terminal of 40 columns; return the function that reads what was written."""

    class Terminal(io.TextIOWrapper):
        def isatty(self):
            return True

    stderr = Terminal(io.BytesIO(), "utf-8", write_through=True)
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "40")
    return lambda: stderr.buffer.getvalue().decode()


def test_a_message_beside_a_bar_has_a_line_of_its_own(monkeypatch):
    written = narrow(monkeypatch)
    with terminal.progress() as bars:
        bars("net on photos", 1, 8)
        echo("a warning", err=True)
        bars("net on photos", 2, 8)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written()).replace("\r", "\n")
    assert "a warning" in shown.splitlines()


def test_commands_in_messages_can_be_copied_as_one_line(monkeypatch):
    written = narrow(monkeypatch)
    command = "`sslbench check-data photos/ --label-maps --test-data more/`"
    echo_text(f"The maps of photos/ cannot be used. {command} lists them, and others.", err=True)
    assert command in written() and len(written().splitlines()) == 3


def test_long_lines_are_wrapped_at_words_on_a_terminal_alone(monkeypatch, capsys):
    written = narrow(monkeypatch)
    text = "knn/photos top1: a.pth is best (81.20), tied with b.pth and c.pth\n  short: 1  2"
    echo_text(text, err=True, before="warning: ")
    lines = written().splitlines()
    assert lines[0] == "warning: knn/photos top1: a.pth is best" and lines[-1] == "  short: 1  2"
    assert all(len(line) <= 40 for line in lines) and all(line.startswith("    ") for line in lines[1:-1])
    echo_text("  resize  256", err=True, after=click.style("  [the default of torchvision]", dim=True), indent=10)
    echo_text("  crop  224", err=True, after=click.style("  [asked for]", dim=True))
    assert written().splitlines()[len(lines) :] == [
        "  resize  256  [the default of",
        "          torchvision]",
        "  crop  224\x1b[2m  [asked for]\x1b[0m",
    ]
    echo_text(text)
    assert capsys.readouterr().out == text + "\n"


def test_a_terminal_without_colours_gets_none(monkeypatch):
    written = narrow(monkeypatch)
    echo("one", err=True, before=click.style("error: ", fg="red"))
    assert "\x1b" in written()
    monkeypatch.setenv("NO_COLOR", "1")
    echo("two", err=True, before=click.style("error: ", fg="red"))
    assert written().splitlines()[-1] == "error: two"
