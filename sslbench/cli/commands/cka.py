"""`sslbench cka`."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import click

from sslbench import evaluation
from sslbench.cli import early, options, terminal
from sslbench.cli.echo import note
from sslbench.cli.flags import argument_options, flag, same, take_flags
from sslbench.cli.help import GroupedCommand
from sslbench.cli.tables import print_table
from sslbench.errors import UsageError
from sslbench.evaluation.request import Request
from sslbench.evaluation.settings import RunSettings
from sslbench.runtime.folders import refuse_output_file


@click.command("cka", cls=GroupedCommand)
@click.argument("a")
@click.argument("b")
@argument_options
@take_flags(data=options.DataFlags, preprocessing=options.PreprocessingFlags, run=options.RunFlags)
@options.message_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    a: str,
    b: str,
    data: options.DataFlags,
    preprocessing: options.PreprocessingFlags,
    run: options.RunFlags,
    backbone: str | None = flag(
        "Architecture of A, and of B unless --backbone-b is given. Default: read from the file."
    ),
    backbone_b: str | None = flag("Architecture of B."),
    format: str | None = flag("Format of A (sslbench list formats). Default: recognised."),
    format_b: str | None = flag("Format of B. Default: recognised."),
    layers: str | None = flag("Layers of A and B, e.g. res2,res3:avg(4,4),res5. Default: all named layers."),
    layers_b: str | None = flag("Layers of B. Default: --layers."),
    measure: Literal["cka", "mutual-knn", "svcca", "procrustes"] = flag(
        "Linear CKA, common nearest neighbours, mean canonical correlation, or cosine after the best rotation.",
        default="cka",
        show_default=True,
    ),
    debiased: bool = flag("Use the unbiased estimator of CKA, for fewer images than features.", default=False),
    csv_path: Path | None = flag("CSV file to write the matrix to.", "--csv"),
    png_path: Path | None = flag("PNG file to draw the matrix in.", "--png"),
    trust_pickle: bool = same(options.NetworkFlags, "trust_pickle"),
) -> None:
    """Compare the layers of two networks by linear CKA (Kornblith et al. 2019), or another measure, on the same images.

    A and B are weights files ('random' with --backbone is an untrained network), or features of the same samples: .npy
    files or folders of the feature store. 1 means equal up to rotation and scale.

    \b
    sslbench cka moco.pth simclr.pth --data photos/ --limit 2000 --png cka.png
    sslbench cka dino.pth random --backbone timm:vit_small_patch16_224 --layers blocks.0,blocks.11
    sslbench cka embeddings_a.npy embeddings_b.npy --debiased
    sslbench cka moco.pth simclr.pth --data photos/ --measure mutual-knn
    """  # noqa: D301
    terminal.show_messages()
    sides = (a, backbone, format, layers), (b, backbone_b or backbone, format_b, layers_b or layers)
    networks = [
        options.WeightsFlags(weights=w, backbone=b, format=f, layers=names, trust_pickle=trust_pickle)
        for w, b, f, names in sides
    ]
    if debiased and measure != "cka":
        raise UsageError(f"--debiased applies to CKA, not to --measure {measure}", "Leave --debiased out.")
    for path in (csv_path, png_path):
        if path is not None:
            refuse_output_file(path)
    stored = [side.endswith(".npy") or (Path(side) / "meta.json").is_file() for side in (a, b)]
    if any(stored) and not all(stored):
        raise UsageError("A and B must both be weights or both be features", "Features: .npy files or store folders.")
    if all(stored):
        used = ("layers", "layers_b", "measure", "debiased", "csv_path", "png_path")
        options.refuse(ctx, used=used, what="features, which are already computed")
        files = [side for side in (a, b) if not Path(side).is_dir()]
        if (layers or layers_b) and len(files) == len(networks):
            raise UsageError("--layers names layers of networks or of stored features", "A .npy file is one layer.")
        early.refuse_missing_files(*files)
    else:
        requests, settings = _requests(networks, data, preprocessing, run)

    from sslbench.evaluation import similarity

    if all(stored):
        features = [similarity.read(Path(str(each.weights)), each.layer_names()) for each in networks]
    else:
        store = run.store_folder()
        evaluation.check_writable(store)
        with terminal.progress() as progress:
            features = similarity.encode(requests, settings, store=store, progress=progress)
    found = similarity.similarity(*features, measure="cka-debiased" if debiased else measure)
    corner = f"{found.names[0]} \\ {found.names[1]}"
    rows = [
        [name, *("n/a" if value != value else f"{value:.3f}" for value in row)]
        for name, row in zip(found.rows, found.values, strict=True)
    ]
    print_table([corner, *found.columns], rows, names=[corner])
    note(f"{found.title}, {found.n} images")
    for path, write in ((csv_path, similarity.write_csv), (png_path, similarity.write_heatmap)):
        if path is not None:
            write(found, path)
            note(f"written: {path.resolve()}")


def _requests(
    networks: Sequence[options.WeightsFlags],
    data: options.DataFlags,
    preprocessing: options.PreprocessingFlags,
    run: options.RunFlags,
) -> tuple[list[Request], RunSettings]:
    """Return the requests of both networks on the same images; refuse flags that do not go together."""
    if data.data and data.test_data:
        raise UsageError(
            "--data and --test-data exclude each other", "Both networks encode the same images; give one set."
        )
    for name, each in zip(("--format", "--format-b"), networks, strict=True):
        if each.format and each.weights == "random":
            raise UsageError(f"{name} applies to a weights file, which '{each.weights}' is not")
    for each in networks:
        settings = early.checked_run(options.EncodingFlags(each, data, preprocessing, run))
    images = data.test_data or data.data or options.default_data()
    given = dataclasses.replace(data, data=images, test_data=None)
    requests = [early.request_of(options.EncodingFlags(each, given, preprocessing, run)) for each in networks]
    return requests, settings
