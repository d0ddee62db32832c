"""Numbers of small runs beside those that are kept: a change of the house must not move them.

    PYTHONPATH=tests python -m helpers.kept_numbers            # write tests/contracts/same_numbers/*.json anew
    PYTHONPATH=tests python -m helpers.kept_numbers coco knn   # write these runs only
    PYTHONPATH=tests python -m helpers.kept_numbers spread     # the power of ten by which a machine is apart, per run

The files hold what a user reads: metrics with intervals, choices, scores of samples, losses of updates, and which of
two runs share work. The runs are command lines and `helpers.runs`, so they outlive every move in the code. Write the
files anew only where a number should move, and say so in CHANGELOG.md.

Other processors round otherwise. With ATEN_CPU_CAPABILITY=avx2, ONEDNN_MAX_CPU_ISA=SSE41 and OPENBLAS_CORETYPE=Haswell
numbers were within 1e-4 of those made with AVX-512, but for the runs in `WIDER`; hence `NEAR`. Without AVX2
(`COMPARABLE`) torch resizes pictures in floats, and pixels are another grey level here and there: then 1e-2 is common.
"""

import contextlib
import csv
import io
import json
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_data import FORMATS, sample_module

from helpers import kept_runs, runs
from sslbench.cli.main import main as sslbench
from sslbench.train.observers import Observer

FOLDER = Path(__file__).parents[1] / "contracts" / "same_numbers"
NEAR = 1e-3
"""Largest difference of numbers, relative to the larger one and at least to 1; other processors round otherwise."""
WIDER = {"low-level": 0.02, "orientation": 0.02}
"""Runs within 1e-2: the correlation of a prediction that is almost constant, angles of vectors almost zero."""
COMPARABLE = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
MEASURED = ("headline", "train", "per_class", "selected", "variants", "groups", "seeds", "ranges")


def run(*words):
    """Run a command in this process."""
    errors = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        try:
            sslbench([str(word) for word in words])
        except SystemExit as end:
            assert end.code == 0, f"sslbench {' '.join(map(str, words))}: {errors.getvalue()}"


def evaluated(words, out):
    """Return what the records of an evaluation say, with a sketch of the scores beside each."""
    run("eval", *words, "--out", out)
    files = {path: json.loads(path.read_text()) for path in sorted(out.rglob("*.json"))}
    records = {path: record for path, record in files.items() if isinstance(record, dict) and "metrics" in record}
    return {f"{r['layer']}, {r['data']['train_part']}".rstrip(", "): _record(path, r) for path, r in records.items()}


def _record(path, record):
    kept = {"n": record["data"]["test"]["n_used"], "classes": len(record["data"]["test"]["classes"])}
    metrics = list(record["metrics"].items())[:10]
    kept["metrics"] = {name: [value["value"], value["low"], value["high"]] for name, value in metrics}
    kept |= {name: record[name] for name in MEASURED if record[name]}
    headline = record["headline"]
    kept["floors"] = {floor: values.get(headline) for floor, values in record["floors"].items()}
    if (scores := path.with_suffix(".scores.npz")).is_file():
        with np.load(scores) as arrays:
            kept["scores"] = sketch(arrays["scores"])
    return kept


def sketch(scores):
    """Return shape, moments, a sum over all places with weights of their own, and the first values of an array."""
    values = np.nan_to_num(scores.astype(float), posinf=1e3, neginf=-1e3).ravel()
    weights = np.sin(np.arange(1, len(values) + 1))
    moments = [values.mean(), values.std(), (weights * values).mean()] if len(values) else []
    return {"shape": list(scores.shape), "moments": moments, "first": values[:4].tolist()}


class Losses(Observer, list):
    """Observer of a training: the loss of each update."""

    def line(self, line):
        self.append(line.loss)


def trained(name, out):
    method, changes = kept_runs.TRAININGS[name]
    losses = Losses()
    runs.run(method, out / "run", observers=[losses], **{**kept_runs.PART, **changes})
    return {"losses": list(losses)}


def detector(words, out):
    """Return the losses of a detector; it detects nothing yet."""
    run("eval", *words, "--out", out)
    (log,) = out.rglob("*.metrics.jsonl")
    return {"losses": [json.loads(line)["loss"] for line in log.read_text().splitlines()]}


def of_format(name, folder):
    """Return what the records of data of a format say, and of its boxes."""
    folder.mkdir()
    place = sample_module(name).make(folder)
    words = kept_runs.OTHERS.get(name) or kept_runs.BY_LABELS[sample_module(name).LABELS]
    found = evaluated((*words, "--data", place), folder.with_name("out"))
    if name in kept_runs.WITH_BOXES:
        boxes = evaluated((*kept_runs.BOXES, "--data", place), folder.with_name("boxes"))
        found |= {f"boxes on {layer}": record for layer, record in boxes.items()}
    facts = ("n", "classes", "headline", "scores")
    return {
        layer: {**{fact: record[fact] for fact in facts}, "metrics": dict(list(record["metrics"].items())[:2])}
        for layer, record in found.items()
    }


def shared_work(folder):
    """Return of each variant of a run how much of its work the first ones did, and whether a board has a place more."""
    found, first, seen, cache = {}, {}, set(), folder / "cache"
    for number, (name, words) in enumerate(kept_runs.VARIANTS.items()):
        out, board = folder / str(number), folder / f"{number}.csv"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SSLBENCH_CACHE", str(cache))
            run("eval", *words, "--out", out)
        records = [json.loads(path.read_text()) for path in out.rglob("*.json")]
        ids = tuple(sorted(record["id"] for record in records if "metrics" in record))
        entries = {path.parent.name for path in cache.rglob("meta.json")}
        run("leaderboard", folder / "0", out, "--csv", board)
        header, *rows = csv.reader(board.read_text().splitlines())
        columns = sum(f"{name} low" in header for name in header)
        found[name] = {
            "record of": first.setdefault(ids, name),
            "features made": len(entries - seen),
            "beside the first": f"rows: {len(rows)}, columns: {columns}",
        }
        seen |= entries
    return found


