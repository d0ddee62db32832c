"""`sslbench cka`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sslbench.cli import options
from sslbench.cli.echo import echo
from sslbench.text import table_cell

if TYPE_CHECKING:
    from sslbench.evaluation.similarity import LayerFeatures, LayerSimilarity


@click.command("cka")
@click.argument("a")
@click.argument("b")
@click.option("--backbone", help="Of A, and of B too unless --backbone-b is given.")
@click.option("--backbone-b", help="Of B.")
@click.option("--format", help="Whose key names A has; recognised when left out.")
@click.option("--format-b", help="The same for B.")
@click.option("--layers", help="Layers of both, e.g. res2,res3:avg(4,4),res5. Default: all that have a name.")
@click.option("--layers-b", help="Layers of B, where they are others.")
@click.option("--debiased", is_flag=True, help="With the unbiased estimator; for fewer images than features.")
@click.option("--csv", "csv_path", help="Write the matrix as CSV.")
@click.option("--png", "png_path", help="Draw it as a heat map.")
@options.data_flags
@options.preprocessing_flags
@options.run_flags
@options.trust_pickle
def command(a: str, b: str, **given: Any) -> None:
    """Compare the layers of two networks by linear CKA (Kornblith et al. 2019) on the same images.

    A and B are weights files ('random' with --backbone is an untrained network), or features of the same samples: .npy
    files or folders of the feature store. 1 is the same up to rotation and scale.

    \b
    sslbench cka moco.pth simclr.pth --data photos/ --limit 2000 --png cka.png
    sslbench cka dino.pth random --backbone timm:vit_small_patch16_224 --layers blocks.0,blocks.5,blocks.11
    sslbench cka embeddings_a.npy embeddings_b.npy --debiased
    """  # noqa: D301
    from sslbench.cli import terminal
    from sslbench.errors import UsageError
    from sslbench.evaluation import similarity

    terminal.show_messages()
    stored = [_is_features(Path(side)) for side in (a, b)]
    if any(stored) and not all(stored):
        raise UsageError("A and B should both be weights or both be features", "Features: .npy files or store folders.")
    sides = _stored_sides(a, b, given) if all(stored) else _encoded_sides(a, b, given)
    found = similarity.similarity(*sides, debiased=given["debiased"])
    _print(found)
    for path, write in (
        (given["csv_path"], similarity.write_csv),
        (given["png_path"], similarity.write_heatmap),
    ):
        if path:
            write(found, Path(path))
            echo(f"written: {Path(path).resolve()}", err=True)


def _is_features(path: Path) -> bool:
    return path.suffix == ".npy" or (path / "meta.json").is_file()


def _layers(text: str | None) -> tuple[str, ...]:
    from sslbench.backbones.layers import split_layers

    return tuple(split_layers(text)) if text else ()


def _stored_sides(a: str, b: str, given: dict[str, Any]) -> tuple["LayerFeatures", "LayerFeatures"]:
    from sslbench.evaluation.similarity import read

    layers = _layers(given["layers"]), _layers(given["layers_b"] or given["layers"])
    return read(Path(a), layers[0]), read(Path(b), layers[1])


def _encoded_sides(a: str, b: str, given: dict[str, Any]) -> tuple["LayerFeatures", "LayerFeatures"]:
    from sslbench import evaluation
    from sslbench.cli import terminal
    from sslbench.cli.words import compose_run
    from sslbench.config import resolve
    from sslbench.evaluation.similarity import encode

    run, _ = resolve(evaluation.RunSettings, compose_run({}, options.given(given, options.RUN_KEYS)))
    common = {key: given[key] for key in ("image_column", "label_column", "limit", "trust_pickle")}
    # Only one part is looked at: the test part, where it is given by itself.
    common |= {
        "data": given["test_data"] or given["data"] or options.default_data(),
        "preprocessing": options.preprocessing_values(given),
    }
    requests = [
        evaluation.Request(
            **common, weights=weights, tasks=(), backbone=backbone, format=format_, layers=_layers(layers)
        )
        for weights, backbone, format_, layers in (
            (a, given["backbone"], given["format"], given["layers"]),
            (b, given["backbone_b"] or given["backbone"], given["format_b"], given["layers_b"] or given["layers"]),
        )
    ]
    store = options.store_folder(given["store"])
    evaluation.check_writable(store)
    with terminal.progress() as progress:
        first, source = encode(requests[0], run, store=store, progress=progress)
        second, _ = encode(requests[1], run, store=store, progress=progress, source=source)
    return first, second


def _print(found: "LayerSimilarity") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=None)
    table.add_column(table_cell(f"{found.names[0]} \\ {found.names[1]}"))
    for column in found.columns:
        table.add_column(table_cell(column), justify="right")
    for name, row in zip(found.rows, found.values, strict=True):
        table.add_row(table_cell(name), *("n/a" if value != value else f"{value:.3f}" for value in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=max(120, 14 * (len(found.columns) + 2)))
    console.print(table)
    echo(f"linear CKA{', debiased' if found.debiased else ''}, {found.n} images", err=True)
