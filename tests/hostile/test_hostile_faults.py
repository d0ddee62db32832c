"""Disks that are full, and escape sequences: a message, nothing half-written, and nothing that a terminal obeys."""

import json
import subprocess

import numpy as np
import pytest
from hostile import child, escape_cases, store_cases, text_cases, weights_cases
from hostile.campaign import LONG, failures, report, unclear

COMMANDS = {
    "extract": store_cases.EXTRACT,
    "eval": (*store_cases.EVAL, "--out", "results"),
    "convert": ("convert", "w.pth", "out.safetensors", "--to", "torchvision"),
    "leaderboard": ("leaderboard", "records", "--csv", "board.csv", "--html", "board.html"),
    "to-kwcoco": ("data", "to-kwcoco", "photos", "m.json", "--overwrite"),
}
SIZES = (600, 1500, 3000, 5000, 20_000, 200_000)


def half_written(folder):
    """The files of results that cannot be read."""
    for file in (*folder.glob("results/**/*.json"), *folder.glob("m.json")):
        json.loads(file.read_text())
    for file in folder.glob("store/*/*.npy"):
        assert len(np.load(file)) == 12
    assert not (folder / "out.safetensors").exists() or (folder / "out.safetensors").stat().st_size > 200_000


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Photos, weights and records."""
    folder = tmp_path_factory.mktemp("whole")
    text_cases.photos(folder)
    (folder / "w.pth").write_bytes(weights_cases.torch_file(weights_cases.tensors()))
    outcome = child.run([*text_cases.PIXELS, "--data", "photos", "--out", "records"], folder)
    assert outcome.code == 0, outcome.err
    return folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_full_disk_is_one_message_and_the_same_command_works_with_more_room(tmp_path, whole, command):
    found, failed = [], 0
    for size in SIZES if LONG else SIZES[1::3]:
        place = tmp_path / str(size)
        subprocess.run(["cp", "-r", str(whole), str(place)], check=True)
        for limit in (size, None):
            outcome = child.run(COMMANDS[command], place, largest=limit)
            wrong = unclear(outcome, place) or (outcome.code and limit is None)
            if wrong:
                found.append(f"{size}, limit {limit}: {wrong}: {outcome.err[-300:]}")
            failed += limit is not None and outcome.code == 1
            half_written(place)
    report(found)
    assert failed or command in ("leaderboard", "to-kwcoco")


def test_escape_sequences(tmp_path):
    def raw(outcome, folder):
        said = outcome.out + outcome.err
        return "a raw control character" if any(c in said for c in "\x07\x9b\x1b") else ""

    report(failures(escape_cases.escape_cases(), tmp_path, judges=(raw,)))
