"""Mistakes on the command line of every command are told by their names before data are opened or weights are read.

The weights are a file that cannot be loaded and the picture is none: a command that gets as far as reading them gives
another message.
"""

import shlex
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from sslbench import protocols
from sslbench.cli.main import COMMANDS
from sslbench.names import list_names

# Flags of the run, the preprocessing and the network, which many commands have: value -> message.
RUN = {
    "--precision fp8": "precision: 'fp8' is not possible",
    "--feature-dtype x": "feature_dtype: 'x' is not possible",
    "--batch-size 0": "0 is not in the range x>=1",
    "--workers -1": "-1 is not in the range x>=0",
    "--on-error x": "on_error: 'x' is not possible",
    "--decoder nosuch": "there is no decoder 'nosuch'",
    "--decoder nosuch.function": "there is no Python module 'nosuch'",
    "--start-method x": "start_method: 'x' is not possible",
    "--max-pixels 0": "0 is not in the range x>=1",
    "--device cdua": "there is no device called 'cdua'",
    "--seed -1": "-1 is not in the range",
}
PICTURES = {
    "--resize big": "--resize big: should be a number of pixels",
    "--crop 999999": "sizes should be from 1 to 16,384 pixels",
    "--interpolation cubic": "interpolation: 'cubic' is not possible",
    "--mean a,b": "--mean a,b: should be numbers",
    "--mean 0.5 --std 0.5,0.5": "mean has 1 and std 2 numbers",
    "--std 0,0,0": "std should be finite numbers above 0",
    "--scales -1": "scales should be different numbers",
}
NETWORK = {
    "--backbone resnt18": "Did you mean 'resnet18'",
    "--backbone nosuch:net": "there is no Python module 'nosuch'",
    "--format mocco": "Did you mean 'moco'",
    "--stem nosuch": "--stem nosuch is not a rule",
    "--layers 'res4:agv(8,3)'": "there is no pool 'agv(8,3)'",
    "--layers 'res4:avg('": "is not a list of layers",
}
DATA = {
    "--data fotos": "'fotos' does not exist",
    "--test-data fotos": "'fotos' does not exist",
    "--test-data empty": "'empty' is an empty folder",
}
EVAL = "eval knn -w weights.pth -d photos"
PRETRAIN = "pretrain simclr -d photos"
SWEEP = "sweep knn -w weights.pth -d photos"
CHECK = "check-data photos"
CASES = {
    **{f"{EVAL} {words}": text for words, text in {**RUN, **PICTURES, **NETWORK, **DATA}.items()},
    f"{EVAL} seeds=0": "seeds should be 1 or more",
    f"{EVAL} seeds=3": "seeds=3 has no effect on knn",
    f"{EVAL} only_seed=9": "only_seed=9 is none of the trainings",
    f"{EVAL} machine=huge": "there is no machine called 'huge'",
    f"{EVAL} test_fraction=2": "test_fraction should be above 0 and below 1",
    f"{EVAL} workers=x": "workers: should be a whole number or one of auto",
    f"{EVAL} --noise 2": "--noise 2: should lie between 0 and 1",
    f"{EVAL} --launcher nosuch": "there is no launcher called 'nosuch'",
    f"{EVAL} --launcher slurm launcher.partitoin=x": "Did you mean 'partition'",
    f"{EVAL} launcher.nodes=2": "has no effect without --launcher slurm",
    f"{EVAL} --on-the-fly --store s": "--store has no effect with --on-the-fly",
    f"{EVAL} --tensorboard": "--tensorboard does not go with knn",
    "eval knn -d photos": "--weights is missing",
    "eval -w weights.pth": "no protocol is named",
    "eval kn -w weights.pth": "there is no protocol called 'kn'",
    f"{EVAL} knn.tempratur=3": "Did you mean 'temperature'?",
    f"{EVAL} k=[1,two]": "should be a whole number, not 'two'",
    f"{EVAL} k=[1": "cannot be read as key=value",
    f"{EVAL} k=1 k=2": "given twice",
    f"{EVAL} --batch-size many": "Invalid value for '--batch-size'",
    "eval --benchmark knn/cifar -w weights.pth": "Did you mean 'knn/cifar10'",
    "eval --suite digit -w weights.pth": "Did you mean 'digits'",
    "eval svm --benchmark knn/digits -w weights.pth": "none of the requested benchmarks uses",
    "eval knn --features f.npy": "--features needs --labels",
    "eval knn --features f.npy -w weights.pth": "exclude each other",
    "eval knn -w folder -d photos": "this folder has no checkpoints",
    "eval knn -w text.pth -d photos": "text.pth is text, not weights",
    "eval knn -w weights.pth text.pth -d photos --precision fp8": "'fp8' is not possible",
    "eval knn -w random -d photos": "needs --backbone",
    "eval knn -w pixels -b resnet18 -d photos": "fixes the backbone",
    "eval knn -w timm:nosuch -d photos": "timm has no model 'nosuch'",
    "eval knn --features f.npy --labels y.npy seeds=0": "seeds should be 1 or more",
    "eval knn --features f.npy --labels y.npy machine=huge": "there is no machine called 'huge'",
    "eval knn --features f.npy --labels y.npy --device cdua": "there is no device called 'cdua'",
    "eval low-shot -w weights.pth -d photos k=0": "low-shot: k should be 1 or more",
    "eval knn depth -w weights.pth": "knn and depth take labels of different kinds",
    "pretrain distillation -d photos": "teacher is missing",
    "eval detection -w weights.pth workers=-1": "workers should be 0 or more",
    "eval detection -w weights.pth --stem nosuch": "--stem nosuch is not a rule",
    **{
        f"{PRETRAIN} {words}": text
        for words, text in {
            "epocs=3": "Did you mean 'epochs'",
            "epochs=x": "epochs: should be a number",
            "epochs=0": "epochs should be above 0, not 0",
            "batch_size=1": "a forward pass needs at least two images",
            "accumulate=3": "does not divide into 1 processes of 3 passes",
            "accumulate=0": "accumulate should be 1 or more, not 0",
            "method.temprature=1": "Did you mean 'temperature'",
            "method.temperature=x": "temperature: should be a number",
            "method.temperature=0": "temperature should be above 0, not 0",
            "method.projector=2048,0": "projector should be 1 or more, not 0",
            "method.name=simclrr": "Did you mean 'simclr'",
            "optimizer=sdg": "Did you mean 'sgd'",
            "optimizer.lr=-1": "optimizer: lr should be 0 or more",
            "optimizer.lrr=1": "optimizer: unknown key 'lrr'",
            "schedule=cosin": "Did you mean 'cosine'",
            "schedule.lr.name=cosin": "schedule.lr: there is no schedule 'cosin'",
            "schedule.lr=x": "lr: should be a mapping or a number",
            "schedule.warmup_epochs=1000": "schedule.warmup_epochs 1000 does not fit into",
            "schedule.warmup_epochs=-1": "schedule: warmup_epochs should be 0 or more",
            "groups.head.schedule.lr.name=cosin": "groups.head.schedule.lr: there is no schedule 'cosin'",
            "augment=nosuch": "there is no augment called 'nosuch'",
            "augment.mean=x": "mean: should be a number",
            "-b resnt18": "Did you mean 'resnet18'",
            "-b nosuch:net": "there is no Python module 'nosuch'",
            "backbone=pixels": "'pixels' has no trainable parameters",
            "--precision fp8": "precision: 'fp8' is not possible",
            "--workers -1": "-1 is not in the range x>=0",
            "--epochs 0": "0.0 is not in the range x>0",
            "prefetch=0": "prefetch should be 1 or more, not 0",
            "decoder=fast": "decoder fast is for evaluation",
            "max_pixels=0": "max_pixels should be 1 or more, not 0",
            "sampler=x": "sampler: 'x' is not possible",
            "save_every=often": "'often' is not an interval",
            "eval_linear=true": "eval_linear=true has no effect without evaluation data",
            "clip_norm=-1": "clip_norm should be 0 or more, not -1",
            "clip_each=true": "clip_each=true clips nothing",
            "ema=2": "ema should be from 0 to below 1, not 2",
            "zero=true strategy=fsdp": "fsdp divides the optimizer's state already",
            "batch_transform=nosuch:f": "there is no Python module 'nosuch'",
            "device=cdua": "there is no device called 'cdua'",
            "seed=-1": "seed should be from 0 to",
            "launcher=nosuch": "there is no launcher called 'nosuch'",
            "launcher.nodes=2": "launcher.nodes has no effect without --launcher slurm",
            "--launcher slurm launcher.partitoin=x": "Did you mean 'partition'",
            "--resume-from nosuch.ckpt": "there is no checkpoint nosuch.ckpt",
            "--init nosuch.pth": "there is no weights file nosuch.pth",
            "--init text.pth": "text.pth is text, not weights",
            "--init weights.pth --stem nosuch": "--stem nosuch is not a rule",
            "--init weights.pth --format mocco": "Did you mean 'moco'",
            "--observer nosuch:Mine": "there is no Python module 'nosuch'",
            "--out text.pth": "cannot write into text.pth",
        }.items()
    },
    "pretrain nosuch.yaml -d photos": "there is no file nosuch.yaml",
    "pretrain nosuch.method -d photos": "there is no Python module 'nosuch.method'",
    "pretrain mae -d photos method.maskd=2": "Did you mean 'masked'",
    f"{SWEEP} k=10,0": "knn: k should be 1 or more, not 0",
    f"{SWEEP} k=10,20 seeds=1,0": "seeds should be 1 or more",
    f"{SWEEP} kk=1,2": "there is no setting 'kk'",
    f"{SWEEP} seed=0,x": "seed: should be a whole number",
    f"{SWEEP} precision=fp32,fp8": "'fp8' is not possible",
    f"{SWEEP} machine=huge": "there is no machine called 'huge'",
    f"{SWEEP} --batch-size 0": "0 is not in the range x>=1",
    f"{SWEEP} --launcher nosuch": "there is no launcher called 'nosuch'",
    "sweep linear -w weights.pth -d photos holdout=0.2,2": "holdout should be above 0 and below 1",
    "sweep kn -w weights.pth": "Did you mean 'knn'",
    **{
        f"{command} -w weights.pth -d photos {more} {words}": text
        for command, more in (("extract", ""), ("cluster", ""), ("show features", ""))
        for words, text in {**RUN, **PICTURES, **NETWORK, "--data fotos": "'fotos' does not exist"}.items()
    },
    **{
        f"predict -w weights.pth -d photos --csv o.csv {words}": text
        for words, text in {**RUN, **PICTURES, **NETWORK}.items()
        if not words.startswith(("--layers", "--feature-dtype", "--on-error"))
    },
    **{f"export -w weights.pth --out net.onnx {words}": text for words, text in {**PICTURES, **NETWORK}.items()},
    **{f"cka weights.pth weights.pth -d photos {words}": text for words, text in {**RUN, **PICTURES}.items()},
    "extract -w text.pth -d photos": "text.pth is text, not weights",
    "extract -w folder -d photos": "folder is a folder, not a weights file",
    "extract -w weights.pth -d photos --launcher nosuch": "there is no launcher called 'nosuch'",
    "extract -w weights.pth -d photos -o e.npz --layers res4,res5": "-o writes one layer",
    "cluster -w weights.pth -d photos --out folder": "folder is a folder",
    "cluster -w text.pth -d photos": "text.pth is text, not weights",
    "predict -w weights.pth -d photos --csv nodir/o.csv": "cannot write nodir/o.csv",
    "predict -w weights.pth -d photos --csv o.csv --classes nosuch.txt": "cannot read the class names in nosuch.txt",
    "export -w weights.pth --out net.txt": "exported files end in .onnx or .pt2",
    "export -w weights.pth --out nodir/net.onnx": "the folder nodir does not exist",
    "export -w text.pth --out net.onnx": "text.pth is text, not weights",
    "inspect text.pth": "text.pth is text, not weights",
    "inspect weights.pth --format mocco": "Did you mean 'moco'",
    "convert weights.pth out.pth --to mocco": "Did you mean 'moco'",
    "convert weights.pth out.pth --to safetensors": "'safetensors' is a container",
    "convert weights.pth out.pth --to timm --stem nosuch": "--stem nosuch is not a rule",
    "convert weights.pth text.pth --to timm": "text.pth exists already",
    "convert weights.pth nodir/out.pth --to timm": "the folder nodir does not exist",
    "diff weights.pth text.pth": "text.pth is text, not weights",
    "diff weights.pth weights.pth --format-a mocco": "Did you mean 'moco'",
    "cka weights.pth weights.pth --format mocco": "Did you mean 'moco'",
    "cka weights.pth weights.pth --backbone-b resnt18": "Did you mean 'resnet18'",
    "cka weights.pth weights.pth --layers-b 'res4:agv(1)'": "there is no pool",
    "cka random weights.pth": "needs --backbone",
    "cka f.npy nosuch.npy": "there is no file nosuch.npy",
    "cka f.npy f.npy --layers res4": "A .npy file is one layer",
    "diff-preset knn/dno knn/vissl": "Did you mean 'knn/dino'",
    f"{CHECK} --test-fraction 2": "--test-fraction should lie between 0 and 1",
    f"{CHECK} --decoder nosuch": "there is no decoder 'nosuch'",
    f"{CHECK} --boxes --label-maps": "--boxes does not go with label maps",
    f"{CHECK} --test-data fotos": "'fotos' does not exist",
    "data download nosuch": "there is no download called 'nosuch'",
    "data download torchvision:nosuch": "there is no download called 'torchvision:nosuch'",
    "data add x fotos": "'fotos' does not exist",
    "data add a/b photos": "'a/b' cannot be a name",
    "data to-kwcoco fotos o.json": "'fotos' does not exist",
    "data to-kwcoco photos o.txt": "o.txt should end in .kwcoco.json",
    "leaderboard nosuch": "there is no folder nosuch",
    "reproduce record.json --device cdua": "there is no device called 'cdua'",
    "reproduce record.json": "is not a result record",
    "run record.json": "is not a result record",
    "run job.yaml": "cannot read job.yaml",
    "compare record.json record.json": "is not a result record",
    "selective record.json": "is not a result record",
    "list protocls": "Did you mean 'protocol'",
    "show knn/digit": "Did you mean 'knn/digits'",
    "show record.json": "is not a result record",
    "show -w weights.pth -d photos --views x": "there is no view 'x'",
    "show -w weights.pth -d photos --point x": "--point x: should be IMAGE:X,Y",
    "show features --features nosuch.npy": "there is no file nosuch.npy",
    "show features": "--weights is missing",
    "demo -o text.pth": "cannot write into text.pth",
    "score record.json": "--data is missing",
    "score nosuch.json -d photos": "there is no file nosuch.json",
    "score record.json -d fotos": "'fotos' does not exist",
    "eval knn --weights weigths.pth": "there is no weights file weigths.pth",
    "eval knn linear --weights random --data fotos": "'fotos' does not exist",
    "eval svm --weights pixels --data photos --test-data photos/tets": "'photos/tets' does not exist",
    "eval knn --weights random --data photos": "needs --backbone",
    "eval nkn --weights weights.pth": "nkn",
    "eval knn --features x.npy --labels y.npy --limit 9": "--limit does not go with --features",
    "eval knn --wieghts x": "'--wieghts'. (Did you mean one of: '--quiet', '--weights'?)",
    "eval knn -w weights.pth kk=3": "there is no setting 'kk'",
    "eval knn linear -w weights.pth linear.foldz=3": "linear has no setting 'foldz'",
    "eval knn -w weights.pth k=a": "k: should be a whole number, not 'a'",
    "eval knn -w vissl:nosuch": "VISSL's model zoo has no 'nosuch'",
    "eval knn -w hf:nosuch": "hf:nosuch is not a model on the Hub",
    "eval knn -w weights.pth -o weights.pth/results": "weights.pth is a file",
    "eval knn -w weights.pth --device cdua": "there is no device called 'cdua'",
    "eval knn -w weights.pth -b resnt18": "Did you mean 'resnet18'",
    "eval knn -w weights.pth --preset dno": "Did you mean 'dino'",
    "eval -w weights.pth --preset knn/dino kk=3": "there is no setting 'kk'",
    "eval -w weights.pth --preset svm/voc07 k=3": "there is no setting 'k'",
    "eval -w weights.pth --benchmark knn/digits k=0": "knn: k should be 1 or more",
    "eval -w weights.pth --suite digits knn.temperature=a": "temperature: should be a number",
    "eval knn -w weights.pth k=0": "knn: k should be 1 or more, not 0",
    "eval linear -w weights.pth holdout=2": "linear: holdout should be above 0 and below 1",
    "eval clustering -w weights.pth restarts=0": "clustering: restarts",
    "eval knn --features weights.pth": "--features needs --labels",
    "eval knn --features weights.pth --labels 'y.csv?group=a'": "there is no file y.csv",
    "eval knn -w resnet50": "write timm:resnet50",
    "eval finetune -w weights.pth epochs=-1": "finetune: epochs should be above 0",
    "eval finetune -w weights.pth schedule=cosin": "Did you mean 'cosine'",
    "eval linear-online -w weights.pth lr=-1": "linear-online: lr should be above 0",
    "eval segmentation -w weights.pth dropout=2": "segmentation: dropout should be from 0 to below 1",
    "eval depth -w weights.pth bins=1": "depth: bins should be 2 or more",
    "eval tracking -w weights.pth topk=0": "tracking: topk should be 1 or more",
    "eval robustness -w weights.pth corrupt=fogg": "Did you mean 'fog'",
    "eval detection -w weights.pth max_iter=9": "there is no setting 'max_iter' of detection",
    "eval linear-online -w weights.pth strategy=fsdp": "It is a setting of finetune.",
    "eval detection -w weights.pth strategy=fsdp": "It is a setting of finetune.",
    "eval finetune -w weights.pth --precision int8": "precision int8 is for protocols on features",
    "eval detection -w weights.pth --limit-iters 6 limit_iters=6": "limit_iters is given twice, as a flag",
    "eval detection -w weights.pth iterations=0": "iterations should be 1 or more, not 0",
    "eval knn -w weights.pth --crop big": "--crop big: should be a number of pixels",
    "eval knn -w weights.pth --interpolation cubic": "interpolation: 'cubic' is not possible",
    "eval knn -w weights.pth --noise x": "--noise x: should be shares",
    "eval knn -w 'nosuch*.pth'": "no file matches this pattern",
    "eval knn photos": "'photos' is a folder, not the name of a protocol",
    "eval knn nosuch/": "'nosuch/' is a path, not the name of a protocol",
    "eval knn --features a.npz weights.pth": "--features and --labels take one file each, and a shell turns",
    "extract -w weights.pth -d fotos": "'fotos' does not exist",
    "extract -w weights.pth -d photos -o e.csv": "should end in one of .parquet, .npz, .h5",
    "inspect fotos": "'fotos' does not exist",
    "inspect weight.pth": "Did you mean 'weights.pth'",
    "pretrain simclr -d fotos": "'fotos' does not exist",
    "pretrain simclr -d photos --backbone resnt18": "there is no backbone 'resnt18'",
    "pretrain simclr -d photos --init weight.pth": "there is no weights file weight.pth",
    "cka weights.pth weight.pth": "there is no weights file weight.pth",
    "diff weights.pth weight.pth": "there is no weights file weight.pth",
    "convert weight.pth out.pth --to timm": "there is no weights file weight.pth",
    "check-data fotos": "'fotos' does not exist",
    "predict -w weights.pth -d fotos --csv out.csv": "'fotos' does not exist",
    "cluster -w weights.pth -d fotos": "'fotos' does not exist",
    "export -w weights.pth -b resnt18 --out net.onnx": "there is no backbone 'resnt18'",
    "show -w weights.pth -d fotos": "'fotos' does not exist",
    "show -w weights.pth -d photos -o page.html": "show writes a page with pictures into a folder",
}


