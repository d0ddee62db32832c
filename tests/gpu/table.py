"""Table of speeds on a GPU beside loops as a user would write them: `make bench-gpu`, `make bench-gpu-full`.

Needs no network and no pytest. timm and lightly are compared where they are installed. `--smoke` runs every row in tiny
sizes on any device, so that none fails from a slip on the day that a GPU is at hand.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import Tensor
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers import runs, simclr_updates
from helpers.detectron2_samples import SMALL, squares

from sslbench import protocols
from sslbench.backbones import speed
from sslbench.backbones.build import build
from sslbench.backbones.layers import resolve_layers
from sslbench.backbones.load import load_backbone
from sslbench.data.decode.transforms import normalise
from sslbench.data.images import Files
from sslbench.data.source import Source
from sslbench.detection.models.build import build_detector
from sslbench.detection.recipe import DetectionRecipe, resolved
from sslbench.detection.train import TrainingRun
from sslbench.detection.train import train as train_detector
from sslbench.evaluation import estimate
from sslbench.features.array import ExtractSettings, Features
from sslbench.features.extract import extract
from sslbench.library.recipes import compose_pretraining
from sslbench.pretraining import PretrainRequest, pretrain
from sslbench.targets.classes import Classes
from sslbench.train.observers import Observer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the work: batch and side of images, JPEG files, rows of features, updates, and settings of protocols."""

    networks: tuple[str, ...] = ("timm:vit_base_patch16_224", "resnet50")
    precisions: tuple[str, ...] = ("bf16",)
    batch: int = 256
    side: int = 224
    files: int = 4096
    knn_rows: tuple[int, int] = (1_281_167, 50_000)
    probe_rows: tuple[int, int] = (40_000, 10_000)
    width: int = 2048
    classes: int = 1000
    probes: tuple[str, ...] = ("linear", "retrieval", "clustering")
    updates: int = 12
    methods: tuple[str, ...] = ("dino", "mae")
    vit: str = "timm:vit_small_patch16_224,dynamic_img_size=True"
    detector: int = 800
    smoke: bool = False
    settings: Mapping[str, Mapping[str, Any]] = dataclasses.field(
        default_factory=lambda: {"clustering": {"restarts": 1}}
    )


