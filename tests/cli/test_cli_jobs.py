"""Jobs of SLURM and of a machine's own."""

import contextlib
import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
import types

import pytest
from helpers.waiting import SECONDS, until

from sslbench.cli import slurm
from sslbench.cli.commands.eval import command
from sslbench.cli.commands.eval.check import check
from sslbench.cli.commands.eval.flags import EvalOptions
from sslbench.cli.commands.eval.work import jobs_of, make_plan
from sslbench.cli.main import main
from sslbench.errors import SslbenchError

submitit = pytest.importorskip("submitit", reason="submitit is not installed (pip install submitit)")
WEIGHTS = ("--weights", "random", "--backbone", "resnet18w0.25")
LOCAL = ("--launcher", "slurm", "launcher.cluster=local", "launcher.gpus_per_node=0", "launcher.cpus_per_gpu=1")
PRETRAIN = (
    *("pretrain", "simclr", "augment=digits", "augment.size=16", "batch_size=16", "method.projector=[32,16]"),
    *("log_every=1", "schedule.warmup_epochs=0", "--backbone", "resnet18w0.125", "--limit", "48", "--workers", "0"),
    *("--device", "cpu", "--out", "a"),
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


class Run:
    """Stand-in for the process of a job: its command in this process, with the output in the log."""

    def __init__(self, command, log):
        with (
            log.open("w") as file,
            contextlib.redirect_stdout(file),
            contextlib.redirect_stderr(file),
            pytest.raises(SystemExit) as end,
        ):
            main(command[3:])
        self.code = end.value.code or 0

    def wait(self):
        return self.code


@pytest.fixture
def at_once(monkeypatch):
    """Jobs run in this process while they are submitted, which spares three starts of Python for each."""

    class Executor:
        def __init__(self, folder, **_):
            folder.mkdir(parents=True, exist_ok=True)
            self.folder, self.number = folder, 0

        def update_parameters(self, **_):
            pass

        def batch(self):
            return contextlib.nullcontext()

        def submit(self, job):
            self.number += 1
            log, error = self.folder / f"{self.number}_0_log.out", None
            process = types.SimpleNamespace(Popen=lambda command, **_: Run(command, log))
            monkeypatch.setattr(slurm, "subprocess", process)
            try:
                job()
            except SslbenchError as raised:
                error = raised
            paths = types.SimpleNamespace(stdout=log)
            return types.SimpleNamespace(job_id=self.number, paths=paths, exception=lambda: error)

    monkeypatch.setattr(submitit, "AutoExecutor", Executor)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # a job that fails replaces that of its process


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_sweep_runs_as_jobs_ends_with_a_leaderboard_and_continues(sslbench, tmp_path, request, real):
    if not real:
        request.getfixturevalue("at_once")
    small = ("--resize", "8", "--crop", "8", "--workers", "0", "--no-floors")
    words = ("sweep", "clustering", *WEIGHTS, "k=2,3,9999", *small)
    code, out, err = sslbench(*words, *LOCAL, "launcher.wait=true", "--out", "r", "--store", "s")
    assert code == 1, "a run whose k is larger than the data fails, and the others count"
    assert "Hole: random on clustering k=9999: clustering: k=9999 is more than" in " ".join(out.split())
    assert re.search(r"job \d+ ended with exit code 1: random on clustering k=9999: clustering: k=9999 is more", err)
    records = sorted((tmp_path / "r").glob("clustering/*.json"))
    assert len(records) == 2
    assert len(set(re.findall("r/slurm/.*log.out", err))) == 3 and "2 of 3 jobs are done" in err
    assert (tmp_path / "r" / "leaderboard.csv").is_file() and "resnet18w0.25" in out
    before = [path.stat().st_mtime_ns for path in records]
    code, out, err = sslbench(*words, "--out", "r", "--store", "s")
    assert code == 1 and err.count("already computed") == 1
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "r").glob("clustering/*.json"))] == before


def test_a_job_that_fails_is_told_with_its_log(sslbench, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "x.jpg").write_bytes(b"no picture")
    code, out, err = sslbench("extract", *WEIGHTS, "--data", "gone/", *LOCAL, "--store", "s")
    assert (code, out) == (2, "") and "gone" in err
    code, _, err = sslbench("extract", *WEIGHTS, "--data", "broken/", *LOCAL, "launcher.wait=true", "--store", "s")
    assert code == 1
    log = next((tmp_path / "s" / "slurm").glob("*_log.out")).read_text()
    assert "x.jpg" in log and "exit code 1" in log
    assert re.search(r"job \d+ ended with exit code 1: .*broken", err) and "its log is" in err


