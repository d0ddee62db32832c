"""Table (.csv, .tsv, .parquet, .json, .txt): a row per image: path, label (`cat`, `cat;dog`) or 0/1 columns."""

import collections
import csv
import dataclasses
import io
import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np

from sslbench.config import setting
from sslbench.data import labels
from sslbench.data.containers.listed import ListedFiles, find_listed, finds_all, folders_beside, images_folder
from sslbench.data.containers.members import by_split, rows_of_splits, split_name
from sslbench.data.containers.sniff import SUFFIXES as IMAGE_SUFFIXES
from sslbench.data.containers.sniff import (
    has_base64_rows,
    has_box_columns,
    is_base64_image,
    is_json_table,
    is_open_images,
    read_text,
)
from sslbench.data.format import (
    Column,
    LabelList,
    LabelReader,
    NoOptions,
    SampleReader,
    SampleRequest,
    SourceFormat,
)
from sslbench.data.formats.table.lists import TableColumns, read_json, read_json_lines, read_lines
from sslbench.data.labels import (
    NO_LABEL_COLUMN,
    NONE_OF_THE_CLASSES,
    decimals_note,
    labels_of_cells,
    multi_labels,
)
from sslbench.data.objects.view import viewed
from sslbench.data.source import Source
from sslbench.data.wording import counted, repeated, some
from sslbench.errors import DataError, UsageError
from sslbench.names import did_you_mean
from sslbench.targets.classes import Classes
from sslbench.targets.multilabel import MultiLabel
from sslbench.targets.none import Unlabelled
from sslbench.targets.numbers import Numbers
from sslbench.targets.target import Target

SUFFIXES = (".csv", ".tsv", ".parquet", ".json", ".jsonl", ".ndjson", ".txt")
IMAGE_COLUMNS = tuple(
    "image image_path img img_path path file filename file_name filepath file_path image_file image_filename "
    "image_name impath".split()
)
"""Names of the image column, in order of precedence."""
LABEL_COLUMNS = tuple(
    "label labels class classes class_name category categories target targets y label_name class_label tag tags "
    "class_id label_id category_id choice diagnosis".split()
)
"""Names of the label column, in order of precedence."""
# Texts that programs write for a missing value, in lower case; a class may have such a name
_LIKE_EMPTY = ("nan", "none", "null", "na", "n/a", "<na>", "#n/a")
_IDS = ("id", "image_id", "key", "name")
_LOOKED_AT = 16
_BOX = 5  # cells of the rows of a table of boxes, at least, without the class
_BOXES = "filename,xmin,ymin,xmax,ymax,class"


@dataclasses.dataclass(frozen=True)
class TableOptions:
    """Options behind a '?': photos.csv?group=patient&images=photos."""

    group: str = setting("", "column of groups that a seeded split keeps on one side: patient, video, scene")
    images: str = setting("", "folder of the images, relative to the folder of the table")
    time: str = setting("", "column of times to an event, beside ?event=")
    event: str = setting("", "column of 1 for an event and 0 for a time without one (censored), beside ?time=")
    blank: Literal["", "absent", "ignore"] = setting(
        "", "meaning of an empty cell in columns of 0 and 1: absent (0) or ignore (-1); without it, none may be empty"
    )


def recognises(spec: str) -> bool:
    """Return whether the string ends like a table, and is no folder, no manifest, and no file with images or boxes."""
    lower = spec.lower()
    if not lower.endswith(SUFFIXES) or Path(spec).is_dir() or has_box_columns(spec) or is_open_images(spec):
        return False
    if lower.endswith(".json"):
        return is_json_table(spec)
    return not (lower.endswith(".tsv") and has_base64_rows(spec))


