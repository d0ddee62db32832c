"""`sslbench eval`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import options
from sslbench.cli.settings_page import show_value
from sslbench.cli.words import about, all_protocols
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, list_names

if TYPE_CHECKING:
    from sslbench.cli.commands.eval.presets import Run
    from sslbench.evaluation import Request, RunSettings
    from sslbench.library.benchmarks import Benchmark


class EvalCommand(click.Command):
    """A command whose help also lists the settings of the protocols that are named on the command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keeps the words for the help, and all that follows --weights."""
        from sslbench.cli.commands.eval.suite import take_weights

        ctx.meta["words"] = list(args)
        ctx.meta["weights"], rest = take_weights(args)
        return super().parse_args(ctx, rest)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The settings of the protocols that are named."""
        protocols = [word for word in ctx.meta.get("words", []) if word in all_protocols()]
        for name in protocols:
            from sslbench.config import describe

            with formatter.section(f"Settings of {name} (KEY=VALUE)"):
                rows = describe(about(name)[2])
                formatter.write_dl([(f"{r.name}={show_value(r.default)}", f"{r.meaning} [{r.type}]") for r in rows])
        if not protocols:
            formatter.write_paragraph()
            formatter.write_text("Settings of a protocol: sslbench eval knn --help")


@click.command("eval", cls=EvalCommand)
@click.argument("words", nargs=-1, metavar="[PROTOCOL]... [KEY=VALUE]...")
@click.option(
    "--benchmark", "benchmarks", multiple=True, help="A named benchmark (sslbench list benchmarks) or a YAML."
)
@click.option(
    "--preset", "presets", multiple=True, help="A published way to run a protocol: dino, knn/dino (list presets)."
)
@click.option("--suite", help="Several named benchmarks (sslbench list suites); what cannot be run leaves a hole.")
@options.weights_flags
@options.data_flags
@click.option(
    "--test-classes",
    type=click.Choice(["same", "subset", "numbers"]),
    help="Of those of train: all; only those in test can be predicted; test numbers them.",
)
@click.option("--value-col", "value_columns", help="Columns of numbers to predict in place of classes: height or x,y.")
@click.option("--groups", multiple=True, metavar="COLUMN", help="Also score each group of this column, and the worst.")
@click.option("--features", help="Embeddings made elsewhere, .npy or .npz (N x D), in place of --weights and --data.")
@click.option("--labels", help="Labels of --features: a .csv with a column 'label', one line per row; ?group=COLUMN.")
@click.option("--test-features", help="The same for the test part.")
@click.option("--test-labels", help="The same for the test part.")
@options.preprocessing_flags
@options.run_flags
@click.option("--max-memory", help="Of the kNN search: 8GB, 500MB; the same as max_memory=8.")
@click.option("--no-floors", is_flag=True, help="Skip chance, pixels and the untrained backbone.")
@click.option("--no-overlaps", is_flag=True, help="Do not look for test images that are in train too.")
@click.option("--limit-iters", type=click.IntRange(1), help="detection: end training after so many iterations.")
@click.option(
    "--baseline",
    "baselines",
    multiple=True,
    metavar="random|WEIGHTS",
    help="detection: train the same detector from these too, to stand beside: random (untrained), supervised weights.",
)
@click.option(
    "--backend",
    type=click.Choice(("torchvision", "detectron2")),
    help="detection: what trains the detector [default: torchvision]; d2.KEY=VALUE changes Detectron2's configuration.",
)
@click.option("--out", default="results", show_default=True, help="Folder for the result records.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, with the origin of every setting.")
def command(words: tuple[str, ...], **given: Any) -> int | None:
    """Score a backbone's frozen features with one or several protocols, or a detector trained around it.

    The images are encoded once for all protocols; features are stored and found again. Without --data the digits
    bundled with scikit-learn are used, and for detection drawn shapes.

    \b
    sslbench eval knn --weights w.torch --data photos/
    sslbench eval knn svm linear --weights w.torch --data train.csv --test-data test.csv k=[20,200]
    sslbench eval --preset knn/dino --preset svm/voc07 --weights w.torch --data photos/
    sslbench eval --benchmark knn/cifar10 --weights timm.pth --backbone timm:vit_small_patch16_224
    sslbench eval --suite small --weights a.torch b.torch runs/*/weights.torch
    sslbench eval detection --benchmark detection/voc07 --weights w.torch --data VOC2007

    Several weights and --suite: each record is written when it is done, and what is there is not computed again.
    """  # noqa: D301
    from sslbench.cli import terminal
    from sslbench.cli import words as words_module
    from sslbench.cli.commands.eval import detection, presets
    from sslbench.cli.commands.eval import suite as eval_suite
    from sslbench.config import resolve
    from sslbench.evaluation import RunSettings

    terminal.show_messages()
    protocols, values = words_module.split_words(words)
    protocols = [name if "." in name else name.replace("_", "-") for name in protocols]  # low_shot is low-shot
    chosen = detection.wanted(protocols, given["benchmarks"], given["suite"])
    if chosen is not None:
        if len(click.get_current_context().meta["weights"]) > 1:
            raise UsageError("detection takes one file of weights at a time")
        detection.run(values, {**given, "benchmarks": chosen, "suite": None}, _typed())
        return None
    for flag in ("limit_iters", "baselines", "backend"):
        if given[flag]:
            name = flag.replace("baselines", "baseline").replace("_", "-")
            raise UsageError(f"--{name} is for detection; protocols on features have no such thing")
    if given["max_memory"]:
        values["max_memory"] = options.gigabytes(given["max_memory"])
    benchmarks = _benchmarks(protocols, given)
    runs = presets.runs(protocols, given["presets"], benchmarks)
    run_keys = [f.name for f in dataclasses.fields(RunSettings)] + ["machine"]
    routed = words_module.route(values, run_keys, list(dict.fromkeys(each.protocol for each in runs)))
    run_flags = options.given(given, options.RUN_KEYS) | ({"floors": False} if given["no_floors"] else {})
    run_flags |= {"overlaps": False} if given["no_overlaps"] else {}
    run, origins = resolve(RunSettings, words_module.compose_run(routed.run, run_flags))
    out = Path(given["out"])
    if given["features"]:
        _eval_features(runs, routed, run, given, out)
        return None
    store = options.store_folder(given["store"])
    weights = eval_suite.expand(click.get_current_context().meta["weights"])
    if len(weights) > 1 or (weights and given["suite"]):
        cells = eval_suite.make_cells(
            weights, benchmarks, given, lambda own, chosen: _requests(runs, chosen, routed, given | own)
        )
        if not given["dry_run"]:
            return eval_suite.run(cells, run, given, store=store, command=_typed())
        eval_suite.dry_run(cells, run, origins, store)
        return None
    requests = _requests(runs, benchmarks, routed, given | {"weights": weights[0] if weights else None})
    if given["dry_run"]:
        _dry_run(requests, run, origins, store)
    else:
        _evaluate(requests, run, store, out)
    return None