def test_a_training_runs_as_a_job(sslbench, tmp_path, at_once):
    code, out, err = sslbench(*PRETRAIN, "--epochs", "1", *LOCAL)
    assert (code, out) == (0, "1\n"), err
    assert "job 1 will run: sslbench run a/slurm/request-" in err and "results: a" in err
    assert (tmp_path / "a" / "weights.torch").is_file()


@pytest.mark.long
def test_a_local_job_of_submitit_trains(tmp_path):
    command = [sys.executable, "-m", "sslbench", *PRETRAIN, "--epochs", "2", *LOCAL]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    number = done.stdout.strip()
    assert f"job {number} will run: sslbench run a/slurm/request-" in done.stderr and "results: a" in done.stderr
    job = submitit.LocalJob(tmp_path / "a" / "slurm", number)
    assert job.result() == 0
    assert (tmp_path / "a" / "weights.torch").is_file()


# ---- told to stop


@pytest.fixture
def queued(tmp_path, monkeypatch):
    """Function that puts a command into the queue as job 7; scontrol notes its call."""
    from submitit.core.utils import DelayedSubmission

    def queue(*words):
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "scontrol").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
        (tmp_path / "bin" / "scontrol").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
        monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
        monkeypatch.setenv("SLURM_JOB_ID", "7")
        submission = DelayedSubmission(slurm.Job(words))
        submission.set_timeout(3, 1)
        submission.dump(tmp_path / "7_submitted.pkl")

    return queue


def _job(folder, python):
    """Be the process that SLURM starts, with another program in place of Python."""
    from submitit.core.submission import process_job

    sys.executable = str(python)
    sys.stdout = sys.stderr = (folder / "log").open("a", buffering=1)
    process_job(folder)


@pytest.mark.parametrize("preempted", [False, True])
def test_a_job_that_is_told_to_stop_tells_its_run_and_is_queued_again(preempted, tmp_path, queued):
    """At its time limit (USR2), or preempted (TERM before); a script stands for a run that saves on USR1."""
    queued("pretrain", "simclr")
    python = tmp_path / "python"
    python.write_text(
        f"""#!/bin/sh
echo "$@" >> {tmp_path}/words
[ -f {tmp_path}/saved ] && exit 0
trap 'echo saved >> {tmp_path}/saved; exit {slurm.SAVED}' USR1
touch {tmp_path}/running
while :; do sleep 0.05; done
"""
    )
    python.chmod(0o755)
    process = multiprocessing.get_context("fork").Process(target=_job, args=(tmp_path, python))
    process.start()
    until((tmp_path / "running").is_file, process.is_alive)
    if preempted:
        os.kill(process.pid, signal.SIGTERM)
        until(lambda: "waiting for SLURM" in (tmp_path / "log").read_text(), process.is_alive)
    os.kill(process.pid, signal.SIGUSR2)
    process.join(SECONDS)
    assert (tmp_path / "saved").read_text() == "saved\n" and "Traceback" not in (tmp_path / "log").read_text()
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    again = multiprocessing.get_context("fork").Process(target=_job, args=(tmp_path, python))
    again.start()
    again.join(SECONDS)
    assert again.exitcode == 0
    assert (tmp_path / "words").read_text() == "-m sslbench pretrain simclr\n" * 2


def steps(tmp_path):
    """Numbers of the updates of a run so far."""
    file = tmp_path / "a" / "metrics.jsonl"
    return [json.loads(text)["step"] for text in file.read_text().splitlines()] if file.is_file() else []


@pytest.mark.long
@pytest.mark.parametrize("preempted", [False, True])
def test_a_job_that_is_told_to_stop_saves_and_is_queued_again_and_continues(preempted, tmp_path, queued):
    queued(*PRETRAIN, "--epochs", "40", "save_every=40 epochs")
    command, log = [sys.executable, "-m", "submitit.core._submit", str(tmp_path)], tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        until(lambda: len(steps(tmp_path)) > 3, lambda: process.poll() is None)
        if preempted:
            process.send_signal(signal.SIGTERM)
            until(lambda: "waiting for SLURM" in log.read_text(), lambda: process.poll() is None)
        process.send_signal(signal.SIGUSR2)
        process.wait(SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert "everything is saved" in log.read_text() and "Traceback" not in log.read_text()
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    assert 3 < steps(tmp_path)[-1] < 120 and not (tmp_path / "a" / "weights.torch").exists()
    subprocess.run(command, check=True, capture_output=True)
    assert steps(tmp_path) == list(range(1, 121))


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
