"""Seeded defects, and the tests that find them: a measure of what the suite is worth.

    PYTHONPATH=tests python -m helpers.mutants draw defects.json
    PYTHONPATH=tests python -m helpers.mutants trace defects.json FOLDER
    PYTHONPATH=tests python -m helpers.mutants run defects.json FOLDER

`draw` chooses defects (an operator, a bound, a sign, a constant, a dropped argument, a lost field, a condition turned
round) in functions of the parts below, by a fixed seed. `trace` copies the committed files to FOLDER/tree, where each
chosen expression stands in both forms behind a switch, and runs the suite once to learn its duration and the tests that
reach each switch. `run` turns on one defect after the other and runs those tests, the quickest first, until one fails;
FOLDER/outcomes.json and a list of survivors are the result. About an hour on two cores; not part of the suite.
"""

import ast
import collections
import contextlib
import copy
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PARTS = "protocols metrics solvers identity.py data/splits features weights train evaluation results".split()
SECONDS = 60
"""Processor time of the tests of one defect; one that is alive by then counts as a survivor."""
SWITCH = '''"""The switch of seeded defects."""

import os

_ACTIVE = int(os.environ.get("SSLBENCH_MUTANT", "-1"))
_LOG = os.environ.get("SSLBENCH_MUTANT_LOG")
_seen = set()


def mutant(number):
    """Return whether a defect is turned on; note the test that asks."""
    if _LOG:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if (number, test) not in _seen:
            _seen.add((number, test))
            with open(f"{_LOG}/{os.getpid()}", "a") as log:
                log.write(f"{number}\\t{test}\\n")
    return number == _ACTIVE
'''
COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