def _benchmarks(protocols: list[str], given: dict[str, Any]) -> list["Benchmark"]:
    """The benchmarks asked for; without any, the protocols or presets say what to run."""
    from sslbench.library.benchmarks import load_benchmark, load_suite

    known = list_names("protocol")
    for name in protocols:
        if name not in known and "." not in name:
            raise UsageError(f"there is no protocol called '{name}'", did_you_mean(name, all_protocols()))
    suite = load_suite(given["suite"]) if given["suite"] else ()
    benchmarks = [load_benchmark(name) for name in [*given["benchmarks"], *suite]]
    if not benchmarks and not protocols and not given["presets"]:
        raise UsageError(
            "what should be evaluated? Name a protocol, a --preset or a --benchmark", did_you_mean("", all_protocols())
        )
    if benchmarks and protocols:
        benchmarks = [b for b in benchmarks if b.protocol in protocols]
        if not benchmarks:
            raise UsageError(f"no benchmark that was asked for uses the protocol {' or '.join(protocols)}")
    return benchmarks


def _requests(
    runs: Sequence["Run"], benchmarks: list["Benchmark"], routed: Any, given: dict[str, Any]
) -> list["Request"]:
    from sslbench.backbones.layers import split_layers
    from sslbench.cli.commands.eval.presets import asked_of_images, grouped, mark_changes
    from sslbench.evaluation import make_task
    from sslbench.library.benchmarks import data_of

    if not given["weights"]:
        raise UsageError(
            "which weights? --weights is missing",
            "Give a checkpoint; 'random' with --backbone is an untrained network, 'pixels' the images themselves.",
        )
    keys = (*options.WEIGHTS_KEYS, "image_column", "label_column", "limit")
    common = {**{key: given[key] for key in keys}, "groups": given["groups"], "value_columns": _value_columns(given)}
    layers = tuple(split_layers(given["layers"])) if given["layers"] else ()
    preprocessing = options.preprocessing_values(given)
    requests = []
    every: Sequence[Benchmark | None] = benchmarks or [None]
    for benchmark in every:
        data, common["test_data"] = given["data"], given["test_data"]
        if benchmark is not None:
            data, common["test_data"] = data_of(benchmark, data, given["test_data"])
        elif data is None:
            data = options.default_data()
        common["test_classes"] = given["test_classes"] or (benchmark.test_classes if benchmark else "same")
        made = []
        for run in runs:
            if benchmark is not None and run.named != benchmark.protocol:
                continue
            wanted = asked_of_images(run, layers, preprocessing, benchmark)
            task = make_task(run.protocol, routed.protocols[run.protocol], benchmark, run.preset)
            made.append((mark_changes(task, *wanted), wanted))
        requests += grouped(common, data, made)
    return requests


