"""`--launcher slurm` of eval, extract and sweep: the jobs, and what is told of them."""

import shlex

import pytest

from sslbench.cli import slurm
from sslbench.cli.commands.eval import command
from sslbench.cli.commands.eval.check import check
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.commands.eval.work import jobs_of, make_plan

WEIGHTS = ("--weights", "random", "--backbone", "resnet18w0.25")


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def jobs(text):
    """Weights, benchmark or protocol, and settings of the requests of each job."""
    with command.make_context("eval", shlex.split(text)) as ctx:
        chosen, names, values = EvalOptions.of(ctx)
        plan = make_plan(chosen, names, values, check(ctx, chosen, names, values))
    return [
        [(one["weights"], task.get("benchmark", task["protocol"])) for one in job for task in one["tasks"]]
        for job in jobs_of(plan)
    ]


def test_one_evaluation_is_one_job():
    assert jobs("knn linear --weights random --backbone resnet18 --limit 5") == [
        [("random", "knn"), ("random", "linear")]
    ]


def test_several_weights_are_a_job_each_and_several_benchmarks_a_job_for_all_weights():
    assert jobs("knn linear --weights a.pth b.pth -o out") == [
        [("a.pth", "knn"), ("a.pth", "linear")],
        [("b.pth", "knn"), ("b.pth", "linear")],
    ]
    assert jobs("--benchmark knn/digits --benchmark linear/digits --weights a.pth b.pth") == [
        [("a.pth", "knn/digits"), ("b.pth", "knn/digits")],
        [("a.pth", "linear/digits"), ("b.pth", "linear/digits")],
    ]
    small = jobs("knn --suite small --weights pixels --seed 3")
    assert len(small) > 1 and all(len(job) == 1 and job[0][1].startswith("knn/") for job in small)


def test_a_backbone_is_not_for_pixels_among_several_weights():
    with command.make_context("eval", shlex.split("knn --backbone resnet18 --weights random pixels:8")) as ctx:
        chosen, names, values = EvalOptions.of(ctx)
        plan = make_plan(chosen, names, values, check(ctx, chosen, names, values))
    assert [[one.get("backbone") for one in job] for job in jobs_of(plan)] == [["resnet18"], [None]]


