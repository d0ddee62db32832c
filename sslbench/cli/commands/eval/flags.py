"""Options of `sslbench eval`, and the cases in which each has an effect."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import click

from sslbench import protocols
from sslbench.backbones.named import is_pixels
from sslbench.cli import options
from sslbench.cli.flags import flag, names_of, take
from sslbench.cli.words import split_words
from sslbench.errors import UsageError
from sslbench.names import list_names

TestClasses = Literal["same", "subset", "numbers"]
Backend = Literal["torchvision", "detectron2"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalOptions:
    """Options of the command line: those that several commands share, and a field for each other one."""

    benchmarks: tuple[str, ...] = flag(
        "Named benchmark (sslbench list benchmarks), or a YAML file.", "--benchmark", default=()
    )
    presets: tuple[str, ...] = flag(
        "Published settings of a protocol: dino, knn/dino (sslbench list presets).", "--preset", default=()
    )
    suite: str | None = flag("List of benchmarks (sslbench list suites); one that cannot run is reported as a hole.")
    weights: tuple[str, ...] = flag(options.WEIGHTS, "--weights", "-w", default=(), cls=options.Several)
    network: options.NetworkFlags
    data: options.DataFlags
    test_classes: TestClasses | None = flag(
        "Classes of test: train's; a subset (only these are predicted); numbers of train's sorted classes."
    )
    value_columns: str | None = flag("Columns of numbers to predict instead of classes: height, or x,y.", "--value-col")
    groups: tuple[str, ...] = flag(
        "Column of groups: each group is scored too, and the worst reported.", default=(), metavar="COLUMN"
    )
    noise: str | None = flag("Shares of wrong train labels, each a further result: 0.1,0.2,0.4.")
    features: str | None = flag(
        "Embeddings made elsewhere: .npy .npz .h5 .pt .parquet .csv; replaces --weights, --data."
    )
    labels: str | None = flag("Labels of --features: an array, or a table with a column 'label'; ?group=COLUMN.")
    test_features: str | None = flag("Embeddings of the test part.")
    test_labels: str | None = flag("Labels of --test-features.")
    preprocessing: options.PreprocessingFlags
    run: options.RunFlags
    max_memory: str | None = flag(
        "Memory of the search of neighbours and of svm: 8GB, 500MB; the same as max_memory=8."
    )
    tensorboard: bool = flag(
        "finetune, detection: write scalars for TensorBoard below --out; the same as tensorboard=true.", default=False
    )
    histograms: bool = flag(
        "finetune: write histograms of parameters and gradients (--tensorboard, --wandb).", default=False
    )
    wandb: str | None = flag("finetune, detection: Weights & Biases project to log to.", metavar="PROJECT")
    no_floors: bool = flag("Skip chance, pixels and the untrained backbone.", default=False)
    on_the_fly: bool = flag(
        "segmentation-knn: compute the features of patches when they are read, and store none.", default=False
    )
    no_estimate: bool = flag(
        "Skip the estimate of time, memory and disk, and its refusal of what does not fit. --dry-run prints it.",
        default=False,
    )
    skip_existing: bool = flag(
        "Do not compute again what has a record in --out; always so with several weights or --suite.", default=False
    )
    no_overlaps: bool = flag("Skip the search for test images that also occur in train.", default=False)
    limit_iters: int | None = flag(
        "detection: largest number of training iterations, to shorten a recipe.", within="[1, inf)"
    )
    baselines: tuple[str, ...] = flag(
        "detection: other weights to train the same detector from, for comparison; random: untrained.",
        "--baseline",
        default=(),
        metavar="random|WEIGHTS",
    )
    program: Backend | None = flag(
        "detection: library that trains the detector [default: torchvision]; d2.KEY=VALUE sets Detectron2's keys.",
        "--backend",
    )
    out: str = flag("Folder for the result records.", "--out", "-o", default="results", show_default=True)
    name: str | None = flag("Name of the weights in records and tables. Default: that of their file.")
    launcher: str | None = flag(
        "Launcher: local, or slurm: as jobs, several benchmarks or weights as an array (launcher.partition=...). "
        "Default: local."
    )
    dry_run: bool = flag("Print the plan, with the origin of every setting, and stop.", default=False)

    @classmethod
    def of(
        cls, ctx: click.Context, split: Callable[[Sequence[str]], tuple[list[str], dict[str, Any]]] = split_words
    ) -> tuple["EvalOptions", list[str], dict[str, Any]]:
        """Return the options of a parsed command, the protocols that it names, and its key=value, read by `split`."""
        names, settings = split(ctx.params["words"])
        chosen = take(cls, ctx.params | options.as_flags(ctx, settings))
        return chosen, protocol_names(chosen, names), settings

    def numbers(self) -> tuple[str, ...]:
        """Return the columns in --value-col."""
        return tuple(name.strip() for name in (self.value_columns or "").split(",") if name.strip())

    def noise_shares(self) -> tuple[float, ...]:
        """Return the shares in --noise."""
        try:
            return tuple(float(part) for part in (self.noise or "").split(",") if part.strip())
        except ValueError:
            raise UsageError(f"--noise {self.noise}: should be shares such as 0.1,0.2,0.4") from None

    def run_settings(self) -> dict[str, Any]:
        """Return the given options as fields of `RunSettings`."""
        if self.on_the_fly and self.run.store is not None:
            raise UsageError("--store has no effect with --on-the-fly, which stores no features", "Leave one out.")
        off = {name: False for name in ("floors", "overlaps", "estimate") if getattr(self, f"no_{name}")}
        return {**self.run.settings, **off, **({"on_the_fly": True} if self.on_the_fly else {})}

    def protocol_settings(self) -> dict[str, Any]:
        """Return the settings of protocols among the options that were given."""
        typed = {name: vars(self)[name] for name in _PROTOCOL_SETTINGS}
        # 0 equals False as well; none of these options takes it.
        return {name: _PROTOCOL_SETTINGS[name](value) for name, value in typed.items() if value not in (None, False)}


_PROTOCOL_SETTINGS: Mapping[str, Callable[[Any], Any]] = {
    "max_memory": options.gigabytes,
    "tensorboard": bool,
    "histograms": bool,
    "wandb": str,
    "limit_iters": int,
    "program": str,
}
"""Options that change a protocol setting of the same name -> conversion of the typed value.

