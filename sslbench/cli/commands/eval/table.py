"""Tables that `eval` ends with: results, and scores over a training."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sslbench import leaderboard
from sslbench.cli.echo import echo, echo_text, is_verbose, note
from sslbench.cli.tables import INTERVAL, print_table
from sslbench.evaluation.beside import errors_by_severity
from sslbench.evaluation.trainings import ONE_TRAINING
from sslbench.leaderboard.marks import underfitted
from sslbench.leaderboard.over_training import training_curves, write_training_curves
from sslbench.metrics.catalog import find
from sslbench.results import MetricValue, Result, mean_line
from sslbench.results.records import PREDICTIONS, predictions_paths, read_readable
from sslbench.targets import kinds
from sslbench.train.checkpoints import position, run_name

SCORED_ELSEWHERE = "detections"  # of `sslbench score`, which trains nothing

_NAMES = ("weights", "layer", "protocol", "metric")  # columns that name a result
_NAMES_OF_FLOORS: tuple[Callable[[Result], str], ...] = (
    lambda result: _protocol(result),
    lambda result: result.weights.backbone,
    lambda result: result.layer,
)
_SHOWN = 10  # groups of a column
_SEVERITY = re.compile(r"corruption_error\(\w+,\d\)")


def print_results(results: list[Result]) -> None:
    """Print one row per result, the headline metric with its interval, and below the rows their floors."""
    rows = []
    for result in results:
        metric = result.metrics[result.headline]
        flags = [] if result.converged is not False else ["not converged"]
        flags += ["selected on test"] if str(result.selected.get("on", "")).startswith("test") else []
        flags += ["underfitted"] if underfitted(result) else []
        flags += ["partial weights"] if result.weights.partial else []
        value = _number(metric.value) + (f" ({', '.join(flags)})" if flags else "")
        train = "" if result.train is None else _number(result.train)
        *names, _ = _names(result, results)
        rows.append((*_names(result, results), value, _interval(metric), train, _selected(result)))
        kind = kinds()[result.data.labels]
        for name in kind.beside if result.headline == kind.metric else ():
            if beside := result.metrics.get(name):
                rows.append((*names, name, _number(beside.value), _interval(beside), "", ""))
    headings = (*_NAMES, "value", INTERVAL, "train", "selected")
    print_table(headings, rows, names=_NAMES, shared=("weights", "layer"), wrapped="selected")
    _print_groups(results)
    for result in results:
        _print_parts(result)
    for result in results:
        if result.objects_file is not None:
            _print_detections(result)
    _print_layers(results)
    remarks = _floors(results) + _missing_floors(results)
    parts = [part for result in results for part in (result.data.train, result.data.test)]
    remarks += [f"{part.name}: n = {part.n_used:,} of {part.n:,} samples" for part in parts if part.n_used < part.n]
    remarks += [line for result in results if (line := _overlaps(result))]
    remarks += [_trainings(result) for result in results if result.seeds is not None]
    # Results of several layers have the same remark.
    for line in dict.fromkeys(remarks):
        echo_text(line)
    for result in results:
        for reference in result.references:
            changed = ", on a modified benchmark" if result.benchmark and result.benchmark.modified else ""
            echo(f"{_protocol(result)} on {result.weights.name}: {reference.line()}{changed}")
    for result in results if is_verbose() else ():
        echo(f"{result.protocol.name}: {result.file}")


def print_verdict(results: list[Result], out: Path) -> None:
    """Print how the results stand to each other and to their floors, and the folder of the records."""
    # Floors that have records of their own stand beside those of the results.
    folders = dict.fromkeys(result.file.parent for result in results if result.file is not None)
    beside = [r for folder in folders for r in read_readable(folder)[0] if r.is_floor]
    own = {result.id for result in results}
    for verdict in leaderboard.table([*results, *(floor for floor in beside if floor.id not in own)]).verdicts:
        echo_text(verdict)
    note(f"records: {out}; sslbench leaderboard {out}  prints one table of all there")


def _floors(results: list[Result]) -> list[str]:
    """Return the floors in a line: one for each protocol, and each backbone or layer where they differ."""
    several = [len({name(result) for result in results}) > 1 for name in _NAMES_OF_FLOORS]
    groups: dict[str, dict[str, None]] = {}
    for result in results:
        stated = {name: floor[result.headline] for name, floor in result.floors.items() if result.headline in floor}
        usual = [name for name in ("untrained", "pixels", "majority") if name in stated]
        floors = ", ".join(filter(None, map(result.floor_text, dict.fromkeys((*usual, *stated)))))
        named = [name(result) for name, shown in zip(_NAMES_OF_FLOORS, several, strict=True) if shown]
        groups.setdefault(floors, {})[" ".join(named)] = None
    return [
        f"floors{' of ' if any(named) else ''}{', '.join(named)}: {floors}"
        for floors, named in groups.items()
        if floors
    ]


def _names(result: Result, results: list[Result]) -> tuple[str, ...]:
    """Return weights, layer, protocol and metric; with the test part where the results of a protocol differ in it."""
    this = result.weights, result.layer, result.protocol.name
    tested = {r.data.test.name for r in results if (r.weights, r.layer, r.protocol.name) == this}
    metric = f"{result.headline} on {result.data.test.name}" if len(tested) > 1 else result.headline
    return result.weights.name, result.layer, _protocol(result), metric


def _print_layers(results: list[Result]) -> None:
    """Print the layers of each protocol by their scores on the held-out part of train."""
    groups: dict[tuple[str, ...], dict[str, float]] = {}
    for result in results:
        on, score = str(result.selected.get("on", "")), result.selected.get("score")
        if on.startswith("held-out") and isinstance(score, float):
            key = _protocol(result), result.weights.name, result.data.test.name, on
            groups.setdefault(key, {})[result.layer] = score
    for (protocol, weights, _, on), scores in groups.items():
        if len(scores) > 1:
            order = sorted(scores, key=lambda layer: -scores[layer])
            echo_text(
                f"{protocol} on {weights}: best layers on {on}: {', '.join(f'{n} {scores[n]:.3f}' for n in order)}"
            )


def _print_groups(results: list[Result]) -> None:
    """Print the groups of every column asked for, the worst first; the rest are in the record."""
    rows: list[tuple[str, ...]] = []
    for result in results:
        names = _names(result, [result])
        for column, groups in result.groups.items():
            for i, group in enumerate(groups[:_SHOWN]):
                name = f"{group.name} (worst of {len(groups)})" if i == 0 else group.name
                value, interval = _number(group.metric.value), _interval(group.metric)
                rows.append((*names, column, name, value, interval, f"{group.metric.n:,}"))
            if len(groups) > _SHOWN:
                rows.append((*names, column, f"... and {len(groups) - _SHOWN} more", "", "", ""))
    if rows:
        echo()
        named = (*_NAMES, "by", "group")
        print_table((*named, "value", INTERVAL, "n"), rows, names=named, shared=(*_NAMES, "by"))


def _print_parts(result: Result) -> None:
    """Print the metrics of parts of the data, such as `corruption_error(fog,3)`: a row per part, severities aside."""
    found: dict[tuple[str, str], MetricValue] = {}
    for name, value in result.metrics.items():
        part = re.fullmatch(r"(\w+)\((.*)\)", name)
        if _SEVERITY.fullmatch(name):
            continue
        if part:
            found[part[1], part[2].replace(",", " ")] = value
        elif find(name).needs in ("versions", "videos") and name != result.headline:
            found[name, "all"] = value
    if not found:
        return
    severities = errors_by_severity(result)
    places = sorted({at for values in severities.values() for at in values})
    rows = []
    for (metric, name), value in found.items():
        by_severity = severities.get(name, {}) if metric == "corruption_error" else {}
        each = (_number(by_severity[at].value) if at in by_severity else "" for at in places)
        digits = 2 if find(metric).unit == "%" else 4
        rows.append((metric, name, _number(value.value, digits), _interval(value, digits), *each))
    echo(f"\n{_protocol(result)} on {result.weights.name}, {result.layer}:")
    headings = ("metric", "of", "value", INTERVAL, *(f"severity {at}" for at in places))
    print_table(headings, rows, names=("metric", "of"))


def _print_detections(result: Result) -> None:
    """Print the metrics, classes, files and notes of a detector."""
    first = [name for name in ("AP", "AP50", "AP75") if name in result.metrics]
    values = {name: result.metrics[name].value for name in dict.fromkeys([*first, *result.metrics])}
    echo(f"{result.weights.name}: " + ", ".join(f"{k} {_number(v, 1)}" for k, v in values.items()))
    echo("per class: " + ", ".join(f"{k} {_number(v, 1)}" for k, v in result.per_class.items()))
    for name in ("keypoint_AP", "uniform_keypoint_AP"):
        if name in result.floors.get("mean pose", {}):
            echo(f"mean pose in the detected boxes: {name} {_number(result.floors['mean pose'][name], 1)}")
    if of_keypoints := result.variants.get("per keypoint, AP"):
        echo("per keypoint: " + ", ".join(f"{k} {_number(v, 1)}" for k, v in of_keypoints.items()))
    for path in predictions_paths(result).values() if is_verbose() else ():
        stem = str(path).removesuffix(PREDICTIONS)
        echo(f"predictions: {path}")
        if Path(f"{stem}.png").is_file():
            echo(f"pictures: {stem}.png")
        if Path(f"{stem}.detector.torch").is_file():  # a network of Detectron2 alone has no detector file
            echo(f"detector: {stem}.detector.torch")
    for line in result.notes:
        if line != ONE_TRAINING:  # the table has it
            echo(line, err=not re.match(rf"{re.escape(result.weights.name)}: \w*AP ", line))


def _overlaps(result: Result) -> str:
    """Return the line on suspected overlaps and the score without them."""
    found = result.overlaps
    if found is None or not found.n:
        return ""
    without = ""
    if found.without is not None:
        without = f"; {result.headline} without them {_number(found.without.value)} ({_interval(found.without)})"
    overlaps = f"{found.n:,} suspected overlap{'s' if found.n > 1 else ''} between train and test"
    where = f"{_protocol(result)} on {result.weights.name}, {result.layer}"
    listed = result.file.with_name(found.pairs_file) if result.file and found.pairs_file else found.pairs_file
    return f"{where}: {overlaps}{without}, listed in {listed}"


def _trainings(result: Result) -> str:
    """Return the values of several trainings, or that there is one."""
    if not result.trainings:
        made_here = result.protocol.name != SCORED_ELSEWHERE
        remedy = "seeds=3 measures it" if made_here else "files of several trainings measure it"
        return f"{_protocol(result)}: one training, so the variance between trainings is unknown ({remedy})"
    values = [training.metrics.get(result.headline) for training in result.trainings]
    line = mean_line(result.headline, values, result.seed)
    return f"{_protocol(result)} on {result.weights.name}, {result.layer}: {line}"


def _missing_floors(results: list[Result]) -> list[str]:
    """Return the floors that are missing and the reasons: a line for all results that miss the same."""
    groups: dict[str, list[str]] = {}
    for result in results:
        missing = "; ".join(f"no floor '{name}': {reason}" for name, reason in result.missing_floors.items())
        if missing:
            groups.setdefault(missing, []).append(_protocol(result))
    return [
        f"{', '.join(dict.fromkeys(found))}{f' ({len(found)} results)' if len(found) > 1 else ''}: {missing}"
        for missing, found in groups.items()
    ]


def _protocol(result: Result) -> str:
    """Return the protocol, with the preset it was run with: 'knn (knn/dino)'."""
    noise = result.data.noise_text
    if result.preset is None:
        return result.protocol.name + noise
    return f"{result.protocol.name} ({result.preset.name}{', modified' if result.preset.modified else ''}){noise}"


def _number(value: float | None, digits: int = 2) -> str:
    return "n/a" if value is None else f"{value:.{digits}f}"


def _interval(metric: MetricValue, digits: int = 2) -> str:
    if metric.low is None or metric.high is None:
        return ""
    return f"{metric.low:.{digits}f} .. {metric.high:.{digits}f}"


def _selected(result: Result) -> str:
    """Return the selection, without details: 'k = 20', and with --verbose 'on held-out 10 % of train'."""
    first = next(((k, v) for k, v in result.selected.items() if isinstance(v, int | float)), None)
    if first is None:
        return ""
    where = f" on {result.selected['on']}" if "on" in result.selected and is_verbose() else ""
    return f"{first[0]} = {first[1]:g}{where}"


def print_over_training(folder: Path, results: Mapping[str, Sequence[Result]], out: Path) -> None:
    """Print a row per checkpoint and protocol, and write CSV and PNG beside the records."""
    curves = training_curves([(position(Path(file)), own) for file, own in results.items()])
    if not curves:
        return
    floors = list(dict.fromkeys(name for curve in curves for name in curve.first.floors))
    names = ("protocol", "layer", "update", "epoch", "metric")
    rows = []
    for point in (point for curve in curves for point in curve.points):
        result, score = point.result, point.score
        epoch = "" if point.at.epoch is None else f"{point.at.epoch:.4g}"
        beside = [_number(result.floors.get(name, {}).get(result.headline)) for name in floors]
        fixed = [result.protocol.name, result.layer, str(point.at.step), epoch, result.headline]
        rows.append([*fixed, _number(score.value), _interval(score), *beside])
    print_table((*names, "value", INTERVAL, *floors), rows, names=names)
    for curve in curves:
        if (gain := curve.gain) is None:
            echo(f"{curve.title}: no paired comparison of first and last")
            continue
        first, last = curve.points[0].at.step, curve.points[-1].at.step
        difference = f"{gain.difference:+.2f} ({gain.low:+.2f} .. {gain.high:+.2f})"
        echo(
            f"{curve.title}: {gain.metric} of update {last} less update {first}: {difference}, "
            f"paired over {gain.n} samples"
        )
    if len(results) == 1:
        echo(f"{folder} has one checkpoint: pretraining keeps more with keep=1000", err=True)
    table, picture = write_training_curves(curves, run_name(folder), out)
    echo(f"\n{table}\n{picture}")
