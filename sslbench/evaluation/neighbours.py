"""Sheet of queries with their first neighbours beside a record of retrieval; frames: green right, red wrong."""

import logging
from collections.abc import Mapping, Sequence

from sslbench.data.checks.sheets import Thumbnail, neighbour_sheet, thumbnails
from sslbench.data.decode.handlers import Reading
from sslbench.data.source import Source
from sslbench.data.splits import TrainTest
from sslbench.preprocessing import Preprocessing
from sslbench.results import Neighbours, Result, records

log = logging.getLogger("sslbench")


def write_sheet(
    result: Result, neighbours: Sequence[Neighbours], data: TrainTest, preprocessing: Preprocessing
) -> None:
    """Write the sheet beside a record; a sheet that cannot be written costs a warning only.

    Args:
        result: with its `file`.
        neighbours: of a few queries.
        data: test has the queries, and test or train the images that were searched.
        preprocessing: its decoder and limit read the images.
    """
    path = records.neighbours_path(result)
    if not neighbours or path is None:
        return
    reading = Reading(decoder=preprocessing.decoder, max_pixels=preprocessing.max_pixels)
    database = data.train if neighbours[0].part == "train" else data.test
    queries = _pictures(data.test, [each.query for each in neighbours], reading)
    images = _pictures(database, [image for each in neighbours for image, _ in each.found], reading)
    rows = [
        (queries[each.query], [(images[image], right) for image, right in each.found if image in images])
        for each in neighbours
        if each.query in queries
    ]
    try:
        neighbour_sheet(rows, path)
    except OSError as error:
        log.warning(f"the sheet of neighbours cannot be written to {path}: {error.strerror or error}")


def _pictures(source: Source, ids: Sequence[str], reading: Reading) -> Mapping[str, Thumbnail]:
    row = {sample: i for i, sample in enumerate(source.ids)}
    found = thumbnails(source, {sample: [row[sample]] for sample in ids}, reading=reading)
    return {sample: pictures[0] for sample, pictures in found.items() if pictures}