def open(request: SampleRequest[TableOptions]) -> dict[str, Source]:
    """Return the images that a table lists.

    A .csv, .tsv or .parquet needs a header; a .json is a list of records, or maps each image to its label; a .jsonl has
    a record per line; a .txt a path per line, or a path, white space and a label. Paths are relative to the folder of
    the table, and read as `find_listed` reads them: names of images without suffix, or in one of the folders beside the
    table, are found. A column called `split` is honoured. Columns of images and labels are recognised by their names
    (`IMAGE_COLUMNS`, `LABEL_COLUMNS`) where none is asked for. Without one of labels, columns that hold only 0, 1 and
    -1 (ignore) are taken as one class each; `A,B` names some of these. Ids are the paths relative to the folder in
    which the images are found.
    """
    spec, options, attribute_columns = request.spec, request.options, request.attribute_columns
    if request.value_columns and request.label_column is not None:
        raise UsageError("--label-col names classes and --value-col numbers: give only one")
    values = _columns_of_times(request)
    if options.group and options.group not in attribute_columns:
        attribute_columns = (*attribute_columns, options.group)
    columns = [request.image_column, request.label_column, [*attribute_columns], [*values]]
    if options.images or options.blank:
        columns += [options.images, options.blank]
    if options.time:
        columns += ["times"]

    def read() -> dict[str, Source]:
        below = images_folder(spec, options.images)
        folders = [below] if below else folders_beside(Path(spec))
        named = (request.image_column, request.label_column, attribute_columns, values)
        table = _with_flags(read_cells(Path(spec)), options.event)
        sources = read_columns(table, folders, *named, options.blank, "?images=FOLDER")
        return {split: with_times(source) if options.time else source for split, source in sources.items()}

    def with_times(source: Source) -> Source:
        time, event = source.target.classes
        target = labels.times_of(source.target.values, time, event, source.ids, source.name)
        return dataclasses.replace(source, target=target)

    # A table is kept in the cache under all arguments that its reading depends on.
    sources = viewed(spec, "table", columns, read)
    return {split: dataclasses.replace(source, grouped_by=options.group) for split, source in sources.items()}


def _columns_of_times(request: SampleRequest[TableOptions]) -> tuple[str, ...]:
    """Return the columns of numbers: those of times and events, or those that are asked for."""
    options, spec = request.options, request.spec
    if not (options.time or options.event):
        return tuple(request.value_columns)
    if not (options.time and options.event):
        given, lacking = ("time", "event") if options.time else ("event", "time")
        raise UsageError(
            f"{spec}: ?{given}= needs ?{lacking}= beside it", f"Name both columns: '{spec}?time=months&event=dead'."
        )
    if request.label_column is not None or request.value_columns:
        flag = "--label-col" if request.label_column is not None else "--value-col"
        raise UsageError(f"{spec}: {flag} has no effect beside ?time={options.time}", "Give only one.")
    return options.time, options.event


def _with_flags(table: TableColumns, column: str) -> TableColumns:
    """Return a table in which a column of true and false has 1 and 0."""
    if column not in table.columns:
        return table
    flags = [labels.FLAGS.get(_text(cell).lower(), cell) for cell in table.columns[column]]
    return dataclasses.replace(table, columns={**table.columns, column: flags})


def read_columns(
    table: TableColumns,
    folders: Sequence[Path],
    image_column: str | None,
    label_column: str | None,
    attribute_columns: Sequence[str],
    value_columns: Sequence[str],
    blank: str = "",
    option: str = "",
) -> dict[str, Source]:
    """Return the images that the columns of a table list."""
    spec = table.name
    image = _find(table, image_column, IMAGE_COLUMNS, "image")
    guessed = image is None
    if image is None:
        image = _column_of_files(table, folders)
    names = [_text(value) for value in table.columns[image]]
    _refuse_empty(table, image, names, "Remove these rows, or name their images.")
    split = _find(table, None, ("split",), "split")
    found = _found(table, names, table.columns[split] if split else (), folders, option)
    no_labels = (image, split, "", *attribute_columns)
    labels, about = _target(table, no_labels, label_column, value_columns, blank)
    attributes = {name: _attribute(table, name) for name in attribute_columns}
    ambiguous = _ambiguous(table, image, IMAGE_COLUMNS)
    if guessed:
        ambiguous = (f"{spec}: the cells of '{image}' are image files, so it is the column of the images", *ambiguous)
    notes = (*table.notes, *ambiguous, *found.notes, *about)
    return by_split(spec, found.ids, labels, found.files, _splits(table, split), notes, attributes)