def test_the_users_launcher_file_is_read_and_a_job_has_one_gpu(tmp_path, monkeypatch):
    folder = tmp_path / "configs" / "launcher"
    folder.mkdir(parents=True)
    (folder / "slurm.yaml").write_text("name: slurm\npartition: own\ngpus_per_node: 8\nnodes: 4\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path))
    settings, _ = slurm.take_launcher({"launcher.hours": 2}, "slurm")
    assert (settings.partition, settings.gpus_per_node, settings.nodes, settings.hours) == ("own", 1, 1, 2.0)
    assert slurm.parameters(settings)["slurm_array_parallelism"] == 256


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--launcher", "slum"), "Did you mean 'slurm'"),
        (("--launcher", "slurm", "launcher.node=2"), "Did you mean 'nodes'"),
        (("launcher.nodes=2",), "has no effect without --launcher slurm"),
        (("--launcher", "slurm", "kk=2"), "there is no setting 'kk'"),
        (("--launcher", "slurm", "launcher.at_once=0"), "at_once should be 1 or more"),
        (("--launcher", "slurm", "launcher.hours=0.05"), "save_seconds=120 is more than half of the time limit, 3 min"),
        (("--launcher", "slurm", "launcher.extra={signal: USR1}"), "Use launcher.save_seconds"),
        (("--launcher", "slurm", "launcher.nodes=2", "launcher.cluster=local"), "is this machine alone"),
    ],
)
def test_mistakes_are_told_before_anything_is_queued(sslbench, tmp_path, words, message):
    code, out, err = sslbench("eval", "knn", *WEIGHTS, *words)
    assert (code, out) == (2, "") and message in err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A machine with programs of SLURM that each are one line of sh: cluster(sbatch="echo ...")."""
    pytest.importorskip("submitit", reason="submitit is not installed (pip install submitit)")
    folder = tmp_path / "bin"

    def write(**programs):
        folder.mkdir()
        for name, line in {"srun": "true", **programs}.items():
            (folder / name).write_text(f"#!/bin/sh\n{line}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")

    return write


def test_what_sbatch_refuses_is_told_once_and_nothing_is_left(sslbench, tmp_path, cluster):
    cluster(sbatch="echo sbatch: error: invalid partition specified: gpuu >&2; exit 1")
    code, out, err = sslbench("eval", "knn", *WEIGHTS, "--launcher", "slurm", "launcher.partition=gpuu")
    assert (code, out) == (2, "") and err.count("invalid partition specified: gpuu") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_a_machine_without_slurm_is_told(sslbench, tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="submitit is not installed (pip install submitit)")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = sslbench("eval", "knn", *WEIGHTS, "--launcher", "slurm")
    assert (code, out) == (2, "") and "there is no sbatch and no srun on this machine" in err
    assert list(tmp_path.iterdir()) == []


def test_job_ids_logs_results_and_how_to_follow_and_stop_are_told(sslbench, tmp_path, cluster):
    cluster(sbatch='cat "$1" > script; echo Submitted batch job 12')
    settings = ("launcher.partition=gpu,debug", "launcher.exclude=node[01-03]", "launcher.gpus_per_node=0")
    words = ("knn", *WEIGHTS, "--out", "it's here")
    code, out, err = sslbench("eval", *words, "--launcher", "slurm", *settings)
    assert (code, out) == (0, "12\n")
    log = f"{tmp_path}/it's here/slurm/12_0_log.out"
    assert f"its log is {log}" in err and "results: it's here" in err
    assert f"squeue -j 12; to read along: tail -f {shlex.quote(log)}; to stop: scancel 12" in err
    script = (tmp_path / "script").read_text()
    for line in ("#SBATCH --partition=gpu,debug", "#SBATCH --exclude='node[01-03]'", "#SBATCH --requeue"):
        assert line in script
    assert "srun" in script and "--cpus-per-task=8" in script and "gpus" not in script
    code, out, err = sslbench("sweep", *words, "k=1,3", "--launcher", "slurm")
    assert (code, out) == (0, "12_0\n12_1\n")
    assert "to stop: scancel 12" in err and """sslbench leaderboard 'it'"'"'s here'""" in err


def test_ctrl_c_ends_the_waiting_and_says_that_the_jobs_go_on(sslbench, cluster, monkeypatch):
    def interrupted(job):
        raise KeyboardInterrupt

    cluster(sbatch="echo Submitted batch job 12")
    monkeypatch.setattr(slurm.Submitted, "end", interrupted)
    code, _, err = sslbench("eval", "knn", *WEIGHTS, "--launcher", "slurm", "launcher.wait=true")
    assert code == 130 and "the jobs go on; to stop them: scancel 12" in err


def test_a_job_that_slurm_ended_is_told_with_the_reason(sslbench, cluster, monkeypatch):
    state = "JobID|State|NodeList\\n12|CANCELLED by 1000|a\\n"
    cluster(sbatch="echo Submitted batch job 12", sacct=f"printf '{state}'")
    monkeypatch.setattr("submitit.core.core.Job._results_timeout_s", 0)
    code, _, err = sslbench("eval", "knn", *WEIGHTS, "--launcher", "slurm", "launcher.wait=true")
    assert code == 1 and "job 12 ended with exit code 1: it was cancelled (scancel); it wrote no log" in err
    assert "must lie on a file system that all machines share" in err and "0 of 1 jobs are done" in err


@pytest.mark.parametrize(
    ("state", "message", "told"),
    [
        ("OUT_OF_MEMORY", "", (1, "it ran out of memory: launcher.memory_gb=N asks for more")),
        ("TIMEOUT", "", (1, "it ran into its time limit: launcher.hours=N asks for more")),
        ("FAILED", "", (1, "w.pth does not exist")),
        ("FAILED", f"the run ended with exit code {slurm._described(2)}; see", (2, "w.pth does not exist")),
        ("FAILED", f"the run ended with exit code {slurm._described(-11)}; see", (139, "killed by SIGSEGV")),
    ],
)
def test_the_reason_of_a_failure(state, message, told, tmp_path):
    class Job:
        def exception(self):
            return RuntimeError(message)

    Job.state = state
    (tmp_path / "log").write_text("loading\nerror: w.pth does not exist\n  Did you mean v.pth?\n")
    end = slurm.Submitted("12", (), tmp_path / "log", Job()).end()
    assert (end.code, end.reason) == told


def test_signals_have_names_and_usual_reasons():
    assert "137 (killed by SIGKILL, usually for lack of memory: launcher.memory_gb=N" in slurm._described(-9)
    assert slurm._described(143) == slurm._described(-15)
    assert "143 (killed by SIGTERM, usually by scancel" in slurm._described(-15)
    assert slurm._described(2) == "2"


def test_what_has_a_record_is_skipped(sslbench, tmp_path):
    words = (
        "eval",
        "knn",
        *WEIGHTS,
        "k=1",
        "--resize",
        "8",
        "--crop",
        "8",
        "--workers",
        "0",
        "--no-floors",
        "--out",
        "r",
    )
    assert sslbench(*words, "--skip-existing")[0] == 0
    code, _, err = sslbench(*words, "--skip-existing")
    assert code == 0 and "already computed" in err
    code, _, err = sslbench(*words)
    assert code == 0 and "already computed" not in err
