"""Retrieval sets with queries and ground truth: (r)Oxford5k, (r)Paris6k, INSTRE, Holidays, Copydays, DISC21.

The folder as its authors distribute it is recognised by what lies in it:

- revisited Oxford and Paris, INSTRE: `gnd_*.pkl` or `gnd_*.mat`, and the images below the folder;
- Oxford5k and Paris6k of 2007: `*_query.txt`, `*_good.txt`, `*_ok.txt`, `*_junk.txt`;
- Holidays: images called 100000.jpg to 149902.jpg;
- Copydays: `original/`, `strong/`, `jpegqual/3` ..., `crops/10` ...;
- DISC21: `references/`, `queries/` and a .csv of the columns query_id and reference_id.

The ground-truth file itself may be named too, with `?images=FOLDER`.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from sslbench.data.format import SampleReader, SampleRequest, SourceFormat
from sslbench.data.formats.retrieval import copies, landmarks
from sslbench.data.formats.retrieval.parts import RetrievalOptions
from sslbench.data.source import Source
from sslbench.errors import DataError


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of one retrieval set on the disk.

    Attributes:
        recognises: cheap test of a file or folder.
        open: all images of the set, with its queries.
    """

    recognises: Callable[[Path], bool]
    open: Callable[[Path, RetrievalOptions], Source]


LAYOUTS = (
    Layout(landmarks.is_ground_truth, landmarks.open_ground_truth),
    Layout(landmarks.is_oxford, landmarks.open_oxford),
    Layout(copies.is_holidays, copies.open_holidays),
    Layout(copies.is_copydays, copies.open_copydays),
    Layout(copies.is_disc, copies.open_disc),
)


def recognises(spec: str) -> bool:
    """Return whether the string is a file or folder of one of the layouts."""
    return any(layout.recognises(Path(spec)) for layout in LAYOUTS)


def open(request: SampleRequest[RetrievalOptions]) -> dict[str, Source]:
    """Return all images of a set, queries among them, as one part.

    Images have one label each: 'database', or for a query its name; of Holidays and Copydays the original's number.
    Ids are the names in the ground truth, else paths relative to the images' folder; those of queries with a box
    begin with 'query/'.

    Raises:
        DataError: the ground truth is damaged, or images are missing.
        UsageError: an option has no effect on this set.
    """
    path = Path(request.spec)
    layout = next(layout for layout in LAYOUTS if layout.recognises(path))
    try:
        return {"all": layout.open(path, request.options)}
    except OSError as error:
        raise DataError(f"cannot read {error.filename!s:.300}: {error.strerror}") from error


FORMAT = SourceFormat(__doc__, SampleReader(recognises, open, RetrievalOptions))
