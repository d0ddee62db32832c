"""`--launcher slurm` of eval, extract and sweep: the jobs, and that they run by submitit's local executor."""

import re
import shlex

import pytest

from sslbench.cli import launch, slurm
from sslbench.cli.commands.eval import command, commands_of

WEIGHTS = ("--weights", "random", "--backbone", "resnet18w0.25")
LOCAL = ("--launcher", "slurm", "launcher.cluster=local", "launcher.gpus_per_node=0", "launcher.cpus_per_gpu=1")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def jobs(text):
    words = shlex.split(text)
    with command.make_context("eval", words) as ctx:
        return [shlex.join(job) for job in commands_of(ctx)]


def test_one_evaluation_is_one_job_of_the_same_command():
    assert jobs("knn k=20 --weights a.pth -d photos/ --launcher slurm launcher.partition=gpu --limit 5") == [
        "eval knn k=20 -d photos/ --limit 5 --weights a.pth"
    ]


def test_several_weights_are_a_job_each_and_several_benchmarks_a_job_for_all_weights():
    assert jobs("knn linear --launcher slurm --weights a.pth b.pth -o out") == [
        "eval knn linear -o out --skip-existing --weights a.pth",
        "eval knn linear -o out --skip-existing --weights b.pth",
    ]
    assert jobs("--benchmark knn/digits --benchmark linear/digits --weights a.pth b.pth --launcher=slurm") == [
        "eval --benchmark knn/digits --weights a.pth b.pth",
        "eval --benchmark linear/digits --weights a.pth b.pth",
    ]
    small = jobs("knn --suite small --weights a.pth --launcher slurm --seed 3")
    assert len(small) > 1
    assert all(
        job.startswith("eval --seed 3 --skip-existing --benchmark knn/") and job.endswith("--weights a.pth")
        for job in small
    )


def test_the_users_launcher_file_is_read_and_a_job_has_one_gpu(tmp_path, monkeypatch):
    folder = tmp_path / "configs" / "launcher"
    folder.mkdir(parents=True)
    (folder / "slurm.yaml").write_text("name: slurm\npartition: own\ngpus_per_node: 8\nnodes: 4\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    settings = slurm.settings_of({"hours": 2})
    assert (settings.partition, settings.gpus_per_node, settings.nodes, settings.hours) == ("own", 1, 1, 2.0)
    assert slurm.parameters(settings)["slurm_array_parallelism"] == 256


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--launcher", "slum"), "Did you mean 'slurm'"),
        (("--launcher", "slurm", "launcher.node=2"), "Did you mean 'nodes'"),
        (("launcher.nodes=2",), "has no effect without --launcher slurm"),
        (("--launcher", "slurm", "kk=2"), "there is no setting 'kk'"),
    ],
)
def test_mistakes_are_told_before_anything_is_queued(sslbench, tmp_path, words, message):
    code, out, err = sslbench("eval", "knn", *WEIGHTS, *words)
    assert (code, out) == (2, "") and message in err
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_runs_as_jobs_ends_with_a_leaderboard_and_continues(sslbench, tmp_path):
    pytest.importorskip("submitit", reason="submitit is not installed (pip install submitit)")
    words = ("sweep", "knn", *WEIGHTS, "k=1,3", "--resize", "8", "--crop", "8", "--workers", "0", "--no-floors")
    code, out, err = sslbench(*words, *LOCAL, "launcher.wait=true", "--out", "r", "--store", "s")
    assert code == 0, err
    records = sorted((tmp_path / "r").glob("knn/*.json"))
    assert len(records) == 2
    assert err.count("r/slurm/") == 2 and "2 of 2 jobs are done" in err
    assert (tmp_path / "r" / "leaderboard.csv").is_file() and "resnet18w0.25" in out
    before = [path.stat().st_mtime_ns for path in records]
    code, out, err = sslbench(*words, "--out", "r", "--store", "s")
    assert code == 0 and err.count("already computed") == 2
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "r").glob("knn/*.json"))] == before


def test_a_job_that_fails_is_told_with_its_log(sslbench, tmp_path):
    pytest.importorskip("submitit", reason="submitit is not installed (pip install submitit)")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.jpg").write_bytes(b"no picture")
    code, out, err = sslbench("extract", *WEIGHTS, "--data", "gone/", *LOCAL, "--store", "s")
    assert (code, out) == (2, "") and "gone" in err
    code, _, err = sslbench("extract", *WEIGHTS, "--data", "broken/", *LOCAL, "launcher.wait=true", "--store", "s")
    assert code == 1
    log = next((tmp_path / "s" / "slurm").glob("*_log.out")).read_text()
    assert "x.jpg" in log and "exit code 1" in log
    assert re.search(r"job \d+ ended with exit code 1: .*broken", err) and "its log is" in err


def test_words_of_options_are_told_from_others():
    words = ["knn", "k=3", "--data", "knn", "--dry-run", "--no-floors", "-o", "x"]
    assert launch.only_options(command, words) == ["--data", "knn", "--no-floors", "-o", "x"]
