"""A whole manifest in memory, as kwcoco reads it, checked to be consistent."""

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

from sslbench.data.formats.coco.columns import one_line
from sslbench.data.formats.coco.videos import Videos
from sslbench.data.wording import some
from sslbench.errors import DataError


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Kwcoco prints progress on stdout, where the results go, and warns about packages that it can do without."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def load(spec: str) -> Any:
    """The manifest as a kwcoco.CocoDataset, checked to be one."""
    with _quiet():
        import kwcoco

        try:
            manifest = kwcoco.CocoDataset(spec, autobuild=False)
        except OSError as error:
            raise DataError(f"cannot read {spec}: {error.strerror or error}") from error
        except Exception as error:  # kwcoco raises bare Exceptions too
            raise DataError(f"{spec} is not a COCO manifest: {one_line(error)}") from error
    content = manifest.dataset
    tables = ("images", "annotations", "categories")
    if not isinstance(content, dict) or not isinstance(content.get("images"), list):
        keys = (
            f"a mapping with the keys {some(sorted(map(str, content)), 6)}" if isinstance(content, dict) else "a list"
        )
        raise DataError(
            f"{spec} is not a COCO manifest: it has no list 'images', it is {keys}",
            "A manifest is a mapping with the lists images, annotations and categories.",
        )
    for table in tables:
        rows = content.setdefault(table, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise DataError(f"{spec}: '{table}' is not a list of mappings")
    if not content["images"]:
        raise DataError(f"{spec} lists no images")
    _check_references(spec, content)
    Videos(spec).table(content.get("videos") or [])
    with _quiet(), _silent_logging():
        try:
            manifest.rebuild_index()
        except Exception as error:
            raise DataError(f"{spec} is an inconsistent COCO manifest: {one_line(error)}") from error
    return manifest


@contextlib.contextmanager
def _silent_logging() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(previous)


def _check_references(spec: str, content: dict[str, Any]) -> None:
    """Ids are unique numbers, names are unique, and no annotation points nowhere."""
    for table, key in (("images", "id"), ("annotations", "id"), ("categories", "id"), ("categories", "name")):
        rows = content[table]
        without = [row for row in rows if row.get(key) is None]
        if without:
            raise DataError(f"{spec}: an entry of '{table}' has no '{key}': {one_line(without[0])}")
        counts = Counter(_plain(spec, table, key, row[key]) for row in rows)
        twice = [str(value) for value, n in counts.items() if n > 1]
        if twice:
            raise DataError(f"{spec}: the same {key} occurs twice in '{table}': {some(twice)}")
    for key, table in (("image_id", "images"), ("category_id", "categories")):
        known = {row["id"] for row in content[table]}
        used = {
            _plain(spec, "annotations", key, row[key]) for row in content["annotations"] if row.get(key) is not None
        }
        if used - known:
            wrong = sorted(map(repr, used - known))
            raise DataError(f"{spec}: annotations have {key} {some(wrong)}, which is not in '{table}'")


def _plain(spec: str, table: str, key: str, value: object) -> int | str:
    # kwcoco takes whole numbers only as ids, as COCO does.
    if isinstance(value, int) or (key == "name" and isinstance(value, str)):
        return value
    kind = "text" if key == "name" else "a whole number"
    raise DataError(f"{spec}: {key} of '{table}' should be {kind}, not {value!r}")