def cases():
    """Return file -> name of a run -> function that runs it, given a new folder."""
    return {
        "evaluations": {name: _evaluation(words) for name, words in kept_runs.EVALUATIONS.items()},
        "formats": {name: _format(name) for name in FORMATS if name not in kept_runs.NOT_EVALUATED},
        "detectors": {name: _detector(words) for name, words in kept_runs.DETECTORS.items()},
        "trainings": {name: _training(name) for name in kept_runs.TRAININGS},
        "keys": {"variants": shared_work},
    }


def _evaluation(words):
    return lambda folder: evaluated(words, folder / "out")


def _detector(words):
    return lambda folder: detector(words, folder / "out")


def _format(name):
    return lambda folder: of_format(name, folder / "data")


def _training(name):
    return lambda folder: trained(name, folder)


def differences(found, kept, near=NEAR):
    """Return lines about what is not as it was kept; see `NEAR`."""
    return list(_unlike(found, kept, "", near))


def _unlike(found, kept, place, near):
    if isinstance(kept, dict) and isinstance(found, dict):
        if list(found) != list(kept):
            yield f"{place}: {', '.join(found)} instead of {', '.join(kept)}"
        for name in kept.keys() & found.keys():
            if name == "metrics" and place.count("/") < 2:
                yield from _other_metrics(found, kept, f"{place}/{name}", near)
            else:
                yield from _unlike(found[name], kept[name], f"{place}/{name}", near)
    elif isinstance(kept, list) and isinstance(found, list) and len(found) == len(kept):
        for number, (one, other) in enumerate(zip(found, kept, strict=True)):
            yield from _unlike(one, other, f"{place}/{number}", near)
    elif not _close(found, kept, near):
        yield f"{place}: {found} instead of {kept}"


def _other_metrics(found, kept, place, near):
    """Yield metrics that moved; a share of n may by 1 / n, a sample on the edge, and then its interval too."""
    yield from _unlike(list(found["metrics"]), list(kept["metrics"]), place, near)
    for name in kept["metrics"].keys() & found["metrics"].keys():
        one, other = found["metrics"][name], kept["metrics"][name]
        flip = 100 / max(kept["n"], 1)
        moved = [_moved(*ends) for ends in zip(one, other, strict=True)]
        if not _close(one, other, near) and not (abs(moved[0] - flip) < 1e-3 and max(moved) <= 3 * flip):
            yield f"{place}/{name}: {one} instead of {other}"


def _moved(one, other):
    return abs(one - other) if None not in (one, other) else math.inf if one != other else 0.0


def _close(one, other, near):
    if isinstance(one, list):
        return len(one) == len(other) and all(_close(*pair, near) for pair in zip(one, other, strict=True))
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (one, other)]
    if not all(numbers):
        return one == other
    return abs(one - other) <= near * max(1, abs(one), abs(other))


def text(runs_of_file):
    """Return what is kept as JSON: a line per run's part, numbers of six digits."""
    lines = []
    for name, content in sorted(runs_of_file.items()):
        parts = [f"  {json.dumps(key)}: {json.dumps(rounded(value))}" for key, value in content.items()]
        lines.append(f" {json.dumps(name)}: {{\n" + ",\n".join(parts) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def rounded(value):
    """Return numbers with six digits, and no digits that are none."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) and math.isfinite(value) else value


def kept(file):
    path = FOLDER / f"{file}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def kept_run(file, name):
    """Return what is kept of one run."""
    assert name in kept(file), (
        f"{file} has no {name}; to keep it: PYTHONPATH=tests python -m helpers.kept_numbers {name}"
    )
    return kept(file)[name]


@contextlib.contextmanager
def world(folder):
    """Let runs start in a folder with data, with one thread and a cache of their own."""
    threads, cache = torch.get_num_threads(), folder / "cache"
    cache.mkdir()
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        patch.setenv("SSLBENCH_CACHE", str(cache))
        torch.set_num_threads(1)
        kept_runs.write_data(folder)
        yield
        torch.set_num_threads(threads)


def main(*words):
    names = [word for word in words if word != "spread"]
    if unknown := set(names) - {name for functions in cases().values() for name in functions}:
        sys.exit(f"no such runs: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as folder, world(Path(folder)):
        for file, functions in cases().items():
            found = {}
            chosen = {name: function for name, function in functions.items() if not names or name in names}
            for number, (name, function) in enumerate(chosen.items()):
                place = Path(folder) / f"{file} {number}"
                place.mkdir()
                found[name] = rounded(function(place))
                if "spread" in words:
                    bounds = [10.0**power for power in range(-6, 0)]
                    lines = [differences(found[name], kept_run(file, name), bound) for bound in bounds]
                    near = [bound for bound, of_bound in zip(bounds, lines, strict=True) if not of_bound]
                    print(f"{file}, {name}:", near[0] if near else lines[-1], flush=True)  # noqa: T201 - a tool
            if found and "spread" not in words:
                FOLDER.mkdir(exist_ok=True)
                (FOLDER / f"{file}.json").write_text(text({**(kept(file) if names else {}), **found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