def _target(
    table: TableColumns,
    no_labels: Sequence[str | None],
    label_column: str | None,
    value_columns: Sequence[str],
    blank: str = "",
) -> tuple[Target, tuple[str, ...]]:
    """Return the labels of all rows, and notes; `no_labels` are further columns, that of the images first."""
    several = [] if value_columns else _several(table, label_column)
    label = None
    if not (value_columns or several):
        label = _find(table, label_column, LABEL_COLUMNS, "label", taken=no_labels[0])
    if blank and (value_columns or label):
        used = label or value_columns[0]
        raise UsageError(
            f"{table.name}: ?blank={blank} is for columns of 0 and 1, and '{used}' is another",
            "Leave it out; rows of an empty label cannot be used.",
        )
    if value_columns:
        return _numbers(table, value_columns), ()
    if label:
        found, notes = _labels(table, label)
        return found, (*_ambiguous(table, label, LABEL_COLUMNS), *notes)
    return _labels_from_flags(table, several, [name for name in table.columns if name not in no_labels], blank)


def _splits(table: TableColumns, column: str | None) -> list[str] | None:
    """Return the split of each row; None without a column of them."""
    if column is None:
        return None
    cells = ["" if cell is None else str(cell).strip() for cell in table.columns[column]]
    _refuse_empty(table, column, cells, "Name the split of every row, or remove the column.")
    return [split_name(cell) or cell.lower() for cell in cells]


def open_labels(request: SampleRequest[NoOptions]) -> dict[str, LabelList]:
    """Return the labels in a table whose images need not be there."""
    table = read_cells(Path(request.spec))
    image = _find(table, None, (*IMAGE_COLUMNS, *_IDS), "image")
    if image is None:
        raise UsageError(
            f"{table.name}: no column for the images was recognised among: {', '.join(table.columns)}",
            "Call it 'path' or 'id'.",
        )
    names = tuple(_text(cell) for cell in table.columns[image])
    _refuse_empty(table, image, names, "Remove these rows, or name their images.")
    split = _find(table, None, ("split",), "split")
    target, notes = _target(table, (image, split, ""), request.label_column, request.value_columns)
    lists = {}
    for part, rows in rows_of_splits(_splits(table, split) or ["all"] * len(names)).items():
        lists[part] = LabelList(target.select(rows), tuple(names[row] for row in rows), notes=(*table.notes, *notes))
    return lists


def _found(
    table: TableColumns, names: Sequence[str], splits: Sequence[Any], folders: Sequence[Path], option: str
) -> ListedFiles:
    """Return the files of a table: as they are named, else in folders with the names of their splits."""
    spec = table.name
    try:
        return find_listed(spec, names, folders, option)
    except DataError:
        # In some tables the split is also the folder of the file.
        inside = [f"{_text(split)}/{name}" for split, name in zip(splits, names, strict=False)]
        if not inside or not finds_all(inside, folders):
            _refuse_images_inside(table)
            raise
        return find_listed(spec, inside, folders, option)


def _column_of_files(table: TableColumns, folders: Sequence[Path]) -> str:
    """Return the only column whose cells name files: none of labels; of several the one without equal cells."""
    listed = ", ".join(table.columns)
    cells = {
        name: list(map(_text, column)) for name, column in table.columns.items() if _key(name) not in LABEL_COLUMNS
    }
    found = [name for name, texts in cells.items() if finds_all(texts, folders)]
    # A column of masks or of references may name files too; images are listed once each.
    found = [name for name in found if len(set(cells[name])) == len(cells[name])] or found
    if len(found) == 1:
        return found[0]
    _refuse_images_inside(table)
    several = f" The cells of {some(found)} are image files." if found else ""
    raise UsageError(
        f"{table.name}: no column for the images was recognised among: {listed}",
        f"Name it with --image-col, or call it 'path'.{several}",
    )


