"""`sslbench eval`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import flags
from sslbench.cli.protocol_names import about, all_protocols
from sslbench.errors import UsageError
from sslbench.names import did_you_mean, list_names

if TYPE_CHECKING:
    from sslbench.benchmarks import Benchmark
    from sslbench.evaluation import Request, RunSettings


class EvalCommand(click.Command):
    """A command whose help also lists the settings of the protocols that are named on the command line."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keeps the words for the help."""
        ctx.meta["words"] = list(args)
        return super().parse_args(ctx, args)

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


def show_value(value: Any) -> str:
    """A setting's value as it would be written after KEY=."""
    if isinstance(value, tuple):
        return "[" + ",".join(show_value(v) for v in value) + "]"
    if value is None or isinstance(value, bool):
        return str(value).lower().replace("none", "null")
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command("eval", cls=EvalCommand)
@click.argument("words", nargs=-1, metavar="[PROTOCOL]... [KEY=VALUE]...")
@click.option(
    "--benchmark", "benchmarks", multiple=True, help="A named benchmark (sslbench list benchmarks) or a YAML."
)
@click.option("--suite", help="Several named benchmarks: a name below benchmarks/suites/.")
@flags.weights_flags
@flags.data_flags
@click.option("--features", help="Embeddings made elsewhere, .npy or .npz (N x D), in place of --weights and --data.")
@click.option("--labels", help="Labels of --features: a .csv with a column 'label', one line per row.")
@click.option("--test-features", help="The same for the test part.")
@click.option("--test-labels", help="The same for the test part.")
@flags.preprocessing_flags
@flags.run_flags
@click.option("--no-floors", is_flag=True, help="Skip chance, pixels and the untrained backbone.")
@click.option("--limit-iters", type=click.IntRange(1), help="detection: end training after so many iterations.")
@click.option("--baseline", is_flag=True, help="detection: train the untrained backbone too; twice the time.")
@click.option("--out", default="results", show_default=True, help="Folder for the result records.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, with the origin of every setting.")
def command(words: tuple[str, ...], **given: Any) -> None:
    """Score a backbone's frozen features with one or several protocols, or a detector trained around it.

    The images are encoded once for all protocols; features are stored and found again. Without --data the digits
    bundled with scikit-learn are used, and for detection drawn shapes.

    \b
    sslbench eval knn --weights w.torch --data photos/
    sslbench eval knn svm linear --weights w.torch --data train.csv --test-data test.csv k=[20,200]
    sslbench eval --benchmark knn/cifar10 --weights timm.pth --backbone timm:vit_small_patch16_224
    sslbench eval detection --benchmark detection/voc07 --weights w.torch --data VOC2007
    """  # noqa: D301
    from sslbench.cli import eval_detection, terminal
    from sslbench.cli import words as words_module
    from sslbench.config import resolve
    from sslbench.evaluation import RunSettings

    terminal.show_messages()
    protocols, values = words_module.split_words(words)
    if eval_detection.wanted(protocols, given["benchmarks"]):
        eval_detection.run(values, given, _typed())
        return
    for flag in ("limit_iters", "baseline"):
        if given[flag]:
            raise UsageError(f"--{flag.replace('_', '-')} is for detection; protocols on features have no such thing")
    protocols, benchmarks = _what(protocols, given["benchmarks"], given["suite"])
    run_keys = [f.name for f in dataclasses.fields(RunSettings)] + ["machine"]
    routed = words_module.route(values, run_keys, protocols)
    run_flags = flags.given(given, flags.RUN_KEYS) | ({"floors": False} if given["no_floors"] else {})
    run, origins = resolve(RunSettings, words_module.compose_run(routed.run, run_flags))
    out = Path(given["out"])
    if given["features"]:
        _eval_features(protocols, routed, run, given, out)
        return
    requests = _requests(protocols, benchmarks, routed, given)
    store = flags.store_folder(given["store"])
    if given["dry_run"]:
        _dry_run(requests, run, origins, store)
        return
    _evaluate(requests, run, store, out)


