"""Commands whose help shows the flags in groups, and other ways to type flags and settings."""

import textwrap
from collections.abc import Collection, Sequence

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
        *("classes_path", "top_k", "threshold", "k", "iterations", "debiased"),
    ),
    "Checks": ("boxes", "label_maps", "pixel_values", "decode", "copies", "near_copies", "near_threshold"),
    "Training": (
        *("resume", "resume_from", "epochs", "tensorboard", "histograms", "wandb"),
        *("observer", "profile"),
    ),
    "Detection": ("limit_iters", "baselines", "program"),
    "Table": ("form", "published", "average", "columns", "metric"),
    "Pictures": ("points", "views", "foreground", "projection"),
    "Output": (
        *("out", "name", "output", "store", "csv_path", "png_path", "html_path", "markdown_path", "latex_path"),
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
    """Command with settings: `--knn.k 20` is `knn.k=20`, and `data=photos/` is `--data photos/`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments in the usual forms."""
        return super().parse_args(ctx, usual_forms(self, args))


AS_WORDS = ("data", "test_data", "weights", "out")
"""Flags that commands with settings also take as key=value."""


def usual_forms(command: click.Command, args: Sequence[str]) -> list[str]:
    """Return arguments with settings as key=value and flags as --flag=value.

    Example:
        >>> usual_forms(SettingsCommand("eval"), ["knn", "--knn.k", "20"])
        ['knn', 'knn.k=20']

    Raises:
        UsageError: a setting without a value, or a flag that is typed in both forms.
    """
    options = [p for p in command.params if isinstance(p, click.Option)]
    flags = {str(p.name): p.opts for p in options if p.name in AS_WORDS}
    with_value = {flag for p in options if not p.is_flag for flag in p.opts}
    found: list[str] = []
    from_words: dict[str, str] = {}
    words = iter(args)
    for word in words:
        key, equals, value = word.partition("=")
        if word in with_value:
            found += [word, *([after] if (after := next(words, None)) is not None else [])]
        elif key.startswith("--") and "." in key:
            value = value if equals else next(words, "--")
            if value.startswith("--"):
                raise UsageError(f"{key} needs a value", f"Type {key} VALUE, or {key[2:]}=VALUE.")
            found.append(f"{key[2:]}={value}")
        elif equals and key in flags:
            if key in from_words:
                raise UsageError(f"the key '{key}' is given twice")
            from_words[key] = word
            found.append(f"{flags[key][0]}={value}")
        else:
            found.append(word)
    for key, word in from_words.items():
        twin = next((each for each in args if each.partition("=")[0] in flags[key]), None)
        if twin is not None:
            raise UsageError(f"{word} and {twin} are the same flag", "Leave one out.")
    return found
