"""`sslbench run`: written requests, of records, of jobs or by hand."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sslbench import names
from sslbench.cli import options, remote_folder, terminal
from sslbench.cli.commands import extract
from sslbench.cli.commands.eval import KEPT
from sslbench.cli.commands.pretrain import work as pretrain
from sslbench.cli.flags import LocalPath, argument_options, flag
from sslbench.config import read_yaml
from sslbench.errors import ResultError, UsageError, told_on_interrupt
from sslbench.evaluation.request import VERSION, FeaturesRequest, Request, read_request
from sslbench.evaluation.settings import RunSettings
from sslbench.results import Result
from sslbench.results.records import read


@click.command("run")
@click.argument("files", nargs=-1, required=True, type=LocalPath())
@argument_options
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    files: tuple[Path, ...],
    out: str = flag("Folder for the records of evaluations.", "--out", "-o", default="results", show_default=True),
    store: str | None = flag("Folder of the feature store. Default: in the user's cache folder."),
    skip_existing: bool = flag("Do not compute again what has a record in --out.", default=False),
    trust_code: bool = flag("Run Python code that the files name: modules, pickles.", default=False),
    dry_run: bool = flag("Print the settings with their origins and stop.", default=False),
) -> int | None:
    """Run the requests in FILES: YAML (docs/evaluate.md), records of evaluations, config.yaml of pretraining runs.

    A request of pretraining names a method, one of an evaluation tasks, and one without tasks extracts features.
    Places are relative to the current folder.

    \b
    sslbench run job.yaml
    sslbench run results/knn/w.torch-1f0c.json --out again
    """  # noqa: D301
    terminal.show_messages()
    contents = {file: written_requests(file) for file in files}
    every = [content for one in contents.values() for content in one]
    if all("method" in content for content in every):
        options.refuse(ctx, used={"trust_code", "dry_run"}, what="a request of pretraining")
    elif not any(content.get("tasks") for content in every):
        options.refuse(ctx, used={"trust_code", "dry_run", "store"}, what="a request of features")
    others: list[tuple[dict[str, Any], str]] = []
    requests: list[tuple[Request | FeaturesRequest, RunSettings, str]] = []
    with contextlib.ExitStack() as stack:
        # All evaluations are read before the first training, so that a mistake in the last one is told at once.
        for file, written in contents.items():
            # It lasts until the end: code is imported when the evaluation needs it, long after the file was read.
            stack.enter_context(code_of(str(file), trust_code=trust_code))
            for number, content in enumerate(written, 1):
                where = f"{file}: request {number}"
                if "method" in content or content.get("tasks", []) == []:
                    others.append((content, where))
                else:
                    requests.append(read_trusted(content, where, trust_code=trust_code))
        for content, where in others:
            if "method" in content:
                pretrain.run_written(content, where, dry_run=dry_run)
            elif dry_run:
                raise UsageError(f"{where} extracts features, which --dry-run does not print", "Leave it out.")
            else:
                extract.run_written(content, where, options.store_folder(store))
        with told_on_interrupt(KEPT), remote_folder.synchronised(out) as folder:
            place = options.store_folder(store)
            return _evaluate(requests, place, folder, str(ctx.obj), skip_existing=skip_existing, dry_run=dry_run)


def written_requests(file: Path) -> list[dict[str, Any]]:
    """Return the requests in a file, or that of a record, as they are written."""
    if file.suffix == ".json":
        return [request_of(read(file), file)]
    content = read_yaml(file)
    if isinstance(content.get("method"), dict):  # the config.yaml of a pretraining run is its request
        return [{"version": VERSION, "method": str(file)}]
    requests = content.get("requests", [content])
    if not requests or not isinstance(requests, list) or not all(isinstance(one, Mapping) for one in requests):
        raise UsageError(f"{file}: requests should be a list of requests")
    if "requests" in content and (others := [key for key in content if key != "requests"]):
        raise UsageError(f"{file}: '{others[0]}' has no effect beside requests", "Write it into each of them.")
    return [dict(one) for one in requests]


def request_of(record: Result, file: Path) -> dict[str, Any]:
    """Return the written request of a record."""
    if record.request is None:
        raise ResultError(
            f"{file} holds no request: it was made by {record.command}",
            "Run that again, and compare the two records with: sslbench compare",
        )
    return dict(record.request)


@contextlib.contextmanager
def code_of(file: str, *, trust_code: bool) -> Iterator[None]:
    """Refuse Python code of the user's own that a file of requests names, unless it is trusted."""
    with contextlib.nullcontext() if trust_code else names.requests_from_file(file):
        yield


def read_trusted(
    content: Mapping[str, Any], where: str, *, trust_code: bool
) -> tuple[Request | FeaturesRequest, RunSettings, str]:
    """Return a request, its run and its title, see `read_request`; refuse weights that may run code."""
    request, run, title = read_request(content, where)
    if isinstance(request, Request) and request.trust_pickle and not trust_code:
        raise UsageError(f"{where} has --trust-pickle: its weights may run any program", "--trust-code accepts it.")
    return request, run, title


def _evaluate(
    requests: Sequence[tuple[Request | FeaturesRequest, RunSettings, str]],
    store: Path,
    out: Path,
    command: str,
    *,
    skip_existing: bool,
    dry_run: bool,
) -> int | None:
    from sslbench.cli.commands.eval import work

    code = None
    # Requests with the same run share backbones and features in memory.
    for run in dict.fromkeys(run for _, run, _ in requests):
        entries = [(request, title) for request, own, title in requests if own == run]
        plan = work.plan_of(entries, run, store, out, skip_existing=skip_existing)
        if dry_run:
            work.dry_run(plan)
        else:
            # A later plan without holes does not hide the hole of an earlier one.
            code = work.run(plan, command) or code
    return code
