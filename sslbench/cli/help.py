"""Commands whose help shows the flags in groups."""

import textwrap
from collections.abc import Collection

import click

from sslbench.errors import UsageError

# click wraps help by the standard library, which would break --batch-size at its hyphen.
textwrap.TextWrapper.wordsep_re = textwrap.TextWrapper.wordsep_simple_re

GROUPS = {
    "Data": (
        *("data", "test_data", "image_column", "label_column", "value_columns", "limit", "test_classes", "groups"),
        *("noise", "eval_data", "eval_test_data", "test_fraction"),
    ),
    "Weights": (
        *("weights", "backbone", "backbone_b", "format", "format_b", "allow_partial", "stem", "trust_pickle", "layers"),
        *("layers_b", "init", "init_format"),
    ),
    "Preprocessing": ("resize", "crop", "interpolation", "scales", "mean", "std"),
    "Embeddings made elsewhere": ("features", "labels", "test_features", "test_labels", "features_path", "labels_path"),
    "Protocol": (
        *(
            "benchmarks",
            "presets",
            "suite",
            "max_memory",
            "no_floors",
            "no_overlaps",
            "no_estimate",
            "skip_existing",
            "on_the_fly",
        ),
        *("classes_path", "probe", "maps", "top_k", "threshold", "k", "iterations", "measure", "debiased"),
    ),
    "Checks": ("boxes", "label_maps", "pixel_values", "decode", "copies", "near_copies", "near_threshold"),
    "Training": (
        *("resume", "resume_from", "epochs", "tensorboard", "histograms", "histograms_every", "wandb"),
        *("observer", "profile"),
    ),
    "Detection": ("limit_iters", "baselines", "program"),
    "Table": ("form", "published", "average", "columns", "metric"),
    "Pictures": ("points", "views", "foreground", "projection"),
    "Output": (
        *("out", "name", "output", "store", "csv_path", "png_path", "html_path", "markdown_path", "latex_path"),
        *("model_card", "timm_csv", "mteb", "label_errors"),
        *(
            "curves",
            "layers_path",
            "pairs",
            "csv",
            "sheet",
            "html",
            "as_json",
            "force",
            "dry_run",
            "quiet",
            "verbose",
            "help",
        ),
    ),
    "Machine": (
        *("device", "precision", "feature_dtype", "batch_size", "workers", "seed", "on_error", "decoder"),
        *("max_pixels", "start_method", "launcher"),
    ),
}
"""Title of a group -> parameters of any command, by their Python names."""


class GroupedCommand(click.Command):
    """Command with its flags in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a section per group."""
        rest = {p.name: p.get_help_record(ctx) for p in self.get_params(ctx) if isinstance(p, click.Option)}
        for title, names in GROUPS.items():
            rows = [row for name in names if (row := rest.pop(name, None)) is not None]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def hide(command: click.Command, names: Collection[str]) -> None:
    """Leave shared flags out of the help of a command that refuses them, with the reason, when they are typed."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name in names:
            parameter.hidden = True


class SettingsCommand(GroupedCommand):
    """Command with settings, whose help depends on the names that are typed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words for the help; tell how a setting is written that is typed as a flag."""
        # Before the parsing, which --help ends.
        ctx.meta["words"] = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            # No flag has a dot, so this was meant as a setting.
            if "." not in error.option_name:
                raise
            key = error.option_name.lstrip("-")
            raise UsageError(
                f"there is no flag {error.option_name}", f"A setting is written as {key}=VALUE."
            ) from error