FULL = Sizes(
    precisions=("fp32", "bf16"),
    probe_rows=(1_281_167, 50_000),
    probes=("linear", "retrieval", "clustering", "lsr", "low-shot", "svm"),
    settings={},
)
IN_SMALL = {
    "knn": {"k": (2, 5)},
    "linear": {"c": (1.0,)},
    "low-shot": {"draws": 1, "k": (4,)},
    "lsr": {"draws": 1, "k": (4,)},
    "clustering": {"restarts": 1},
    "svm": {"costs": (1.0,)},
}
SMOKE = Sizes(
    ("resnet18w0.125",),
    ("fp32",),
    *(2, 32, 8, (60, 20), (60, 20), 8, 3, FULL.probes, 1),
    *(Sizes().methods, runs.VIT, 64, True, IN_SMALL),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """Line of the table.

    Attributes:
        work: title.
        seconds: of sslbench.
        bare: seconds of the same work by hand; None: nothing to compare with.
        least: goal of `bare / seconds`.
        most: goal of the seconds.
        remark: further figures.
    """

    work: str
    seconds: float
    bare: float | None = None
    least: float | None = None
    most: float | None = None
    remark: str = ""

    @property
    def score(self) -> float:
        """Smallest ratio to a goal: 1 or more where it is met; inf without one."""
        ratio = [self.bare / self.seconds / self.least] if self.bare is not None and self.least else []
        return min([*ratio, *([self.most / self.seconds] if self.most else [])], default=float("inf"))

    def cells(self) -> tuple[str, ...]:
        """Cells of the table."""
        bare = "-" if self.bare is None else f"{self.bare:.3g} s"
        ratio = "-" if self.bare is None else f"{self.bare / self.seconds:.2f}"
        goals = [f">= {self.least:g}"] if self.least else []
        goals += [f"<= {self.most:g} s"] if self.most else []
        met = "-" if not goals else "yes" if self.score >= 1 else "NO"
        return self.work, f"{self.seconds:.3g} s", bare, ratio, ", ".join(goals) or "-", met, self.remark


def wait() -> None:
    """Wait for all work that was queued."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds_of(action: Callable[[], object], repeats: int = 3) -> float:
    """Return the fewest seconds of an action, with all that it queued."""
    found = []
    for _ in range(repeats):
        wait()
        began = time.perf_counter()
        action()
        wait()
        found.append(time.perf_counter() - began)
    return min(found)


def encoding(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Uint8 images on the device to features; the bare network gets normalised images in its precision and layout."""
    for name in sizes.networks:
        for precision in sizes.precisions:
            backbone = load_backbone("random", backbone=name)
            layers = resolve_layers(backbone, (backbone.default_layer,))
            encode = speed.prepare(backbone, layers, device=DEVICE, precision=precision)
            dtype = torch.bfloat16 if precision == "bf16" else torch.float32
            bare = backbone.module.to(DEVICE, dtype, memory_format=torch.channels_last).eval()
            shape, rounds = (sizes.batch, 3, sizes.side, sizes.side), 1 if sizes.smoke else 10
            images = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
            images = images.to(memory_format=torch.channels_last)
            ready = normalise(images, backbone.preprocessing, dtype, torch.channels_last)

            def ours(encode=encode, images=images, given=(backbone.preprocessing, dtype), rounds=rounds):
                for _ in range(rounds):
                    encode(normalise(images, *given, torch.channels_last))

            @torch.inference_mode()
            def by_hand(bare=bare, ready=ready, rounds=rounds):
                for _ in range(rounds):
                    bare(ready)

            ours(), by_hand()
            mine, theirs = seconds_of(ours), seconds_of(by_hand)
            rate = f"{rounds * sizes.batch / mine:,.0f} images/s"
            yield Row(f"features of tensors, {name}, {precision}", mine, theirs, least=0.97, remark=rate)


@functools.cache
def photos(folder: Path, number: int) -> tuple[Path, ...]:
    """Return photograph-like JPEGs of 500 x 375, made from 64 pictures, in two classes."""
    rng, files, contents = np.random.default_rng(0), [], []
    for _ in range(min(64, number)):
        smooth = Image.fromarray(rng.integers(0, 255, (16, 20, 3), dtype=np.uint8)).resize((500, 375), 3)
        pixels = np.asarray(smooth) + rng.normal(0, 8, (375, 500, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / "picture.jpg", quality=90)
        contents.append((folder / "picture.jpg").read_bytes())
    for i in range(number):
        file = folder / "photos" / ("val" if i % 4 == 0 else "train") / "ab"[i // 4 % 2] / f"{i:04d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        # Bytes behind the end of a JPEG make files differ, but not pixels.
        file.write_bytes(contents[i % len(contents)] + i.to_bytes(4, "big"))
        files.append(file)
    return tuple(sorted(files))


def decoding(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """JPEG files to features, with the start of workers and network, beside a loop of torchvision and timm's loader."""
    files, cores = photos(folder, sizes.files), 0 if sizes.smoke else len(os.sched_getaffinity(0))
    name, precision = sizes.networks[-1], sizes.precisions[-1]
    backbone = load_backbone("random", backbone=name)
    layers = resolve_layers(backbone, (backbone.default_layer,))
    source = Source(
        "photos", tuple(file.name for file in files), Classes(("a",), np.zeros(len(files), int)), Files(files)
    )
    settings = ExtractSettings(device=DEVICE, precision=precision, batch_size=sizes.batch, workers=cores)
    mine = seconds_of(lambda: extract(backbone, source, layers, settings, root=folder / "store", split="all"), 1)
    module = backbone.module.to(DEVICE, memory_format=torch.channels_last).eval()
    data = torchvision.datasets.ImageFolder(folder / "photos", torchvision.models.ResNet50_Weights.DEFAULT.transforms())

    @torch.inference_mode()
    def by_hand(loader: Callable[[], object]) -> None:
        for images, _ in loader():
            ready = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16"):
                module(ready).float().cpu()

    plain = functools.partial(
        torch.utils.data.DataLoader, data, sizes.batch, num_workers=cores, pin_memory=DEVICE.type == "cuda"
    )
    title, rate = f"features of {len(files):,} JPEGs, {name}, {precision}", f"{len(files) / mine:,.0f} images/s"
    yield Row(f"{title}, beside torchvision", mine, seconds_of(lambda: by_hand(plain), 1), least=1.2, remark=rate)
    if importlib.util.find_spec("timm"):
        from timm.data import create_dataset, create_loader

        options = {"input_size": (3, 224, 224), "batch_size": sizes.batch, "num_workers": cores, "device": DEVICE}
        stored = create_dataset("", folder / "photos", search_split=False)
        assert len(stored) == len(files)
        prefetching = functools.partial(create_loader, stored, persistent_workers=False, **options)
        yield Row(f"{title}, beside timm's loader", mine, seconds_of(lambda: by_hand(prefetching), 1), remark=rate)


def features(rows: int, sizes: Sizes, folder: Path, seed: int) -> Features:
    """Return memory-mapped features with classes that a probe separates in part; few directions have most variance."""
    generator, means_of = torch.Generator(DEVICE).manual_seed(seed), torch.Generator(DEVICE).manual_seed(0)
    means = torch.randn(sizes.classes, sizes.width, generator=means_of, device=DEVICE)
    spread = torch.logspace(0, -2, sizes.width, device=DEVICE)
    file = folder / f"features-{rows}-{seed}.npy"
    x = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(rows, sizes.width))
    labels = np.arange(rows) % sizes.classes
    for start in range(0, rows, 65_536):
        own = torch.from_numpy(labels[start : start + 65_536]).to(DEVICE)
        noise = torch.randn(len(own), sizes.width, generator=generator, device=DEVICE)
        x[start : start + len(own)] = ((0.25 * means[own] + noise) * spread).relu_().cpu().numpy()
    names = tuple(f"{c:04d}" for c in range(sizes.classes))
    return Features(x, Classes(names, labels), tuple(map(str, range(rows))))


@functools.cache
def product_rate() -> float:
    """Return operations per second of products in float32."""
    side = 256 if DEVICE.type == "cpu" else 8192
    matrix = torch.randn(side, side, device=DEVICE)
    return 2 * side**3 / seconds_of(lambda: matrix @ matrix)


def probe(name: str, train: Features, test: Features, sizes: Sizes) -> tuple[float, float, float]:
    """Run a protocol; return its seconds, those of its products alone, and those that were estimated."""
    protocol, shape = protocols.find(name), (len(train), len(test), *train.x.shape[1:], sizes.classes)
    settings = protocol.settings(**sizes.settings.get(name, {}))
    cost = protocol.kind.cost(settings, protocols.Shapes(*shape))
    assert isinstance(cost, protocols.Cost), cost
    expected = estimate.seconds_of(cost, str(DEVICE))
    began = time.perf_counter()
    protocol.kind.outcomes(protocols.FeatureInputs(settings, 0, train, test, {}, None, str(DEVICE)))
    return time.perf_counter() - began, cost.products / product_rate(), expected


def of_estimate(name: str, mine: float, expected: float) -> Row:
    """Return the row of an estimate; within a factor of two is met."""
    remark = f"{expected:.3g} s estimated"
    return Row(f"estimate of {name}", max(mine, expected), min(mine, expected), least=0.5, remark=remark)


def neighbours(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """The kNN protocol with the choice of k and intervals, beside a product and top-k alone."""
    train, test = (features(rows, sizes, folder, seed) for seed, rows in enumerate(sizes.knn_rows))
    mine, _, expected = probe("knn", train, test, sizes)
    some = min(100_000, len(train)), min(5000, len(test))
    x, queries = (torch.randn(rows, sizes.width, device=DEVICE) for rows in some)
    bare = seconds_of(lambda: (queries @ x.T).topk(min(20, len(x)))) * len(train) / some[0] * len(test) / some[1]
    title = f"knn, {len(train):,} x {sizes.width:,}, {len(test):,} queries"
    yield Row(f"{title}, beside product and top-k", mine, bare, least=0.5, most=12)
    yield Row(
        "estimate of knn", max(mine, expected), min(mine, expected), least=0.5, remark=f"{expected:.3g} s estimated"
    )


def torch_lbfgs(train: Features, sizes: Sizes) -> Callable[[], object]:
    """Return one logistic regression by 100 steps of torch's L-BFGS, at an unknown distance to the optimum."""
    x, labels = torch.from_numpy(train.x).to(DEVICE), torch.from_numpy(train.target.values).to(DEVICE)

    def go() -> None:
        weight = torch.zeros(sizes.width, sizes.classes, device=DEVICE, requires_grad=True)
        bias = torch.zeros(sizes.classes, device=DEVICE, requires_grad=True)
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = functional.cross_entropy(x @ weight + bias, labels) + weight.square().sum() / (2 * len(x))
            loss.backward()
            return loss

        optimizer.step(closure)

    return go


def probes(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Protocols on features beside their bare products; linear also beside one fit for each strength of torch."""
    train, test = (features(rows, sizes, folder, seed) for seed, rows in enumerate(sizes.probe_rows))
    for name in sizes.probes:
        mine, bare, expected = probe(name, train, test, sizes)
        given = "".join(f", {key}={value}" for key, value in sizes.settings.get(name, {}).items())
        title = f"{name}, {len(train):,} x {sizes.width:,} x {sizes.classes:,}{given}"
        most = None
        if name == "linear":
            most = 8.0 if len(train) == Sizes().probe_rows[0] else 240.0
            strengths = len(protocols.find("linear").settings().c)
            fits = strengths * seconds_of(torch_lbfgs(train, sizes), 1)
            yield Row(f"{title}, beside torch's L-BFGS", mine, fits, remark=f"{strengths} strengths")
        yield Row(f"{title}, beside its products", mine, bare, most=most)
        yield of_estimate(name, mine, expected)


def updates(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Updates of SimCLR on views in memory beside a step by hand, plain and compiled."""
    name, dims = ("resnet18", 512) if sizes.smoke else ("resnet50", 2048)
    case = simclr_updates.Case(name, dims, dims, sizes.side, sizes.batch, str(DEVICE), sizes.precisions[-1])
    batches = case.batches(1) * sizes.updates
    for compiled in (False,) if sizes.smoke else (False, True):
        by_hand = simclr_updates.by_hand(case, batches, compiled=compiled)
        ours = simclr_updates.by_the_loop(case, batches, compiled=compiled)
        by_hand(), ours()
        mine, theirs = seconds_of(ours) / sizes.updates, seconds_of(by_hand) / sizes.updates
        title = f"update of SimCLR, {name}, 2 x {sizes.batch} x {sizes.side}{', compiled' if compiled else ''}"
        yield Row(title, mine, theirs, least=0.97, remark=f"{sizes.batch / mine:,.0f} images/s")
    for method in sizes.methods:
        yield method_update(method, sizes)


def method_update(method: str, sizes: Sizes) -> Row:
    """Update of a method by the training loop, beside its loss in a loop by hand."""
    batch = max(2, sizes.batch // 4)
    small = sizes.side * 3 // 7 // 16 * 16 or sizes.side // 2
    views = [sizes.side] * 2 + [small] * 8 if method == "dino" else [sizes.side]
    settings = runs.METHODS[method][0] if sizes.smoke else compose_pretraining(method, {}, {}).values["method"]
    case = simclr_updates.MethodCase(
        {**settings, "name": method}, sizes.vit, tuple(views), batch, str(DEVICE), sizes.precisions[-1]
    )
    batches = case.batches(1) * sizes.updates
    ours, by_hand = case.by_the_loop(batches), case.by_hand(batches)
    ours(), by_hand()
    mine, theirs = seconds_of(ours) / sizes.updates, seconds_of(by_hand) / sizes.updates
    title = f"update of {method}, {sizes.vit.partition(',')[0]}, {batch} images of {len(views)} views"
    return Row(title, mine, theirs, least=0.97, remark=f"{batch / mine:,.0f} images/s")


def lightly(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """SimCLR from JPEGs, ResNet-18, beside lightly where that is installed; seconds of 1,000 images."""
    files, workers = photos(folder, sizes.files), 0 if sizes.smoke else len(os.sched_getaffinity(0))
    lines: list[float] = []

    class Rates(Observer):
        def line(self, line: Any) -> None:
            lines.append(line.images_per_second)

    place, batch, shown = folder / "simclr", min(64, len(files) // 4), 2
    view = {"count": 2, "size": sizes.side, "scale": [0.08, 1.0], "flip": 0.5, "grayscale": 0.2, "blur": {"p": 0.5}}
    view["jitter"] = {"p": 0.8, "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2}
    changes = {"backbone": "resnet18", "augment": {"views": [view]}, "batch_size": batch, "epochs": 1}
    changes |= {"workers": workers, "device": str(DEVICE), "save_every": "10 epochs", "schedule": {"lr": 1.0}}
    request = PretrainRequest(runs.settings("simclr", **changes), data=str(files[0].parent.parent), out=place)
    pretrain(request, command="table", observers=[Rates()])
    mine = 1000 / float(np.median(lines[min(shown, len(lines) - 1) :]))
    theirs = None
    if importlib.util.find_spec("lightly") and not sizes.smoke:
        script = Path(__file__).parents[1] / "speed" / "lightly_simclr.py"
        words = [sys.executable, script, files[0].parent.parent, *map(str, (sizes.side, workers, batch, DEVICE))]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        theirs = 1000 / json.loads(done.stdout.splitlines()[-1])["images_per_second"]
    yield Row("1,000 images of SimCLR from JPEG, ResNet-18, beside lightly", mine, theirs, least=1.3)


def detector(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Iterations of Faster R-CNN with a ResNet-50 and a pyramid beside torchvision's reference loop."""
    side, iterations = sizes.detector, 1 if sizes.smoke else 20
    source = squares(4, "train", side, side * 4 // 3)
    own = {"architecture": "fpn", "min_sizes_train": (side,), "max_size_train": side * 5 // 3, "warmup_iterations": 1}
    for precision in ("fp32",) if sizes.smoke else ("fp32", "bf16"):
        given = {
            **(SMALL if sizes.smoke else {}),
            **own,
            "precision": precision,
            "batch_size": 2,
            "steps": (),
            "lr": 1e-4,
        }

        def ours(number: int, given=given, precision=precision) -> None:
            recipe = resolved(DetectionRecipe(**{**given, "iterations": number}))
            network = build_detector(build("resnet18" if sizes.smoke else "resnet50"), recipe, 2, device=DEVICE)
            place = folder / f"detector-{precision}-{number}-{time.monotonic_ns()}"
            train_detector(network, source, TrainingRun(0, DEVICE, 0 if sizes.smoke else 2, place, 10_000))

        few = seconds_of(lambda run=ours: run(1), 1 if sizes.smoke else 2)
        mine = max(seconds_of(lambda run=ours: run(1 + iterations), 1) - few, 1e-3) / iterations
        theirs = seconds_of(torchvision_loop(source, side, iterations, precision, smoke=sizes.smoke), 1) / iterations
        yield Row(f"Faster R-CNN R50-FPN, {side} px, {precision}, 2 images", mine, theirs, least=1.0)


def torchvision_loop(source: Any, side: int, iterations: int, precision: str, *, smoke: bool) -> Callable[[], None]:
    """Return iterations of torchvision's reference loop on images in memory, after one that warms up."""
    options = {"min_size": side, "max_size": side * 5 // 3, "num_classes": 3}
    network = torchvision.models.detection.fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, **options)
    network = network.to(DEVICE).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, weight_decay=1e-4)
    samples = []
    for i in range(2):
        image = torch.rand(3, side, side * 4 // 3)
        target = source.target.objects[i]
        samples.append(
            (image, {"boxes": torch.from_numpy(target.boxes), "labels": torch.from_numpy(target.classes) + 1})
        )

    def go(number: int = iterations) -> None:
        for _ in range(number):
            images = [image.to(DEVICE) for image, _ in samples]
            targets = [{k: v.to(DEVICE) for k, v in target.items()} for _, target in samples]
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16"):
                loss = sum(network(images, targets).values())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            assert torch.isfinite(loss)

    if not smoke:
        go(1)
    return go


def commands(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """`eval knn linear svm` of JPEG files as a command, and `eval knn` again with the features in the store."""
    photos(folder, sizes.files)
    words = ["--weights", "random", "--backbone", sizes.networks[-1], "--data", folder / "photos", "--no-floors"]
    words += ["--device", str(DEVICE)]
    environment = {**os.environ, "SSLBENCH_CACHE": str(folder / "cache")}

    def run(*names: str) -> None:
        done = [sys.executable, "-m", "sslbench", "eval", *names, *words, "--out", folder / "-".join(["out", *names])]
        found = subprocess.run(list(map(str, done)), env=environment, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr[-2000:]

    tasks = ("knn",) if sizes.smoke else ("knn", "linear", "svm")
    yield Row(f"command: eval {' '.join(tasks)}, {sizes.files:,} JPEGs", seconds_of(lambda: run(*tasks), 1), most=15)
    if not sizes.smoke:
        yield Row(
            "the same, features stored: start until the first batch, at most", seconds_of(lambda: run("knn"), 1), most=6
        )


BENCHMARKS = (encoding, decoding, updates, commands, neighbours, detector, lightly, probes)


def about() -> str:
    """Return the card's name and versions."""
    card = torch.cuda.get_device_name() if DEVICE.type == "cuda" else f"no GPU: {platform.machine()}"
    names = [name for name in ("timm", "lightly", "cuml") if importlib.util.find_spec(name)]
    cuda = f"CUDA {torch.version.cuda}, " if DEVICE.type == "cuda" else ""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    return f"{card}, {cores}, {cuda}torch {torch.__version__}, torchvision {torchvision.__version__} {' '.join(names)}"


def measured(sizes: Sizes, budget: float, chosen: Sequence[str]) -> tuple[list[Row], list[str]]:
    """Return all rows, the best last, and what could not be shown, with its reason."""
    rows, missing, began = list[Row](), list[str](), time.perf_counter()
    for benchmark in BENCHMARKS:
        name = benchmark.__name__
        if chosen and name not in chosen:
            missing.append(f"{name}: not chosen")
        elif time.perf_counter() - began > budget:
            missing.append(f"{name}: {budget:.0f} s were over")
        else:
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                stack.callback(photos.cache_clear)
                try:
                    for row in benchmark(sizes, Path(folder)):
                        print(" | ".join(row.cells()), f"({time.perf_counter() - began:.0f} s)", flush=True)
                        rows.append(row)
                        if time.perf_counter() - began > budget:
                            missing.append(f"{name} after {row.work}: {budget:.0f} s were over")
                            break
                except Exception as error:  # noqa: BLE001  a row must not take the others along
                    missing.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}")
    return sorted(rows, key=lambda row: row.score), missing


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a row failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any device")
    parser.add_argument("--full", action="store_true", help="all sizes, without a limit of time")
    parser.add_argument("--seconds", type=float, default=240, help="after which no further row begins")
    parser.add_argument("--only", nargs="*", default=[], choices=[each.__name__ for each in BENCHMARKS])
    given = parser.parse_args(words)
    if DEVICE.type == "cpu" and not given.smoke:
        parser.error("no CUDA GPU is here; --smoke runs every row in tiny sizes on the processor")
    sizes = SMOKE if given.smoke else FULL if given.full else Sizes()
    rows, missing = measured(sizes, float("inf") if given.full else given.seconds, given.only)
    print(f"\n{about()}{'; tiny sizes, whose figures say nothing' if given.smoke else ''}\n")
    lines = [("work", "here", "by hand", "ratio", "goal", "met", ""), ("---",) * 7, *(row.cells() for row in rows)]
    print("\n".join(f"| {' | '.join(cells)} |" for cells in lines))
    print("\n".join(f"not shown: {each}" for each in missing))
    return int(any("Error" in each for each in missing))


if __name__ == "__main__":
    sys.exit(main())
