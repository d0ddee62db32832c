"""`sslbench sweep`: the runs of a command line, each once, by identity."""

import shlex

import pytest

from sslbench.cli.commands import sweep
from sslbench.cli.commands.eval import work
from sslbench.cli.words import combinations, split_sweep, typed
from sslbench.errors import UsageError


@pytest.fixture(autouse=True)
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").touch()


def runs(text):
    with sweep.command.make_context("sweep", shlex.split(text)) as ctx:
        return work.sweep_runs(sweep.checked_commands(ctx)[0])


def test_values_to_try_and_lists():
    names, values = split_sweep(["knn", "k=10,20", "seed=[1,2]", "linear.x=a"])
    assert (names, values) == (["knn"], {"k": [10, 20], "seed": [[1, 2]], "linear.x": ["a"]})
    assert list(combinations({"a": [1, 2], "b": [3]})) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    with pytest.raises(UsageError, match="twice"):
        split_sweep(["k=10,10"])


@pytest.mark.parametrize(
    "value",
    [
        *(
            "a",
            "a,b",
            "it's",
            'say "x"',
            "a\\",
            "a\\'b",
            "x y",
            "null",
            "true",
            "10",
            "1e-3",
            "",
            "[1]",
            "{a}",
            "a=b",
            "${x}",
        ),
        *(1e-05, 3, True, None, [1, "a,b"], {"a": "b,c"}, ["it's", "10"]),
    ],
)
def test_a_value_is_typed_as_it_is_read(value):
    assert split_sweep([f"x={typed(value)}"])[1]["x"] == [value]


def test_a_setting_multiplies_the_runs_of_the_protocols_that_have_it():
    found = runs("knn geometry --weights a.pth b.pth --data photos/ k=10,20 seed=0,1")
    labels = sorted((cell.weights, cell.benchmark, run.seed) for cell, run in found)
    assert labels == sorted(
        (weights, f"{label} seed={seed}", seed)
        for weights in ("a.pth", "b.pth")
        for label in ("knn k=10", "knn k=20", "geometry")
        for seed in (0, 1)
    )
    first = next(run for run in found if run[0].benchmark == "knn k=20 seed=1")
    assert first[0].requests[0].tasks[0].settings.k == (20,)
    (written,) = sweep._written(first)
    assert (written["weights"], written["title"], written["run"]) == ("a.pth", "knn k=20 seed=1", {"seed": 1})


def test_a_setting_of_one_protocol_by_its_prefix():
    found = runs("knn low-shot --weights pixels knn.k=[10,20],[5] --seed 3")
    assert [cell.benchmark for cell, _ in found] == ["knn knn.k=[10,20]", "knn knn.k=[5]", "low-shot"]
    assert {run.seed for _, run in found} == {3}


def test_suites_and_presets_are_swept():
    found = runs("linear --suite small --weights pixels seed=0,1")
    assert len({cell.benchmark for cell, _ in found}) == len(found) > 2
    assert len({cell.benchmark.partition(" ")[0] for cell, _ in found}) * 2 == len(found)
    presets = runs("--preset knn/dino --weights pixels --data photos/ temperature=0.07,0.1")
    assert [cell.benchmark for cell, _ in presets] == ["knn/dino temperature=0.07", "knn/dino temperature=0.1"]


MISTAKES = [
    ("knn --weights pixels kk=1,2", "there is no setting 'kk'"),
    ("knn --weights pixels seed=1 --seed 2", "same setting"),
    ("knn k=10", "--weights is missing"),
    ("knn --weights pixels k=5,0", "knn: k should be 1 or more, not 0"),
    ("--weights pixels", "no protocol is named"),
]


def test_mistakes():
    for text, message in MISTAKES:
        with pytest.raises(UsageError, match=message):
            runs(text)
