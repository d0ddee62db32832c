"""Places that every record is sent to beside its file, found by name: `NAME.py` defines `send`.

`$SSLBENCH_SINKS` names them: `SSLBENCH_SINKS=wandb,my_pkg.my_sink`. A module that needs an optional library names it in
`NEEDS`, and imports it inside `send`.
"""

import importlib.util
import logging
import os
from pathlib import Path
from types import ModuleType
from typing import Any

from sslbench.errors import UsageError
from sslbench.names import find_module, requests_from_file

log = logging.getLogger("sslbench")


def requested() -> dict[str, ModuleType]:
    """Return name -> module of the requested sinks; one that cannot work is refused, before anything is computed."""
    names = [name.strip() for name in os.environ.get("SSLBENCH_SINKS", "").split(",") if name.strip()]
    with requests_from_file(""):  # the user names them, also where a file names the requests
        sinks = {name: find_module("sink", name) for name in names}
    for name, module in sinks.items():
        if not callable(getattr(module, "send", None)):
            raise UsageError(f"{module.__file__} defines no sink", "Define send(record, file).")
        needed = getattr(module, "NEEDS", None)
        if needed and importlib.util.find_spec(needed) is None:
            raise UsageError(f"$SSLBENCH_SINKS: {name} needs {needed}, which is not installed", f"pip install {needed}")
    return sinks


def send(record: dict[str, Any], file: Path) -> None:
    """Send a record, as JSON has it, to the requested sinks; its file is written already."""
    for name, module in requested().items():
        try:
            module.send(record, file)
        except Exception as error:  # noqa: BLE001  a server that does not answer must not end hours of work
            log.warning(f"{file} was not sent to {name}: {type(error).__name__}: {error}")