def _dry_run(requests: list["Request"], run: "RunSettings", origins: dict[str, str], store: Path) -> None:
    from sslbench.cli.commands.eval.plan import print_plan
    from sslbench.evaluation import prepare

    for request in requests:
        print_plan(prepare(request, run), origins, store)


def _evaluate(requests: list["Request"], run: "RunSettings", store: Path, out: Path) -> None:
    from sslbench import evaluation
    from sslbench.cli import terminal
    from sslbench.cli.commands.eval import table
    from sslbench.distributed import this_process
    from sslbench.features.presence import announced

    backbone = None
    with announced(store), terminal.progress() as progress:
        written = []
        for request in requests:
            prepared = evaluation.prepare(request, run, backbone=backbone)
            backbone = prepared.loaded
            evaluation.check_writable(out)
            written += evaluation.evaluate(prepared, store=store, out=out, command=_typed(), progress=progress)
    if this_process().rank == 0:
        table.print_results(written, out)


def _eval_features(runs: Sequence["Run"], routed: Any, run: "RunSettings", given: dict[str, Any], out: Path) -> None:
    from sslbench import evaluation
    from sslbench.cli.commands.eval import table
    from sslbench.cli.commands.eval.presets import mark_changes
    from sslbench.features.external import read_train_test, read_unlabelled

    for flag in ("weights", "data", "backbone", "layers"):
        if given[flag]:
            raise UsageError(f"--features and --{flag} exclude each other: features made elsewhere need no {flag}")
    tasks = [
        mark_changes(evaluation.make_task(one.protocol, routed.protocols[one.protocol], preset=one.preset), (), {})
        for one in runs
    ]
    if not given["labels"] and any(evaluation.needs_labels(task) for task in tasks):
        text = "--features needs --labels: a .csv with a column 'label', one line per row of the features"
        raise UsageError(text, "Protocols that need none: geometry.")
    evaluation.check_writable(out)
    if not given["labels"] and given["groups"]:
        raise UsageError("--groups with --features needs --labels: a .csv that has these columns")
    if not given["labels"]:
        pair = read_unlabelled(Path(given["features"]))
        table.print_results(evaluation.evaluate_features(pair, tasks, run, out=out, command=_typed()), out)
        return
    data = read_train_test(
        Path(given["features"]),
        Path(given["labels"]),
        Path(given["test_features"]) if given["test_features"] else None,
        Path(given["test_labels"]) if given["test_labels"] else None,
        label_column=given["label_column"],
        value_columns=_value_columns(given),
        attribute_columns=given["groups"],
        test_fraction=run.test_fraction,
        seed=run.seed,
    )
    table.print_results(evaluation.evaluate_features(data, tasks, run, out=out, command=_typed()), out)


def _value_columns(given: dict[str, Any]) -> tuple[str, ...]:
    """The columns in --value-col."""
    return tuple(name.strip() for name in (given["value_columns"] or "").split(",") if name.strip())


def _typed() -> str:
    """The command as the user typed it."""
    return str(click.get_current_context().find_root().obj)
