"""Interface of data formats: every module of `sslbench.data.formats` has one, `FORMAT`, and is found by its name.

A format reads samples (images with labels), and by the kind of their target boxes with masks, label maps, depth, pairs
of images or videos.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

from sslbench.data.source import Source
from sslbench.errors import UsageError
from sslbench.names import find_module, list_names
from sslbench.targets.target import Target

O = TypeVar("O")  # noqa: E741 - dataclass of a format's options

Column = Literal["image", "label", "attribute", "value"]


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of a format that has none."""


@dataclasses.dataclass(frozen=True)
class SampleRequest(Generic[O]):
    """Arguments for reading samples.

    Attributes:
        spec: the location, without options.
        options: the text behind the '?', parsed.
        image_column: column with the images or their paths; None: recognised by its name.
        label_column: column with the labels; None: recognised by its name.
        attribute_columns: columns (keys of a manifest's images) to keep as attributes.
        value_columns: columns of numbers to predict, in place of labels.
        together: all processes of a run read this location now, so the first one may do it for all.
        decoder: names of the user's decoders; files with their suffixes are images, too.
    """

    spec: str
    options: O
    image_column: str | None = None
    label_column: str | None = None
    attribute_columns: tuple[str, ...] = ()
    value_columns: tuple[str, ...] = ()
    together: bool = False
    decoder: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class SampleReader(Generic[O]):
    """Reader of images with labels.

    Attributes:
        recognises: cheap test of a location: its text, and a look at the disk.
        open: split -> source; called only with columns in `columns`.
        options: dataclass of the options behind a '?', each field a `config.setting`.
        columns: kinds of columns that a user may name.
        in_order_of_names: the images have no other order than that of their names, so a list can follow it.
    """

    recognises: Callable[[str], bool]
    open: Callable[[SampleRequest[O]], Mapping[str, Source]]
    options: type[O]
    columns: frozenset[Column] = frozenset()
    in_order_of_names: bool = False


@dataclasses.dataclass(frozen=True)
class LabelList:
    """Labels without their images.

    Attributes:
        target: the N labels.
        names: of the images, N paths or ids; None: the labels are in the order of the images.
        positions: of the labels among all images, without those that have none; None: 0 to N - 1.
        length: number of all images of an ordered list.
        notes: remarks, one sentence each.
    """

    target: Target
    names: Sequence[str] | None
    positions: Sequence[int] | None = None
    length: int = 0
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class LabelReader:
    """Reader of labels whose images lie elsewhere, for `?labels=PLACE`.

    Attributes:
        recognises: cheap test of a location.
        open: split -> labels; {"all": labels} if there are no splits.
        columns: kinds of columns that a user may name.
    """

    recognises: Callable[[str], bool]
    open: Callable[[SampleRequest[NoOptions]], Mapping[str, LabelList]]
    columns: frozenset[Column] = frozenset()


@dataclasses.dataclass(frozen=True)
class Reader(Generic[O]):
    """Reader of one kind of target.

    Attributes:
        recognises: cheap test of a location, given the text of the user's options.
        open: from a location and its options: split -> source.
        options: dataclass of the options behind a '?'.
        alone: test for a layout that holds nothing but such targets, so that its files are not read as images with
            classes.
        unresolved: test for a location that `open` resolves itself, options included: 'triplets:PLACE'.
    """

    recognises: Callable[[str, Mapping[str, str]], bool]
    open: Callable[[str, O], Mapping[str, Source]]
    options: type[O]
    alone: Callable[[str], bool] = lambda _: False
    unresolved: Callable[[str], bool] = lambda _: False


def plain_reader(
    recognises: Callable[[str], bool],
    read: Callable[[str], Mapping[str, Source]],
    alone: Callable[[str], bool] = lambda _: False,
) -> Reader[NoOptions]:
    """Return a reader of a layout without options."""
    return Reader(lambda spec, _: recognises(spec), lambda spec, _: read(spec), NoOptions, alone)


@dataclasses.dataclass(frozen=True)
class SourceFormat:
    """Kind of data location.

    Attributes:
        doc: docstring of its module; the first line is shown in lists of formats.
        samples: None: not readable as images with labels.
        readers: of other targets (boxes, label maps, depth, pairs, videos), by their kind.
        labels: None: its labels are read with their images only.
        last_resort: asked after all others, for a format whose test also accepts theirs.
    """

    doc: str
    samples: SampleReader[Any] | None = None
    readers: Mapping[type[Target], Reader[Any]] = dataclasses.field(default_factory=dict)
    labels: LabelReader | None = None
    last_resort: bool = False

    @property
    def title(self) -> str:
        """First line of the docstring."""
        return (self.doc or "").strip().partition("\n")[0]


def all_formats() -> list[SourceFormat]:
    """Return the built-in formats by name, those of last resort at the end."""
    formats = [builtin_format(name) for name in list_names("source")]
    # sorted is stable, so the others stay in the order of their names.
    return sorted(formats, key=lambda found: found.last_resort)


def builtin_format(name: str) -> SourceFormat:
    """Return the format in `sslbench/data/formats/NAME.py`.

    Raises:
        UsageError: there is no such file; the message names the nearest one.
    """
    found: SourceFormat = find_module("source", name).FORMAT
    return found


def user_format(name: str) -> SourceFormat:
    """Return the format of a module outside of the package.

    The module has a `FORMAT`; or, if it reads samples only, a function
    `open(rest, *, image_column, label_column) -> {split: Source}`.

    Args:
        name: its dotted name.

    Raises:
        UsageError: it cannot be imported, a file names it and the user does not, or it has neither.
    """
    module = find_module("source", name)
    content = vars(module)
    if isinstance(content.get("FORMAT"), SourceFormat):
        found: SourceFormat = content["FORMAT"]
        return found
    opener = content.get("open")
    if not callable(opener):
        raise UsageError(f"'{name}' ({module.__file__}) is not a data source: it has no function 'open'")

    def read(request: SampleRequest[NoOptions]) -> Mapping[str, Source]:
        sources: Mapping[str, Source] = opener(
            request.spec, image_column=request.image_column, label_column=request.label_column
        )
        return sources

    columns: frozenset[Column] = frozenset(("image", "label"))
    return SourceFormat(module.__doc__ or name, SampleReader(lambda _: True, read, NoOptions, columns))


def readable_formats() -> str:
    """Return the lines of an error's remedy that list every format of images."""
    lines = [found.title for found in all_formats() if found.samples is not None]
    return "Supported data:\n" + "\n".join(f"  {line}" for line in sorted(lines))
