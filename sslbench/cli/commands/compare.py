"""`sslbench compare`."""

import json
import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import terminal
from sslbench.cli.echo import echo, echo_text
from sslbench.cli.flags import LocalPath, argument_options, flag
from sslbench.cli.tables import INTERVAL, print_table
from sslbench.errors import ResultError, UsageError
from sslbench.leaderboard.columns import precision_text
from sslbench.leaderboard.compare import compare, differing, left_out, pairs, with_holm
from sslbench.results import plain
from sslbench.results.records import read, read_tree

if TYPE_CHECKING:
    from sslbench.leaderboard.compare import Comparison
    from sslbench.results import Result

log = logging.getLogger("sslbench")


@click.command("compare", context_settings={"allow_extra_args": True})
@click.argument("a", type=LocalPath())
@click.argument("b", type=LocalPath())
@argument_options
@click.pass_context
def command(
    ctx: click.Context,
    a: Path,
    b: Path,
    metric: str | None = flag("Metric to compare. Default: the leading metric."),
    as_json: bool = flag("Print everything as JSON.", "--json", default=False),
) -> None:
    """Test whether two results differ: A and B are records, or folders of records.

    The test samples are resampled for both at once (paired bootstrap). "tied" means that the 95 % interval of the
    difference contains 0. Groups of samples stay together; means over draws are compared over all draws. Of two
    folders, all pairs that were measured in the same way are compared.

    \b
    sslbench compare results/knn/a-1f0c.json results/knn/b-77e2.json
    sslbench compare results_a/ results_b/ --metric balanced_accuracy
    """  # noqa: D301
    terminal.show_messages()
    if ctx.args:
        raise UsageError(
            f"compare takes two results or folders, not {2 + len(ctx.args)}",
            "A table of several, with ties with the best: sslbench leaderboard FOLDER ...",
        )
    if a.is_file() and b.is_file():
        found = [compare(read(a), read(b), metric=metric)]
    else:
        results_a, results_b = read_tree(a), read_tree(b)
        matched = pairs(results_a, results_b, metric)
        if not matched:
            raise _nothing(a, b, results_a, results_b)
        found = with_holm([compare(one, other, metric=metric) for one, other in matched])
        if line := left_out(results_a, results_b, matched, metric):
            log.info(line)
    if as_json:
        echo(json.dumps(plain([_plain(one) for one in found]), indent=1, allow_nan=False))
    else:
        _print(found)


def _nothing(a: Path, b: Path, results_a: "Sequence[Result]", results_b: "Sequence[Result]") -> Exception:
    """Return the error for results without a comparable pair; it lists the differences of the most similar two."""
    options = [(differing(x, y), x, y) for x in results_a for y in results_b]
    if not options:
        return ResultError(
            f"there are no result records below {a if not results_a else b}", "`sslbench eval` writes result records."
        )
    nearest, x, y = min(options, key=lambda option: len(option[0]))
    if not nearest:
        return ResultError(
            f"{a} and {b}: both folders hold the same results, or several layers or seeds without a counterpart",
            "Name two records instead of the folders.",
        )
    listed = "\n".join(f"  {key}: {one} / {other}" for key, one, other in nearest)
    return ResultError(
        f"no result below {a} is comparable with one below {b}; the two most similar differ in (A / B):\n{listed}",
        f"They are {x.file} and {y.file}.",
    )


def _print(found: "list[Comparison]") -> None:

    for letter, names in (("A", {one.a.weights.name for one in found}), ("B", {one.b.weights.name for one in found})):
        echo(f"{letter}: {', '.join(sorted(names))}")
    several = len({(one.a.weights.name, one.b.weights.name) for one in found}) > 1
    rows = []
    for one in found:
        layer = one.a.layer if one.a.layer == one.b.layer else f"{one.a.layer} / {one.b.layer}"
        both = f"{one.a.weights.name}, {one.b.weights.name}" if several else ""
        cells = [both, one.a.protocol.name, layer, one.metric, one.verdict]
        cells += [_number("{:.2f}", one.value_a), _number("{:.2f}", one.value_b), _number("{:+.2f}", one.difference)]
        cells += [_number("{:+.2f} .. {:+.2f}", one.low, one.high), f"{one.n:,}", _p(one.p_mcnemar)]
        rows.append([*cells, _p(one.p_holm) if len(found) > 1 else ""])
    named = ("A, B", "protocol", "layer", "metric", "verdict")
    headings = (*named, "A", "B", "A - B", INTERVAL, "n", "McNemar p", "Holm p")
    print_table(headings, rows, names=named, shared=("layer", "n"))
    for line in _notes(found):
        echo_text(line)


def _number(form: str, *values: float) -> str:
    """Return numbers in a form; 'n/a' where one is not computable."""
    return "n/a" if any(map(math.isnan, values)) else form.format(*values)


def _p(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value >= 0.0001 else "< 0.0001"


def _notes(found: "list[Comparison]") -> list[str]:

    lines = []
    if len(found) > 1:
        lines.append(
            f"{len(found)} comparisons: each verdict stands alone, so about one in twenty pairs of equal models "
            "differs by chance. Holm p is corrected for all of them."
        )
    grouped = sorted({one.groups for one in found if one.groups is not None})
    if grouped:
        numbers = ", ".join(f"{number:,}" for number in grouped)
        lines.append(
            f"The test samples form {numbers} groups, which are kept together: McNemar p is computed over groups."
        )
    if any(one.trainings == (1, 1) for one in found):
        lines.append("One training each: the variance between trainings is unknown (seeds=3 measures it).")
    several = {one.trainings for one in found if one.trainings is not None and one.trainings != (1, 1)}
    lines += [
        f"Means over {a} trainings of A and {b} of B: the interval covers other trainings and other test samples."
        for a, b in sorted(several)
    ]
    means = [one for one in found if one.p_mcnemar is None and one.metric == "top1"]
    if any(one.trainings in (None, (1, 1)) for one in means):
        lines.append("Means over draws: the interval covers other draws and other test samples.")
    if any(one.half for one in found):
        lines.append(
            "Scores of more than 100 classes are stored in half precision: values may differ from the records' in the "
            "third digit after the point. top1 and top5 are exact."
        )
    if any(one.a.data.known_by == "rows" for one in found):
        lines.append(
            "Features without ids: row i of A is taken for the same sample as row i of B, as their labels agree. "
            "A column 'id' beside the labels makes sure of it."
        )
    for one in found:
        first, second = one.a.preprocessing, one.b.preprocessing
        different = [
            f"{name} {first.get(name)} / {second.get(name)}"
            for name in sorted({*first, *second} - {"origin"})
            if first.get(name) != second.get(name)
        ]
        if different:
            lines.append(f"The images were preprocessed differently (A / B): {', '.join(different)}.")
        precisions = precision_text(one.a), precision_text(one.b)
        if len(set(precisions)) > 1:
            lines.append(f"The features were computed differently (A / B): {' / '.join(precisions)}.")
    return list(dict.fromkeys(lines))


def _plain(one: "Comparison") -> dict[str, Any]:
    def side(result: "Result") -> dict[str, Any]:
        return {"file": result.file, "id": result.id, "weights": result.weights.name, "layer": result.layer}

    names = (
        "metric",
        "n",
        "groups",
        "value_a",
        "value_b",
        "difference",
        "low",
        "high",
        "p_mcnemar",
        "p_holm",
        "half",
        "verdict",
        "trainings",
    )
    return {"a": side(one.a), "b": side(one.b), "protocol": one.a.protocol.name} | {n: getattr(one, n) for n in names}
