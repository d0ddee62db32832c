"""Files beside a record of detections: the objects of the test part, and the search for finished records."""

import logging
from pathlib import Path

from sslbench.data.objects.types import ObjectSource
from sslbench.errors import ResultError
from sslbench.identity import digest, record_id
from sslbench.metrics.detection import Truth
from sslbench.metrics.detection.files import TestObjects, write_objects
from sslbench.results import Result, records

log = logging.getLogger("sslbench")


def keep_objects(test: ObjectSource, truth: Truth, folder: Path) -> str:
    """Write the objects of a test part, once for all records on it, and return the name of the file.

    Args:
        test: the test part.
        truth: its objects, with masks where those are scored.
        folder: of the records.
    """
    numbers: list[object] = [test.numbers, test.class_numbers, truth.masks is not None]
    numbers += [] if truth.skeleton is None else [truth.skeleton.sigmas]
    name = f"test-{digest([test.fingerprint(), numbers])}{records.OBJECTS}"
    if not (folder / name).is_file():
        objects = TestObjects(truth, test.ids, test.numbers, test.class_numbers, test.sizes)
        write_objects(folder / name, objects)
    return name


def finished_result(blank: Result, out: Path) -> Result | None:
    """Return the record of a finished measurement whose files are all there and not edited; else None.

    Args:
        blank: the record without results.
        out: folder of the records.
    """
    path = records.path_of(blank, out)
    if not path.is_file():
        return None
    try:
        result = records.read_intact(path)
    except ResultError as error:
        log.warning(f"computed again: {error.message}")
        return None
    beside = [*records.predictions_paths(result).values(), path.with_name(result.objects_file or "")]
    whole = result.objects_file is not None and all(file.is_file() for file in beside)
    return result if whole and result.id == record_id(result) == blank.id else None