def _what(protocols: list[str], names: Sequence[str], suite: str | None) -> tuple[list[str], list["Benchmark"]]:
    """The protocols to run and the benchmarks asked for."""
    from sslbench.benchmarks import load_benchmark, load_suite

    known = list_names("protocol")
    for name in protocols:
        if name not in known and "." not in name:
            raise UsageError(f"there is no protocol called '{name}'", did_you_mean(name, all_protocols()))
    benchmarks = [load_benchmark(name) for name in [*names, *(load_suite(suite) if suite else ())]]
    if not benchmarks and not protocols:
        raise UsageError(
            "what should be evaluated? Name a protocol or a --benchmark", did_you_mean("", all_protocols())
        )
    if benchmarks and protocols:
        benchmarks = [b for b in benchmarks if b.protocol in protocols]
        if not benchmarks:
            raise UsageError(f"no benchmark that was asked for uses the protocol {' or '.join(protocols)}")
    return list(dict.fromkeys(protocols or [b.protocol for b in benchmarks])), benchmarks


def _requests(
    protocols: list[str], benchmarks: list["Benchmark"], routed: Any, given: dict[str, Any]
) -> list["Request"]:
    from sslbench.backbones.layers import split_layers
    from sslbench.evaluation import Request, make_task

    if not given["weights"]:
        raise UsageError(
            "which weights? --weights is missing",
            "Give a checkpoint; 'random' with --backbone is an untrained network, 'pixels' the images themselves.",
        )
    keys = (*flags.WEIGHTS_KEYS, "test_data", "image_column", "label_column", "limit")
    common = {key: given[key] for key in keys}
    layers = tuple(split_layers(given["layers"])) if given["layers"] else ()
    preprocessing = flags.preprocessing_values(given)
    if not benchmarks:
        tasks = tuple(make_task(name, routed.protocols[name]) for name in protocols)
        data = given["data"] or flags.default_data()
        return [Request(**common, data=data, tasks=tasks, layers=layers, preprocessing=preprocessing)]
    requests = []
    for benchmark in benchmarks:
        data = given["data"] or benchmark.data
        if not data:
            raise UsageError(f"{benchmark.name} needs --data: {benchmark.title}")
        changed = {**routed.protocols[benchmark.protocol]}
        task = make_task(benchmark.protocol, changed, benchmark)
        merged = {**benchmark.preprocessing, **preprocessing}
        if merged != benchmark.preprocessing or (layers and benchmark.layers and layers != benchmark.layers):
            task = dataclasses.replace(task, benchmark=dataclasses.replace(benchmark, modified=True))
        chosen = layers or benchmark.layers
        requests.append(Request(**common, data=data, tasks=(task,), layers=chosen, preprocessing=merged))
    return requests


def _dry_run(requests: list["Request"], run: "RunSettings", origins: dict[str, str], store: Path) -> None:
    from sslbench.cli.dry_run import print_plan
    from sslbench.evaluation import prepare

    for request in requests:
        print_plan(prepare(request, run), origins, store)


def _evaluate(requests: list["Request"], run: "RunSettings", store: Path, out: Path) -> None:
    from sslbench import evaluation
    from sslbench.cli import result_table, terminal
    from sslbench.distributed import this_process

    backbone = None
    with terminal.progress() as progress:
        written = []
        for request in requests:
            prepared = evaluation.prepare(request, run, backbone=backbone)
            backbone = prepared.loaded
            evaluation.check_writable(out)
            written += evaluation.evaluate(prepared, store=store, out=out, command=_typed(), progress=progress)
    if this_process().rank == 0:
        result_table.print_results(written, out)


def _eval_features(protocols: list[str], routed: Any, run: "RunSettings", given: dict[str, Any], out: Path) -> None:
    from sslbench import evaluation
    from sslbench.cli import result_table
    from sslbench.features.external import read_train_test

    for flag in ("weights", "data", "backbone", "layers"):
        if given[flag]:
            raise UsageError(f"--features and --{flag} exclude each other: features made elsewhere need no {flag}")
    if not given["labels"]:
        raise UsageError("--features needs --labels: a .csv with a column 'label', one line per row of the features")
    evaluation.check_writable(out)
    tasks = [evaluation.make_task(name, routed.protocols[name]) for name in protocols]
    data = read_train_test(
        Path(given["features"]),
        Path(given["labels"]),
        Path(given["test_features"]) if given["test_features"] else None,
        Path(given["test_labels"]) if given["test_labels"] else None,
        label_column=given["label_column"],
        test_fraction=run.test_fraction,
        seed=run.seed,
    )
    result_table.print_results(evaluation.evaluate_features(data, tasks, run, out=out, command=_typed()), out)


def _typed() -> str:
    """The command as the user typed it."""
    return str(click.get_current_context().find_root().obj)
