"""A sweep that is killed continues to the same table; a network that fails is a hole, and the rest completes."""

import contextlib
import multiprocessing
import os
import signal
from pathlib import Path

from sslbench.cli.main import main
from sslbench.results.records import read_tree

FORK = multiprocessing.get_context("fork")
SWEEP = (
    *("sweep", "knn", "lsr", "--weights", "w.pth", "pixels:4", "--backbone", "tiny_net_of_the_tests:net"),
    *("--data", "photos", "--workers", "0", "--no-floors", "--no-overlaps", "knn.k=1,3"),
)


def run_killed(words, moment):
    """Run a command that dies before it renames a file for that time."""
    replace, calls = os.replace, []

    def dying(*given, **named):
        calls.append(None)
        if len(calls) == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(*given, **named)

    os.replace = dying
    main(list(words))


def test_killed_at_five_moments_the_table_is_that_of_a_run_that_was_not(world, sslbench):
    assert sslbench(*SWEEP, "--out", "whole", "--store", "s1")[0] == 0
    words = (*SWEEP, "--out", "killed", "--store", "s2")
    ends = []
    for moment in (1, 2, 4, 6, 9):
        process = FORK.Process(target=run_killed, args=(words, moment))
        process.start()
        process.join()
        ends.append(process.exitcode)
    assert set(ends) <= {-signal.SIGKILL, 0} and ends.count(-signal.SIGKILL) >= 4
    code, _, err = sslbench(*words)
    assert code == 0, err
    boards = [Path(folder, "leaderboard.csv").read_bytes() for folder in ("whole", "killed")]
    assert boards[0] == boards[1]
    ids = [sorted(record.id for record in read_tree(Path(folder))) for folder in ("whole", "killed")]
    assert ids[0] == ids[1] and len(set(ids[1])) == 6


def run_logged(words, log):
    with Path(log).open("w") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        main(list(words))


def test_the_same_command_may_run_several_times_at_once_on_one_folder(world, sslbench):
    assert sslbench(*SWEEP, "--out", "whole", "--store", "s1")[0] == 0
    words = (*SWEEP, "--out", "shared", "--store", "s2", "-v")
    processes = [FORK.Process(target=run_logged, args=(words, f"{i}.log")) for i in range(4)]
    for process in processes:
        process.start()
    for i, process in enumerate(processes):
        process.join()
        assert process.exitcode == 0, Path(f"{i}.log").read_text()
    assert Path("shared/leaderboard.csv").read_bytes() == Path("whole/leaderboard.csv").read_bytes()
    assert len(list(Path("shared").rglob("*.scores.npz"))) == 6, "no cell twice"
    worked = [Path(f"{i}.log").read_text() for i in range(4)]
    assert sum(text.count("already computed: ") for text in worked) >= 3 * 6, "each cell is the work of one process"
    assert not list(Path("shared").glob(".*.lock"))


def test_a_network_that_fails_is_a_hole_with_its_reason(world, sslbench):
    Path("broken.pth").write_bytes(b"no weights")
    words = [word if word != "pixels:4" else "broken.pth" for word in SWEEP]
    code, out, err = sslbench(*words)
    assert code == 1
    assert "3 of 6 cells are holes" in err and err.count("broken.pth cannot be evaluated") == 1
    assert (out + err).count("is text, not weights") == 1, "the reason once, below the table"
    assert {record.weights.name for record in read_tree(Path("results"))} == {"w.pth"}
    assert len(list(Path("results").rglob("*.scores.npz"))) == 3