def _refuse_images_inside(table: TableColumns) -> None:
    """Refuse a table that holds images itself, in base64."""
    for name, cells in table.columns.items():
        if any(isinstance(cell, str) and is_base64_image(cell) for cell in cells[:_LOOKED_AT]):
            raise UsageError(
                f"{table.name}: the column '{name}' holds images in base64, not paths",
                "Write them as files and their paths into the table, or all as Parquet (datasets: to_parquet), which "
                "is read.",
            )


def _numbers(table: TableColumns, names: Sequence[str]) -> Target:
    """Return the columns as numbers to predict."""
    columns = {name: table.columns[_find(table, name, (), "of numbers") or name] for name in names}
    values = np.empty((len(next(iter(columns.values()))), len(columns)))
    for c, (name, cells) in enumerate(columns.items()):
        odd = []
        for row, cell in enumerate(cells):
            try:
                values[row, c] = float(cell) if isinstance(cell, int | float) else float(str(cell))
            except ValueError:
                values[row, c] = np.nan
            if not np.isfinite(values[row, c]):
                odd.append(f"{table.row_name(row)} ({_text(cell) or 'empty'})")
        if odd:
            raise DataError(
                f"{table.name}: the column '{name}' has no number in {some(odd)}",
                "Remove these rows; if the column holds classes, name it with --label-col.",
            )
    return Numbers(tuple(columns), values)


def _attribute(table: TableColumns, name: str) -> list[str]:
    """Return a column as text."""
    column = _find(table, name, (), "of groups or targets") or name
    # Equal cells share one text, so that a million rows of a few values cost little.
    texts: dict[str, str] = {}
    return [texts.setdefault(text, text) for text in map(_text, table.columns[column])]


def read_cells(path: Path) -> TableColumns:
    """Read the cells of a table: .csv, .tsv, .parquet, .json, .jsonl or .txt."""
    readers = {".parquet": _read_parquet, ".json": read_json, ".txt": read_lines}
    readers |= dict.fromkeys((".jsonl", ".ndjson"), read_json_lines)
    table = readers.get(path.suffix.lower(), _read_text)(path)
    if not table.columns or not len(next(iter(table.columns.values()))):
        raise DataError(f"{path} has no rows below its header")
    return table


def _read_text(path: Path) -> TableColumns:
    text, notes = read_text(path)
    separator = "\t" if path.suffix.lower() == ".tsv" else ","
    given = re.match(r"sep=(.)\r?\n", text)  # Excel's first line
    header = text.partition("\n")[0]
    if given:
        separator, text = given[1], text[given.end() :]
    elif separator not in header and (other := next((s for s in ";\t,|" if s in header), None)):
        separator, notes = other, (*notes, f"{path}: columns are separated by {other!r}")
    # newline="" keeps line breaks in quoted cells; strict reports a quote that is not closed.
    reader, end, rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True), 0, []
    try:
        for row in reader:
            end = reader.line_num
            rows += [(end, row)] if any(cell.strip() for cell in row) else []
    except csv.Error as error:
        raise DataError(
            f"{path} is not a table: {error}, in the row that begins in line {end + 1}", "Close or remove its quotes."
        ) from error
    if not rows:
        raise DataError(f"{path} is empty", "Its first line should be a header such as: path,label")
    names = [name.strip() for name in rows[0][1]]
    if any(PurePosixPath(name.lower()).suffix in IMAGE_SUFFIXES for name in names):
        raise UsageError(
            f"{path} has no header: its first line is {', '.join(names)}",
            f"Put a line above it, such as: {_BOXES if len(names) > _BOX else 'path,label'}",
        )
    if twice := repeated(names):
        raise DataError(f"{path}: the header has the column '{twice[0]}' twice", "Rename or remove one of them.")
    lines = [line for line, _ in rows[1:]]
    for line, row in rows[1:]:
        if len(row) != len(names):
            raise DataError(
                f"{path}, line {line}: {counted(len(row), 'cell')}, but the header has {len(names)}",
                f"The first line, '{names[0]:.60}', should name the columns, such as: path,label"
                if len(names) == 1
                else 'Quote cells that hold a separator: a.jpg,"cat, large"'
                if len(row) > len(names)
                else "Give every row all cells, empty ones too; is the file complete?",
            )
    columns: dict[str, Sequence[Any]] = {name: [row[i].strip() for _, row in rows[1:]] for i, name in enumerate(names)}
    return TableColumns(str(path), columns, lambda row: f"line {lines[row]}", notes)