def of_every_command():
    """An unknown flag for every command."""
    return {f"{name} --nosuch": "'--nosuch'" for name in COMMANDS}


def of_every_protocol():
    """An unknown setting, and one of a wrong type, for every protocol."""
    found = {}
    for name in list_names("protocol"):
        field = next(iter(protocols.find(name).settings.__dataclass_fields__))
        found[f"eval {name} -w weights.pth no_such_setting=1"] = "no_such_setting"
        found[f"eval {name} -w weights.pth {field}={{a:1}}"] = f"{field}: "
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with files of the right names."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "folder", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "photos" / "a.png").touch()
    with zipfile.ZipFile("weights.pth", "w") as archive:  # only torch can tell that it holds no weights
        archive.writestr("weights/data.pkl", b"")
    (tmp_path / "text.pth").write_text("not weights")
    (tmp_path / "record.json").write_text("{}")
    np.save("f.npy", np.ones((4, 2), np.float32))
    np.save("y.npy", np.arange(4) % 2)
    return tmp_path


@pytest.mark.parametrize("cases", [CASES, of_every_command(), of_every_protocol()], ids=["named", "flags", "settings"])
def test_mistakes_are_told_before_anything_is_read(folder, sslbench, cases):
    before, wrong = sorted(folder.rglob("*")), []
    for command, message in cases.items():
        code, out, error = sslbench(*shlex.split(command))
        if code not in (1, 2) or out or message not in error or not error.startswith("error: "):
            wrong.append((command, code, out, error))
    assert wrong == []
    assert sorted(folder.rglob("*")) == before, "something was left behind"


def test_names_and_paths_are_told_before_torch_is_imported(folder):
    """In a process of their own, which torch would start seconds later."""
    kinds = ("eval knn -w weights.pth", "pretrain simclr -d")  # folders are read after the import
    # Settings of a method are checked by its module, which needs torch; with them, whatever is checked behind it.
    late = (" method.", "backbone=pixels", "eval_linear=", "--resume-from", "--stem", "--out")
    commands = [c for c in CASES if c.startswith(kinds) and not any(part in c for part in late)][::8]
    code = (
        "import shlex, sys\nfrom sslbench.cli.main import main\n"
        f"for command in {commands}:\n    try:\n        main(shlex.split(command))\n"
        "    except SystemExit as end:\n        assert end.code, command\n"
        "    assert 'torch' not in sys.modules, command"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_every_command_has_a_case():
    assert {shlex.split(command)[0] for command in CASES} == set(COMMANDS)
