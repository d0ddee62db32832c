"""Documents, names and texts of strangers: a clear message, no code of theirs run, no file outside, no markup."""

import json

import pytest
from hostile import child, document_cases, text_cases
from hostile.campaign import LONG, failures, report

from sslbench.backbones.build import build
from sslbench.detection.recipe import DetectionRecipe
from sslbench.detection.saved import DetectorDescription


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A sound record, as its file holds it."""
    folder = tmp_path_factory.mktemp("sound")
    data = text_cases.photos(folder)
    outcome = child.run([*text_cases.PIXELS, "--data", str(data), "--out", "results"], folder)
    assert outcome.code == 0, outcome.err
    return json.loads(next((folder / "results").rglob("*.json")).read_text())


def test_sound_documents_are_read(tmp_path):
    """Else the changed ones would be refused for another reason than their change."""

    def refused(outcome, folder):
        return f"exit {outcome.code}" if outcome.code else ""

    cases = [case for case in document_cases.document_cases() if ": sound: " in case[0]]
    report(failures(cases, tmp_path, judges=(refused,)))


def test_documents(tmp_path):
    report(failures(document_cases.document_cases(), tmp_path))


def test_detectors(tmp_path):
    backbone = build("resnet_basic_1-1-1-1w0.125")
    about = DetectorDescription(
        DetectionRecipe(), ("wide", "tall"), backbone.name, backbone.preprocessing, "w.pth", "squares", "", "0123"
    )
    report(failures(document_cases.detector_cases(json.loads(about.text())), tmp_path))


def test_no_name_leads_outside(record, tmp_path):
    known = {
        "photos",
        "benchmarks",
        "unused",
        "results",
        "store",
        "runs",
        "others",
        "sslbench-data.yaml",
        "helper.py",
        "m.json",
    }

    def outside(outcome, folder):
        beside = [file.name for file in folder.parent.iterdir() if not file.name.isdigit()]
        others = [
            file.name
            for file in folder.iterdir()
            if file.name not in known and not file.name.startswith((".", "b.")) and file.suffix != ".png"
        ]
        return f"{beside + others} written" if beside + others else ""

    (tmp_path / "cases").mkdir()
    report(failures(document_cases.name_cases(record), tmp_path / "cases", judges=(outside,)))


def test_no_text_becomes_markup(record, tmp_path):
    def markup(outcome, folder):
        texts = (folder / "results" / "x.json").read_text().count("alert(1)")
        if outcome.code:
            return "refused" if texts > 1 else ""
        page = (folder / "board.html").read_text(encoding="utf-8")
        hidden = texts > 1 and page.count("&lt;script&gt;alert(1)") < 30
        return "markup in the page" if document_cases.SCRIPT in page else "texts are not shown" if hidden else ""

    cases = list(document_cases.page_cases(record))
    at_once = [case for case in cases if "at once" in case[0]]
    report(failures(cases if LONG else at_once, tmp_path, judges=(markup,)))
