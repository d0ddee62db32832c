"""Opening of data locations: images with labels, with objects (boxes and masks), or with label maps.

Boxes are x1, y1, x2, y2 in pixels of the upright image (EXIF orientation applied, as decoding does); the first pixel
reaches from 0 to 1, so the box of a whole image is 0, 0, width, height. Label maps are read as they are stored: never
through a palette or as a picture, never turned. They belong to the upright image, too.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from sslbench import config
from sslbench.data import changed, clips, remote, strings, tiles
from sslbench.data.containers.exports import NOT_READ, export_in, is_manifest, refuse_export, some_files
from sslbench.data.containers.sniff import is_clutter
from sslbench.data.decode.sampling import ClipOptions
from sslbench.data.format import (
    Column,
    LabelList,
    NoOptions,
    O,
    SampleReader,
    SampleRequest,
    all_formats,
    builtin_format,
    readable_formats,
    user_format,
)
from sslbench.data.location import OF_ANY_IMAGES, PATTERN, SCHEME, Location, TileOptions, locate
from sslbench.data.maps.layout import FOLDER, by_folder
from sslbench.data.objects import ObjectSource
from sslbench.data.regular import reading, refuse_missing
from sslbench.data.separate_labels import with_labels
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean, list_names
from sslbench.targets.label_maps import LabelMaps
from sslbench.targets.objects import Boxes
from sslbench.targets.target import Target


@reading()
def open_data(
    spec: str,
    *,
    image_column: str | None = None,
    label_column: str | None = None,
    attribute_columns: Sequence[str] = (),
    value_columns: Sequence[str] = (),
    together: bool = False,
    decoder: Sequence[str] = (),
) -> dict[str, Source]:
    """Open images with labels; the format is recognised from the string and the files.

    Args:
        spec: a folder, a file, files ('train-{0000..0099}.tar'), 'torchvision:CIFAR10', 'sklearn:digits', a name of the
            catalog, or 'my_pkg.my_source:REST' for a module of the user's (see `sslbench.data.format.user_format`).
            Behind a '?' options of the format: 'photos.kwcoco.json?unit=annotation&margin=0.1'; of any images
            'photos/?unit=tile&size=224&overlap=32' (`sslbench.data.tiles`), 'photos/?channels=1|2|3'
            (`sslbench.data.changed`), 'photos/?labels=labels.csv' (`sslbench.data.separate_labels`).
        image_column: of a table, the column with the paths.
        label_column: of a table, the column with the labels.
        attribute_columns: of a table or a manifest, further columns (keys of its images) to keep as attributes.
        value_columns: of a table, columns of numbers to predict, in place of a label column.
        together: all processes of a run call this now: the first one lists the files of an image folder.
        decoder: names of the user's decoders, whose suffixes are those of images in a folder, too.

    Returns:
        Split name ('train', 'val', 'test' or the data's own) -> source; {"all": source} if there are no splits.

    Raises:
        UsageError: the location does not exist (with the nearest existing name), or its format is not known.
        DataError: the format is known but the data are damaged or inconsistent.

    >>> digits = open_data("sklearn:digits")["all"]
    >>> len(digits), digits.target.name, digits.target.classes[:3]
    (1797, 'single', ('0', '1', '2'))
    """
    location = locate(spec)
    text = location.text
    match = SCHEME.fullmatch(text)
    if match and (strings.is_several(text) or not Path(text).exists()):
        reader, text = _reader_of_scheme(text, match["scheme"], match["rest"])
    else:
        text = f"./{text}" if match else text  # a folder may be called 'sklearn:digits'
        reader = _reader_of_path(text)
    # Options of any images come first, the rest belongs to the format.
    of_tiles, options = tiles.split_options(location.text, location.options)
    own = {field.name for field in dataclasses.fields(reader.options)}
    of_clips, options = clips.split_options(options, frozenset(own - {"unit"}))
    # Formats that know names of channels (red|nir) have this option themselves; numbers are read here.
    take, options = changed.split_option(location.text, options, named="channels" in own)
    labels_at = options.pop("labels", None)
    label_column = label_column or location.label_column
    request = SampleRequest(
        text,
        _parsed_options(location.text, reader, options),
        image_column or location.image_column,
        label_column if labels_at is None else None,
        tuple(attribute_columns),
        tuple(value_columns) if labels_at is None else (),
        together,
        tuple(decoder),
    )
    _refuse_columns(location.text, request, reader.columns)
    sources = dict(reader.open(request))
    if not sources:
        raise DataError(f"'{location.text}' holds no data")
    if labels_at is not None:
        labels = _open_labels(labels_at, label_column, tuple(value_columns))
        sources = with_labels(labels_at, labels, sources, in_order_of_names=reader.in_order_of_names)
    if of_clips or any(map(clips.are_videos, sources.values())):
        if of_tiles is not None or take:
            raise UsageError(
                f"'{location.text}' has videos, which have neither tiles nor chosen channels",
                "Leave out unit=tile and channels=.",
            )
        return _clips(location.text, sources, of_clips)
    sources = {split: changed.with_channels(found, take) for split, found in sources.items()} if take else sources
    return sources if of_tiles is None else {split: tiles.tiles_of(found, of_tiles) for split, found in sources.items()}


def open_objects(spec: str) -> dict[str, ObjectSource]:
    """Open images with objects; the format is recognised from the string and the files.

    Args:
        spec: a COCO, LVIS or kwcoco manifest (`instances_train.json`, `photos.kwcoco.json`), a folder of these, a
            Pascal VOC tree (`VOCdevkit/VOC2007`), several of them (`VOC2007+VOC2012`), folders of images and XML, YOLO
            (a folder or data.yaml), a table of boxes (.csv), several sources, or toy images by kwcoco
            (`kwcoco:shapes8`). Behind a manifest or table, `?images=FOLDER` names the folder of its images, and
            `?group=patient` a key of its images, or a column: a seeded split keeps equal values on one side.

    Returns:
        Split name -> source; {"all": source} if there are no splits.

    Raises:
        UsageError: the location does not exist, or its format has no objects.
        DataError: it is damaged, or an object cannot be used; the message names file and annotation.

    >>> toys = open_objects("kwcoco:shapes8-32")["all"]  # drawn once, kept in the cache folder
    >>> len(toys), toys.target.objects[0].boxes.shape[1]
    (8, 4)
    """
    return {split: ObjectSource.of(source) for split, source in open_as(spec, Boxes).items()}


def _refuse_export_in(spec: str, problem: str, sources: Mapping[str, Source]) -> None:
    """Refuse an archive, and a folder whose annotations are an export of another tool or a manifest."""
    if spec.lower().endswith((".zip", *remote.SHARDS)):
        notes = [note for source in sources.values() for note in source.notes if NOT_READ in note]
        if notes:
            raise UsageError(f"{problem}. {notes[0]}")
        raise UsageError(f"{problem}: annotations are not read in archives", "Unpack it, and give the folder.")
    folder = Path(spec)
    found = export_in(folder) if folder.is_dir() else None
    if found is not None:
        file, export = found
        raise UsageError(f"{problem}: {file} is {export.title}, which sslbench does not read", export.remedy)
    if folder.is_dir() and (manifest := next(filter(is_manifest, some_files(folder)), None)) is not None:
        raise UsageError(problem, f"{manifest} is a COCO manifest: give that file.")


@reading()
def has_objects(spec: str) -> bool:
    """Return whether a location is of a kind that has boxes."""
    text = locate(spec).text
    return any(found.readers[Boxes].recognises(text, {}) for found in all_formats() if Boxes in found.readers)


def _content_of(path: Path) -> str:
    """Return the files and folders directly in a folder and in its folders, in words; '' for anything else."""
    if not path.is_dir():
        return ""
    here = _kinds(path)
    below = sorted(entry.name for entry in path.iterdir() if entry.is_dir() and not is_clutter(entry.name))
    lines = ([f"in it: {here}"] if here else []) + [
        f"{name}/: {_kinds(path / name) or 'no file'}" for name in below[:4]
    ]
    more = [f"{len(below) - 4:,} more folders"] if len(below) > 4 else []
    return f" ({'; '.join([*lines, *more])})"


def _kinds(folder: Path) -> str:
    files = (path for path in folder.iterdir() if not path.is_dir() and not is_clutter(path.name))
    suffixes = Counter(path.suffix.lower() or "no suffix" for path in files)
    return ", ".join(f"{n:,} {suffix}" for suffix, n in suffixes.most_common(3))


@reading()
def open_as(spec: str, *kinds: type[Target]) -> dict[str, Source]:
    """Open images with targets that are not labels: boxes, label maps, depth, pairs, videos; the format is recognised.

    Args:
        spec: a place of a format that has a reader of such targets. Behind a '?' may stand options of the reader:
            `ignore=0,void&classes=names.txt` of label maps, `depth_scale=1000` of depth, `images=photos&maps=gt`
            (folders of other names), `group=folder` (images of a folder stay together in splits and intervals).
            'my_pkg.my_format:REST' names the module of the user's that reads them.
        kinds: kinds of target that will do.

    Returns:
        Split name -> source; {"all": source} if there are no splits. Images without a target are left out, with a note.

    Raises:
        UsageError: the location does not exist, no format reads such targets there, or an option is not known.
        DataError: it is damaged; the message names the file.

    >>> from sslbench.targets.label_maps import LabelMaps
    >>> open_as("textures:images", LabelMaps)["test"].target.name
    'map'
    """
    formats = all_formats()
    readers = [found.readers[kind] for found in formats for kind in kinds if kind in found.readers]
    location = Location(spec, {}) if any(reader.unresolved(spec) for reader in readers) else locate(spec)
    text, options = location.text, location.options
    # A folder may be called like a module; what exists on the disk has precedence.
    match = SCHEME.fullmatch(text)
    users = match is not None and "." in match["scheme"] and not Path(text).exists()
    if match and users:
        formats, text = [user_format(match["scheme"])], match["rest"]
    else:
        refuse_export(text)
    able = [found for found in formats if any(kind in found.readers for kind in kinds)]
    readers = [found.readers[kind] for found in able for kind in kinds if kind in found.readers]
    reader = next((reader for reader in readers if users or reader.recognises(text, options)), None)
    if reader is not None:
        given = _build_options(reader.options, options, location.text)
        sources = dict(reader.open(text, given))
        by = getattr(given, "group", None)
        by_folders = by == FOLDER and not any(source.grouped_by for source in sources.values())
        return {split: by_folder(found) for split, found in sources.items()} if by_folders else sources
    # A mistyped option is told before a place without such targets; one that another layout takes is not mistyped.
    known = {field.name for reader in readers for field in dataclasses.fields(reader.options)}
    if unknown := next((key for key in options if key not in known), None):
        problem = f"the options of {location.text}: unknown key '{unknown}'"
        raise UsageError(problem, did_you_mean(unknown, known))
    images = open_data(location.text)  # raises if the location does not exist or is damaged
    content = _content_of(Path(location.text))
    problem = f"no {' or '.join(map(_content, kinds))} were found in {location.text}{content}"
    _refuse_export_in(location.text, problem, images)
    raise UsageError(problem, "Looked for:\n" + "\n".join(f"  {found.title}" for found in able))


def _content(kind: type[Target]) -> str:
    return f"images with {kind.title}" if kind.of_pixels else kind.title


@reading()
def kind_alone(spec: str) -> type[Target] | None:
    """Return the kind of target of a location whose layout holds nothing but these, such as images/ beside masks/.

    Pascal VOC trees and manifests with masks have other uses: their boxes and classes.
    """
    location = locate(spec)
    # Only maps are named by that option, whatever else lies there.
    if "maps" in location.options:
        return LabelMaps
    readers = (item for found in all_formats() for item in found.readers.items())
    return next((kind for kind, reader in readers if reader.alone(location.text)), None)


def refuse_targets_of_pixels(spec: str) -> None:
    """Refuse a location whose layout holds label maps, depth or the like where images with classes are expected.

    Maps would be read as images.
    """
    if (kind := kind_alone(spec)) is not None:
        raise UsageError(
            f"{spec} holds {_content(kind)}, not classes of whole images",
            f"`sslbench check-data {spec}` checks them. To use the images alone, give their folder.",
        )


def _refuse_columns(spec: str, request: SampleRequest[Any], understood: frozenset[Column]) -> None:
    if request.value_columns and "value" not in understood:
        raise UsageError(
            f"'{spec}' has no column '{request.value_columns[0]}': it is not a table",
            "List the images in a .csv with the column path and one column per number.",
        )
    if request.attribute_columns and "attribute" not in understood:
        raise UsageError(
            f"'{spec}' has no column '{request.attribute_columns[0]}': it is neither a table nor a manifest",
            "List the images in a .csv with the columns path, label and this one.",
        )
    named: list[tuple[Column, str | None]] = [("image", request.image_column), ("label", request.label_column)]
    for column, name in named:
        if name is not None and column not in understood:
            raise UsageError(f"{request.spec} has no column '{name}': only tables have columns")


def _open_labels(place: str, label_column: str | None, value_columns: tuple[str, ...]) -> Mapping[str, LabelList]:
    """Return the labels of a list without images, else those of any data with labels."""
    location = locate(place)
    readers = (found.labels for found in all_formats() if found.labels is not None)
    reader = next((reader for reader in readers if not location.options and reader.recognises(location.text)), None)
    if reader is None:
        sources = open_data(place, label_column=label_column, value_columns=value_columns)
        return {split: LabelList(source.target, source.ids, notes=source.notes) for split, source in sources.items()}
    refuse_missing(location.text)
    request = SampleRequest(
        location.text, NoOptions(), None, label_column or location.label_column, value_columns=value_columns
    )
    _refuse_columns(place, request, reader.columns)
    return reader.open(request)


def _clips(spec: str, sources: Mapping[str, Source], given: dict[str, str]) -> dict[str, Source]:
    """Return the clips of the videos of all splits."""
    if images := [source.name for source in sources.values() if not clips.are_videos(source)]:
        key, text = next(iter(given.items()), ("unit", "clip"))
        raise UsageError(f"{images[0]} has no videos, and '?{key}={text}' is an option of videos", "Leave it out.")
    options = _build_options(ClipOptions, given, spec)
    return {split: clips.clips_of(source, options) for split, source in sources.items()}


def _parsed_options(spec: str, reader: SampleReader[Any], given: dict[str, str]) -> Any:
    """Return the text behind a '?' as the reader's dataclass of options."""
    example = "Large images can be cut into tiles: ?unit=tile&size=224&overlap=32; of videos, ?frames=16&stride=4."
    own, of_tiles = ({f.name for f in dataclasses.fields(kind)} for kind in (reader.options, TileOptions))
    of_clips = {f.name for f in dataclasses.fields(ClipOptions)}
    units = {"tile", *get_args(get_type_hints(reader.options).get("unit"))}
    for key, text in given.items():
        if key in own | of_tiles and (key != "unit" or text in units):
            continue
        hint = (
            did_you_mean(text, units) if key == "unit" else did_you_mean(key, own | of_tiles | of_clips | OF_ANY_IMAGES)
        )
        if own:
            problem = f"unit: '{text}' is not possible" if key == "unit" else f"unknown key '{key}'"
            raise UsageError(f"the options of {spec}: {problem}", hint)
        raise UsageError(
            f"'{spec}' takes no options but those of any images, and '?{key}={text}' was given",
            f"{hint} {example}",
        )
    if left := given.keys() & of_tiles - own:
        raise UsageError(f"'{spec}': '{min(left)}' is an option of tiles, and images stay whole here", example)
    return _build_options(reader.options, given, spec)


def _build_options(options: type[O], given: Mapping[str, str], spec: str) -> O:
    """Return options from their text: numbers, true and false are read as YAML does, except for settings of text."""
    if given and not dataclasses.fields(options):  # type: ignore[arg-type]
        raise UsageError(f"'{spec}' takes no option, and '?{next(iter(given))}=' was given")
    plain = re.compile(r"-?[\d.]+(e-?\d+)?|true|false")  # only these words of YAML; 'no' stays text here
    hints = get_type_hints(options)
    textual = {key for key, hint in hints.items() if str in (hint, *get_args(hint))}
    values = {
        key: yaml.safe_load(text) if plain.fullmatch(text) and key not in textual else text
        for key, text in given.items()
    }
    return config.build(options, values, f"the options of {spec}")


def _reader_of_path(spec: str) -> SampleReader[Any]:
    if not PATTERN.search(spec) and not remote.is_copy(Path(spec)):  # copied when it is read
        refuse_missing(spec)
    reader = _recognised_by(spec)
    refuse_export(spec, unknown=reader is None)
    if reader is None:
        refuse_missing(spec)
        raise UsageError(f"'{spec}' is not a kind of data that sslbench reads", readable_formats())
    return reader


def _recognised_by(spec: str) -> SampleReader[Any] | None:
    readers = (found.samples for found in all_formats() if found.samples is not None)
    return next((reader for reader in readers if reader.recognises(spec)), None)


def _reader_of_scheme(spec: str, scheme: str, rest: str) -> tuple[SampleReader[Any], str]:
    """Return the built-in reader of `scheme:rest` and the whole text, or the user's reader and the rest."""
    readers = {name: builtin_format(name).samples for name in list_names("source")}
    schemes = {name: reader for name, reader in readers.items() if reader and reader.recognises(f"{name}:")}
    if scheme in schemes:
        return schemes[scheme], spec
    if rest.startswith("//"):
        raise UsageError(f"{spec} is not the URL of a file", readable_formats())
    if "." in scheme:
        users = user_format(scheme).samples
        if users is None:
            raise UsageError(f"'{scheme}' does not read images with labels")
        return users, rest
    reader = _recognised_by(spec)
    if reader is None:
        names = [f"{name}:" for name in schemes]
        raise UsageError(f"'{spec}' is neither a path nor a data set", did_you_mean(f"{scheme}:", names))
    return reader, spec