They have an effect on the protocols with that setting.
"""

_OF_A_FILE = frozenset({"format", "allow_partial", "trust_pickle"})
"""Options about a file of weights."""
_ALWAYS = frozenset({"seed", "device", "no_floors", "out", "name"})
_NETWORK = _ALWAYS | {
    *("benchmarks", "suite", "weights", "backbone", "format", "allow_partial", "stem", "trust_pickle"),
    *("data", "test_data", "workers", "decoder", "max_pixels", "start_method", "launcher", "dry_run"),
}
ON_OBJECTS = _NETWORK | {"baselines", "skip_existing"}
"""Options with an effect on a protocol on objects."""
ON_IMAGES = _NETWORK | {
    *("presets", "layers", "image_column", "label_column", "limit", "test_classes", "value_columns", "groups"),
    *("resize", "crop", "interpolation", "mean", "std", "precision", "batch_size", "on_error", "noise", "no_estimate"),
    "skip_existing",
}
"""Options with an effect on a protocol on images."""
ON_FEATURES = (
    ON_IMAGES
    | {"no_overlaps", "on_the_fly"}
    | {
        name
        for flags in (options.NetworkFlags, options.DataFlags, options.PreprocessingFlags, options.RunFlags)
        for name in names_of(flags)
    }
)
"""Options with an effect on a protocol on features."""
EMBEDDINGS = _ALWAYS | {"presets", "features", "no_overlaps", "no_estimate", "launcher", "dry_run"}
"""Options with an effect on embeddings made elsewhere."""
LABELLED_EMBEDDINGS = EMBEDDINGS | {
    *("labels", "test_features", "test_labels", "label_column", "value_columns", "groups")
}
"""The same where the embeddings have labels."""

_REASONS = {
    "limit_iters": "Only detection has --limit-iters.",
    "baselines": "Only detection has --baseline.",
    "program": "Only detection has --backend.",
    **dict.fromkeys(("labels", "test_features", "test_labels"), "Use it together with --features."),
    **dict.fromkeys(("feature_dtype", "store", "on_the_fly"), "Protocols on images store no features."),
    "skip_existing": "It needs --weights and --data, and a protocol on images or their features.",
    "noise": "It needs --weights and --data, and a protocol that trains on labels.",
    "no_overlaps": "Protocols on images do not search for overlaps.",
    **dict.fromkeys(("tensorboard", "wandb"), "It logs the training of finetune and detection."),
    "histograms": "It logs the training of finetune.",
    "max_memory": "It limits the memory of the search of neighbours (knn, retrieval) and of svm.",
}
_OBJECT_REASONS = {
    **_REASONS,
    **dict.fromkeys(("labels", "test_features", "test_labels", "layers"), "Detection trains on images."),
    **dict.fromkeys(
        ("resize", "crop", "interpolation"), "Set the sizes with min_size_test=800, min_sizes_train=640,800."
    ),
    **dict.fromkeys(
        ("image_column", "label_column", "value_columns"), "Boxes are read from manifests and VOC trees only."
    ),
    **dict.fromkeys(("precision", "feature_dtype", "store"), "Detection stores no features and computes in fp32."),
    **dict.fromkeys(("mean", "std"), "Mean and std belong to the weights' format."),
    "batch_size": "Set the images per update with batch_size=16.",
    "groups": "Objects are not scored by groups of images.",
    "limit": "--limit-iters shortens the training.",
    "no_overlaps": "Detection does not search for overlaps.",
    "no_estimate": "Detection is not estimated.",
    "on_error": "Detection reads all images first and stops if one is unreadable.",
    "presets": "Published recipes are benchmarks: --benchmark detection/NAME.",
    "test_classes": "The classes of train and test are the categories of the manifests.",
}
"""Reasons where detectors alone are trained."""
_UNLABELLED = (
    "It needs --labels: an array of labels, or a table with a column 'label', one line per row of the features."
)
_EMBEDDING_REASONS = {
    **{
        name: f"--features and --{name} exclude each other: --features replaces the images and the network."
        for name in ("weights", "data", "backbone", "layers")
    },
    **dict.fromkeys(("labels", "test_features", "test_labels", "groups", "label_column", "value_columns"), _UNLABELLED),
    **dict.fromkeys(("store", "feature_dtype"), "Features are used unchanged."),
    "benchmarks": "A benchmark fixes the data; name the protocol, or a --preset.",
    "suite": "A suite fixes the data; name the protocols, or a --preset.",
}


def refuse_unused(ctx: click.Context, chosen: EvalOptions, names: Sequence[str]) -> None:
    """Refuse options that have no effect on the protocols."""
    found = [protocols.find(name) for name in names]
    # A flag such as --max-memory is a setting: the protocols that have it decide.
    of_protocols = {field.name for each in found for field in dataclasses.fields(each.settings)}
    settings = of_protocols & _PROTOCOL_SETTINGS.keys()
    if chosen.features is not None:
        used, what = (
            (LABELLED_EMBEDDINGS, "--features") if chosen.labels else (EMBEDDINGS, "--features without --labels")
        )
        options.refuse(ctx, used=used | settings, what=what, reasons={**_REASONS, **_EMBEDDING_REASONS})
        return
    of_kinds = (ON_OBJECTS if p.kind.on_objects else ON_IMAGES if p.kind.needs_images else ON_FEATURES for p in found)
    used = frozenset(settings).union(*of_kinds)
    reasons = _OBJECT_REASONS if all(each.kind.on_objects for each in found) else _REASONS
    options.refuse(ctx, used=used, what=" ".join(dict.fromkeys(names)), reasons=reasons)
    refuse_unused_of_weights(ctx, chosen)


def refuse_unused_of_weights(ctx: click.Context, chosen: EvalOptions) -> None:
    """Refuse options about a file of weights where there is none."""
    files = [word for word in (*chosen.weights, *chosen.baselines) if word != "random" and not is_pixels(word)]
    if chosen.weights and not files:
        used = {str(parameter.name) for parameter in ctx.command.params} - _OF_A_FILE
        options.refuse(ctx, used=used, what=f"--weights {chosen.weights[0]}", reasons=_REASONS)


def protocol_names(chosen: EvalOptions, words: Sequence[str]) -> list[str]:
    """Return the names of protocols among the words of a command as their files are spelt: low_shot is low-shot."""
    for word in words:
        if not ("/" in word or os.sep in word or (word not in list_names("protocol") and Path(word).exists())):
            continue
        what = "folder" if Path(word).is_dir() else "file" if Path(word).exists() else "path"
        raise UsageError(
            f"'{word}' is a {what}, not the name of a protocol",
            "Images follow --data or --test-data, weights --weights, and embeddings --features."
            if chosen.features is None
            else "--features and --labels take one file each, and a shell turns a pattern such as *.npz into several "
            "words. Score each file by a command of its own; sslbench leaderboard shows all results together.",
        )
    return [word if "." in word else word.replace("_", "-") for word in words]
