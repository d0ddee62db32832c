"""The guide on parts of one's own, executed: its files are written and its commands run; each part leaves its trace."""

import contextlib
import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml

from sslbench.backbones.load import load_backbone
from sslbench.cli.main import main

PAGE = Path(__file__).parents[1] / "docs" / "own-parts.md"


def blocks():
    """Return (language, text) of every code block of the page."""
    return re.findall(r"^```(\w*)\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder in which all commands of the page have run."""
    folder = tmp_path_factory.mktemp("own")
    files = {}
    for language, text in blocks():
        if language:
            name, _, content = text.removeprefix("# ").partition("\n")
            files[name] = files.get(name, "") + content
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    commands = [line for language, text in blocks() if not language for line in text.splitlines()]
    assert len(files) == 2 and len(commands) == 9
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        for line in commands:
            variables, _, rest = line.partition("sslbench ")
            for variable in shlex.split(variables):
                patch.setenv(*variable.split("=", 1))
            said = io.StringIO()
            words = [*shlex.split(rest), "--device", "cpu", "--workers", "0"]
            with contextlib.redirect_stderr(said), pytest.raises(SystemExit) as ended:
                main(words)
            assert ended.value.code == 0, f"{line}\n{said.getvalue()}"
            patch.delenv("SSLBENCH_PATH", raising=False)
        yield folder / "runs"
    sys.modules.pop("my_parts", None)


def first_layer(path):
    """Return the first convolution in a file of weights."""
    found = load_backbone(str(path)).module.conv1.weight
    return tuple(found.flatten().tolist())


def test_every_command_of_the_page_writes_weights_of_its_own(runs):
    assert sorted(run.name for run in runs.iterdir()) == [
        *("crops", "darker", "groups", "losses", "mixed", "mixup", "posterized", "sign", "triangle")
    ]
    assert len({first_layer(run / "weights.torch") for run in runs.iterdir()}) == 9


def test_the_observer_writes_a_line_per_update(runs):
    lines = (runs / "losses" / "losses.txt").read_text().splitlines()
    assert [int(line.split()[0]) for line in lines] == [1, 2, 3, 4]


def test_the_schedule_gives_the_rates(runs):
    """The last of 4 updates is at 3/4 of the training; the peak of 1 is at 0.3."""
    rows = [json.loads(line) for line in (runs / "triangle" / "metrics.jsonl").read_text().splitlines()]
    rates = {row["step"]: row["lr"] for row in rows if "lr" in row}
    recipe = yaml.safe_load((runs / "triangle" / "config.yaml").read_text())["optimizer"]
    peak = recipe["lr"] * 64 / recipe["base_batch_size"]
    assert recipe["lr_scaling"] == "linear"
    assert rates[4] == pytest.approx(peak * 0.25 / 0.7)


def test_each_group_has_its_rates(runs):
    """4 updates: the run's rate rises for two; the triangle of the prototypes has its peak of 1 at the third."""
    rows = [json.loads(line) for line in (runs / "groups" / "metrics.jsonl").read_text().splitlines()]
    found = {row["step"]: row for row in rows if "lr" in row}
    assert [found[step]["lr_prototypes"] for step in (1, 2, 3, 4)] == pytest.approx([0, 0.0125, 0.025, 0.0125])
    assert found[1]["lr"] < found[3]["lr"]
