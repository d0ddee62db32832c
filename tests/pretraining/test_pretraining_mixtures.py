"""Pretraining on several sources: the log says what was shown of each, and other weights are another run."""

import json
import logging
from pathlib import Path

import pytest
from helpers import runs

from sslbench.errors import UsageError
from sslbench.pretraining import PretrainRequest, pretrain
from sslbench.train.observers.always import Origins
from sslbench.train.observers.json_lines import JsonLines


def run(tmp_path, weight, *, observers=()):
    (tmp_path / "both.yaml").write_text(
        f"sources: {{one: {{data: 'sklearn:digits', weight: {weight}}}, two: 'kwcoco:shapes8-32'}}\n"
    )
    settings = runs.settings("simclr", epochs=0.02, batch_size=8, log_every=3, schedule={"warmup_epochs": 0})
    request = PretrainRequest(settings, data=str(tmp_path / "both.yaml"), out=tmp_path / "out")
    return pretrain(request, command="test", observers=observers)


def test_the_log_says_how_many_images_of_each_source_were_shown(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="sslbench"):
        outcome = run(tmp_path, 3, observers=[JsonLines(tmp_path / "metrics.jsonl"), Origins()])
    lines = [json.loads(text) for text in Path(tmp_path / "metrics.jsonl").read_text().splitlines()]
    shown = {name: sum(line.get(f"images/{name}", 0) for line in lines) for name in ("one", "two")}
    assert sum(shown.values()) == 8 * outcome.steps
    assert shown["two"] > 2  # a quarter, and not 8 of 1,805
    told = next(text for text in caplog.messages if text.startswith("images shown in updates 1 to"))
    assert f"one {shown['one']} (" in told and f"two {shown['two']} (" in told
    assert (
        "pretraining draws one 75.0%, two 25.0%, by their weights; everything else uses every image once" in caplog.text
    )


def test_a_run_is_not_continued_with_other_weights(tmp_path):
    run(tmp_path, 3)
    run(tmp_path, 3)
    with pytest.raises(UsageError, match=r"other settings, data or weights: weights.one: 3.0"):
        run(tmp_path, 2)