def _read_parquet(path: Path) -> TableColumns:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(f"reading {path} needs pyarrow", "pip install 'sslbench[parquet]'") from error
    try:
        # Read as a single file: a parent folder named split=train must not become a column.
        content = pyarrow.parquet.ParquetFile(path).read()
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(f"cannot read {path} as Parquet: {error}") from error
    columns = {name: content.column(name).to_pylist() for name in content.column_names}
    return TableColumns(str(path), columns, lambda row: f"row {row + 1}")


def _key(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def _find(
    table: TableColumns, asked: str | None, known: Sequence[str], what: str, taken: str | None = None
) -> str | None:
    """Return the requested column, else the first known one, in any case, with spaces or hyphens for underscores.

    Of nested records (`image.path`) the last key counts, where no column has a known name itself, or the first if it
    holds one column (`label.name`).
    """
    if asked is not None:
        if asked not in table.columns:
            raise UsageError(f"{table.name} has no column '{asked}' ({what})", did_you_mean(asked, table.columns))
        return asked
    # Reversed, so that of columns of one name the first stays.
    left = [column for column in reversed(table.columns) if column != taken]
    tops = collections.Counter(column.partition(".")[0] for column in left)
    keys = {_key(top): column for column in left if tops[top := column.partition(".")[0]] == 1}
    # In this order: a column's whole name replaces the last key of another, and that the first key.
    keys |= {_key(column.rpartition(".")[2]): column for column in left} | {_key(column): column for column in left}
    return next((keys[name] for name in known if name in keys), None)


def _ambiguous(table: TableColumns, chosen: str | None, known: Sequence[str]) -> tuple[str, ...]:
    others = [column for column in table.columns if _key(column) in known and column != chosen]
    if chosen is None or _key(chosen) not in known or not others:
        return ()
    option = "--image-col" if known is IMAGE_COLUMNS else "--label-col"
    return (f"{table.name}: column '{chosen}' is used, not {some(others)}; select with {option}",)


def _refuse_empty(table: TableColumns, column: str, cells: Sequence[str], remedy: str | None = None) -> None:
    empty = [table.row_name(i) for i, cell in enumerate(cells) if not cell]
    if empty:
        raise DataError(f"{table.name}: the column '{column}' is empty in {some(empty)}", remedy)


def _several(table: TableColumns, asked: str | None) -> list[str]:
    """Return the columns of `A,B`; [] for the name of one column, or none."""
    if asked is None or asked in table.columns or "," not in asked:
        return []
    return [str(_find(table, name.strip(), (), "label")) for name in asked.split(",") if name.strip()]


def _labels(table: TableColumns, column: str) -> tuple[Target, tuple[str, ...]]:
    """Return labels and notes; all rows decide, so that every split has the same kind and classes."""
    cells = table.columns[column]
    lists = any(isinstance(cell, list) for cell in cells)
    texts = [_text(cell) for cell in cells]
    empty = [table.row_name(i) for i, text in enumerate(texts) if not text and not isinstance(cells[i], list)]
    if empty:
        raise DataError(f"{table.name}: the label (column '{column}') is empty in {some(empty)}", NONE_OF_THE_CLASSES)
    absent = collections.Counter(text for text in texts if text.lower() in _LIKE_EMPTY)
    notes = tuple(
        f"{table.name}: '{text}' is the class of {counted(n, 'row')}; if these have no label, leave them out or empty"
        for text, n in absent.items()
    )
    if lists:
        return multi_labels(
            [[str(name) for name in (cell if isinstance(cell, list) else [cell])] for cell in cells]
        ), notes
    if set(texts) & {"-1", "-1.0"} and set(texts) <= set(labels.FLAGS):
        raise UsageError(
            f"{table.name}: '{column}' holds 0, 1 and -1, and -1 is no class",
            f"--label-col {column}, (with the comma) makes it one class that is present or absent, and -1 not counted.",
        )
    found = labels_of_cells(texts)
    if isinstance(found, Classes):
        notes += decimals_note(table.name, column, found.classes)
    return found, notes


def _text(cell: object) -> str:
    """Return a cell as text: '007' is kept; 3.0 (Parquet's whole numbers beside empty cells) becomes '3'."""
    if isinstance(cell, list) and len(cell) == 1:
        (cell,) = cell
    if cell is None or (isinstance(cell, float) and np.isnan(cell)):
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def _labels_from_flags(
    table: TableColumns, asked: Sequence[str], names: Sequence[str], blank: str
) -> tuple[Target, tuple[str, ...]]:
    """Return the columns of 0, 1 and -1 as classes: those that were asked for, or all among `names`, and notes."""
    cells = {name: [_text(cell) for cell in table.columns[name]] for name in asked or names}
    classes = [name for name in cells if any(cells[name]) and all(c.lower() in labels.FLAGS for c in cells[name] if c)]
    if other := [name for name in asked if name not in classes]:
        odd = next((cell for cell in cells[other[0]] if cell.lower() not in labels.FLAGS and cell), "nothing")
        raise UsageError(
            f"{table.name}: '{','.join(asked)}' names several columns, which should hold 0, 1 and -1: '{other[0]}' "
            f"has {odd}",
            "Name one column of classes: cat;dog in a cell are several.",
        )
    n = len(next(iter(table.columns.values())))
    if not classes:
        named = f"{NO_LABEL_COLUMN} {', '.join(table.columns)}; name it with --label-col"
        return Unlabelled(n), (f"{table.name}: {named}, or with --value-col if it holds numbers to predict",)
    if not blank:
        for name in classes:
            how = (
                f"Behind the table, ?blank=absent counts them as 0, and ?blank=ignore as -1: {table.name}?blank=ignore"
            )
            _refuse_empty(table, name, cells[name], how)
    flags = {**labels.FLAGS, "": -1 if blank == "ignore" else 0}
    values = np.array([[flags[cell.lower()] for cell in cells[name]] for name in classes], dtype=np.int8).T
    notes = [f"{table.name}: {counted(len(classes), 'column')} of 0 and 1 taken as classes: {some(classes, 5)}"]
    if empty := sum(cell == "" for name in classes for cell in cells[name]):
        notes.append(f"{table.name}: {counted(empty, 'empty cell')} {'do not count' if blank == 'ignore' else 'are 0'}")
    if ignored := int((values == -1).sum()) - (empty if blank == "ignore" else 0):
        notes.append(f"{table.name}: {counted(ignored, 'cell')} of -1 do not count")
    return MultiLabel(tuple(classes), np.ascontiguousarray(values)), tuple(notes)


COLUMNS: frozenset[Column] = frozenset(("image", "label", "attribute", "value"))
FORMAT = SourceFormat(
    __doc__,
    SampleReader(recognises, open, TableOptions, COLUMNS),
    labels=LabelReader(recognises, open_labels, frozenset(("label", "value"))),
)