def defects_of(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Yield the kinds and the defective forms of an expression."""
    other = copy.deepcopy(node)
    match other:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            other.ops = [COMPARISONS[type(operator)]()]
            yield ("bound" if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE) else "condition"), other
        case ast.BoolOp():
            other.op = ast.Or() if isinstance(other.op, ast.And) else ast.And()
            yield "condition", other
        case ast.UnaryOp(op=ast.Not()):
            yield "condition", other.operand
        case ast.UnaryOp(op=ast.USub()) if not isinstance(other.operand, ast.Constant):
            yield "sign", other.operand
        case ast.BinOp() if type(other.op) in OPERATORS and not _is_text(other):
            other.op = OPERATORS[type(other.op)]()
            yield "operator", other
        case ast.Constant(value=float()) | ast.Constant(value=int()) if not isinstance(other.value, bool):
            yield "constant", ast.Constant(other.value + 1)
        case ast.Call() if other.keywords and other.keywords[-1].arg:
            other.keywords.pop()
            yield "argument", other
        case ast.Dict() if len(other.keys) > 1:
            other.keys.pop(), other.values.pop()
            yield "field", other
        case ast.List() if len(other.elts) > 1 and isinstance(other.ctx, ast.Load):
            other.elts.pop()
            yield "field", other


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in sides
    )


def sites(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """Yield the expressions in bodies of functions, each with the qualified name of its function."""

    def walk(node: ast.AST, name: str, inside: bool) -> Iterator[tuple[str, ast.expr]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from walk(child, f"{name}.{child.name}", False)
            elif isinstance(child, ast.FunctionDef):
                for statement in child.body:
                    yield from walk(ast.Module([statement], []), f"{name}.{child.name}", True)
            elif isinstance(child, ast.Raise | ast.AnnAssign | ast.JoinedStr | ast.match_case) and inside:
                continue  # words of messages, annotations and patterns
            elif inside and isinstance(child, ast.expr):
                yield name, child
                yield from walk(child, name, True)
            else:
                yield from walk(child, name, inside)

    yield from walk(tree, "", False)


def places(file: Path, root: Path) -> Iterator[tuple[dict[str, object], ast.expr, ast.expr]]:
    """Yield the possible defects of a file: a description that outlives changes elsewhere, and both expressions."""
    count: collections.Counter[tuple[str, ...]] = collections.Counter()
    for function, node in sites(ast.parse(file.read_text())):
        for kind, other in defects_of(node):
            key = (str(file.relative_to(root)), function.lstrip("."), kind, ast.unparse(node))
            names = dict(zip(("file", "function", "kind", "was"), key, strict=True))
            yield names | {"is": ast.unparse(other), "nth": count[key], "line": node.lineno}, node, other
            count[key] += 1


def draw(out: Path, number: int = 200, seed: int = 0) -> None:
    """Write a list of defects, as many of each part (a small one leaves the rest to the next), of all kinds."""
    root, rng, drawn = Path("sslbench"), random.Random(seed), []
    for i, part in enumerate(PARTS):
        files = sorted((root / part).rglob("*.py")) if (root / part).is_dir() else [root / part]
        by_kind = collections.defaultdict(list)
        for file in files:
            for place, _, _ in places(file, root):
                by_kind[place["kind"]].append(place)
        taken: set[tuple[object, object]] = set()
        while len(drawn) < number * (i + 1) // len(PARTS) and any(by_kind.values()):
            some = by_kind[rng.choice(sorted(kind for kind in by_kind if by_kind[kind]))]
            place = some.pop(rng.randrange(len(some)))
            if (place["file"], place["line"]) not in taken:  # never one inside another
                taken.add((place["file"], place["line"]))
                drawn.append(place)
    out.write_text(json.dumps(drawn, indent=1) + "\n")


class _Switched(ast.NodeTransformer):
    def __init__(self, forms: dict[tuple[int, int, int, int], tuple[int, ast.expr]]) -> None:
        self.forms = forms

    def visit(self, node: ast.AST) -> ast.AST:
        """Put the switch in place of a chosen expression."""
        where = (
            getattr(node, "lineno", 0),
            getattr(node, "col_offset", 0),
            getattr(node, "end_lineno", 0),
            getattr(node, "end_col_offset", 0),
        )
        if isinstance(node, ast.expr) and (form := self.forms.get((*where,))) and type(node).__name__ == form[2]:
            call = ast.Call(ast.Name("_mutant", ast.Load()), [ast.Constant(form[0])], [])
            return ast.IfExp(call, form[1], self.generic_visit(node))
        return self.generic_visit(node)


def build(defects: list[dict[str, object]], tree: Path) -> list[int]:
    """Copy the committed files and put the switches in; return the numbers of defects whose expression is gone."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], check=True, capture_output=True).stdout
    subprocess.run(["tar", "x", "-C", str(tree)], input=archive, check=True)
    root = tree / "sslbench"
    # Where reading an environment variable is no input of a run.
    (root / "runtime" / "mutant_switch.py").write_text(SWITCH)
    placed = set()
    for name in sorted({str(defect["file"]) for defect in defects}):
        file = root / name
        if not file.exists():
            continue
        forms = {}
        for place, node, other in places(file, root):
            for number, defect in enumerate(defects):
                if all(place[key] == defect[key] for key in ("file", "function", "kind", "was", "nth")):
                    where = (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
                    forms[where] = (number, other, type(node).__name__)
                    placed.add(number)
        module = _Switched(forms).visit(ast.parse(file.read_text()))
        at = next(i for i, statement in enumerate(module.body) if not _is_head(statement))
        module.body.insert(at, ast.parse("from sslbench.runtime.mutant_switch import mutant as _mutant").body[0])
        file.write_text(ast.unparse(ast.fix_missing_locations(module)) + "\n")
    return sorted(set(range(len(defects))) - placed)


def _is_head(statement: ast.stmt) -> bool:
    future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
    return future or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def trace(defects: Path, folder: Path) -> None:
    """Run the suite once with every defect off, and note durations and the tests that reach each switch."""
    missing = build(json.loads(defects.read_text()), folder / "tree")
    print(f"{len(missing)} expressions are gone: {missing}")
    shutil.rmtree(folder / "reached", ignore_errors=True)
    (folder / "reached").mkdir()
    (folder / "durations.tsv").unlink(missing_ok=True)
    environment = _environment(folder) | {
        "SSLBENCH_MUTANT_LOG": str(folder / "reached"),
        "SSLBENCH_MUTANT_DURATIONS": str(folder / "durations.tsv"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "helpers.mutants", "-n", "2", "--dist", "worksteal"]
    subprocess.run(command, cwd=folder / "tree", env=environment, check=False)


def _environment(folder: Path) -> dict[str, str]:
    tree = folder.resolve() / "tree"
    return os.environ | {
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}",
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def reaching(folder: Path) -> dict[int, list[str]]:
    """Return, for each switch, the tests that reach it, the quickest first; those that failed are left out."""
    seconds: collections.Counter[str] = collections.Counter()
    bad, by_file = set(), collections.defaultdict(set)
    for line in (folder / "durations.tsv").read_text().splitlines():
        test, outcome, duration = line.split("\t")
        seconds[test] += float(duration)
        by_file[test.split("::")[0]].add(test)
        if outcome != "passed":
            bad.add(test)
    tests = collections.defaultdict(set)
    for file in (folder / "reached").iterdir():
        for line in file.read_text().splitlines():
            number, test = line.split("\t")
            test, _, phase = test.rpartition(" ")
            if phase == "(setup)":  # a fixture may serve the whole file
                tests[int(number)] |= by_file[test.split("::")[0]]
            elif test:
                tests[int(number)].add(test)
    return {number: sorted(some - bad, key=lambda test: (seconds[test], test)) for number, some in tests.items()}


def run(defects: Path, folder: Path, only: list[int] | None = None) -> None:
    """Run the tests of every defect in two processes, and print the survivors."""
    number = len(json.loads(defects.read_text()))
    chosen = range(number) if only is None else only
    (folder / "run").mkdir(exist_ok=True)
    workers = []
    for half in range(2):
        mine = ",".join(str(n) for n in list(chosen)[half::2])
        environment = _environment(folder) | {"SSLBENCH_MUTANTS": mine, "SSLBENCH_MUTANT_FOLDER": str(folder.resolve())}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "helpers.mutants", "-p", "no:randomly"]
        with (folder / "run" / f"worker{half}.log").open("w") as log:
            workers.append(subprocess.Popen(command, cwd=folder / "tree", env=environment, stdout=log, stderr=log))
    for worker in workers:
        worker.wait()
    report(defects, folder)


def report(defects: Path, folder: Path) -> None:
    """Print counts by outcome and kind, and the survivors."""
    listed = json.loads(defects.read_text())
    outcomes = {int(file.stem): json.loads(file.read_text()) for file in (folder / "run").glob("*.json")}
    (folder / "outcomes.json").write_text(json.dumps({n: outcomes[n] for n in sorted(outcomes)}, indent=1))
    print(collections.Counter(outcome["outcome"] for outcome in outcomes.values()))
    for number in sorted(outcomes):
        if outcomes[number]["outcome"] in ("survived", "not reached"):
            defect = listed[number]
            place = f"{defect['file']}:{defect['line']} {defect['function']}"
            print(f"{number} {place} ({defect['kind']}): {defect['was']} -> {defect['is']} {outcomes[number]}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the durations of a trace, on the process that gathers the reports."""
    file = os.environ.get("SSLBENCH_MUTANT_DURATIONS")
    if file and "PYTEST_XDIST_WORKER" not in os.environ:
        with Path(file).open("a") as durations:
            durations.write(f"{report.nodeid}\t{report.outcome}\t{report.duration:.4f}\n")


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests of each defect in a fork of this process, which has imported and collected all of them."""
    if not (numbers := os.environ.get("SSLBENCH_MUTANTS")):
        return None
    folder = Path(os.environ["SSLBENCH_MUTANT_FOLDER"])
    tests, items = reaching(folder), {item.nodeid: item for item in session.items}
    seconds: collections.Counter[str] = collections.Counter()
    for line in (folder / "durations.tsv").read_text().splitlines():
        test, _, duration = line.split("\t")
        seconds[test] += float(duration)
    for number in map(int, numbers.split(",")):
        outcome = folder / "run" / f"{number}.json"
        chosen = [items[test] for test in tests.get(number, []) if test in items]
        if outcome.exists():
            continue
        if not chosen:
            outcome.write_text(json.dumps({"outcome": "not reached", "tests": 0}))
            continue
        began = time.time()
        child = os.fork()
        if not child:
            _fork(session, number, chosen, seconds, folder)
        _, status = os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        shutil.rmtree(folder / "tmp" / str(number), ignore_errors=True)
        name = {0: "survived", 1: "killed"}.get(os.waitstatus_to_exitcode(status), "hangs")
        last = folder / "run" / f"{number}.last"
        found = {
            "outcome": name,
            "tests": len(chosen),
            "last": last.read_text() if last.exists() else "",
            "seconds": round(time.time() - began, 1),
        }
        outcome.write_text(json.dumps(found))
    return True


def _fork(
    session: pytest.Session, number: int, items: list[pytest.Item], seconds: collections.Counter[str], folder: Path
) -> None:
    """Run tests with a defect turned on until one fails or the time is over, and end the process."""
    from sslbench.runtime import mutant_switch

    os.setsid()
    mutant_switch._ACTIVE = number
    os.environ["SSLBENCH_MUTANT"] = str(number)
    temporary = session.config._tmp_path_factory
    temporary._basetemp, temporary._given_basetemp = None, folder / "tmp" / str(number)
    (folder / "tmp").mkdir(exist_ok=True)
    failed = []

    class Watch:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            if report.failed:
                failed.append(report)

    session.config.pluginmanager.register(Watch())
    try:
        for i, item in enumerate(items):
            used = sum(
                resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
                for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
            )
            if i and used > SECONDS:
                break
            (folder / "run" / f"{number}.last").write_text(item.nodeid)
            signal.alarm(int(20 * seconds[item.nodeid]) + 120)  # nobody waits so long for a test
            following = items[i + 1] if i + 1 < len(items) else None
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failed:
                os._exit(1)
    finally:  # also if a test ended this process by an exception
        os._exit(bool(failed) or sys.exc_info()[0] is not None)


if __name__ == "__main__":
    verbs = {"draw": draw, "trace": trace, "run": run, "report": report}
    verb, *words = sys.argv[1:] or [""]
    if verb not in verbs:
        sys.exit(f"{verb!r} is none of {', '.join(verbs)}; docs/extend/tests.md has the commands")
    if verb == "run" and len(words) > 2:
        run(Path(words[0]), Path(words[1]), [int(word) for word in words[2:]])
    else:
        verbs[verb](*map(Path, words))
