"""Malformed text ends in one clear message, in bounded time and memory: never in a traceback or a hang."""

import json

from hostile import child, text_cases
from hostile.campaign import LONG, failures, report


def test_yaml(tmp_path):
    report(failures(text_cases.yaml_cases(n=LONG), tmp_path))


def test_manifests(tmp_path):
    report(failures(text_cases.manifest_cases(), tmp_path))


def test_voc_trees(tmp_path):
    report(failures(text_cases.voc_cases(), tmp_path))


def test_tables_and_text_files_of_boxes(tmp_path):
    report(failures(text_cases.box_cases(), tmp_path))


def test_tables(tmp_path):
    report(failures(text_cases.table_cases(n=LONG), tmp_path))


def test_records(tmp_path):
    sane = tmp_path / "sane"
    sane.mkdir()
    data = text_cases.photos(sane)
    outcome = child.run([*text_cases.PIXELS, "--data", str(data), "--out", "results"], sane)
    assert outcome.code == 0, outcome.err
    record = json.loads(next((sane / "results").rglob("*.json")).read_text())
    report(failures(text_cases.record_cases(record, n=LONG), tmp_path))
