"""The message for a weights file that no table explains: what its keys look like, and what comes closest."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from sslbench import names
from sslbench.errors import WeightsError
from sslbench.weights.files import WeightsFile
from sslbench.weights.save import CHECKPOINT_FORMAT
from sslbench.weights.tables import Split, Table, load_networks


def unrecognised(
    file: WeightsFile,
    tensors: Mapping[str, Tensor],
    *,
    where: str,
    tries: Sequence[tuple[Table, Split]],
    quarrels: Sequence[str],
    format: str | None,
) -> WeightsError:
    """Says what the keys look like, which format comes closest and what it does not know.

    Args:
        file: that was read.
        tensors: of the place in it that has the most.
        where: that place.
        tries: what each table makes of the file.
        quarrels: what tables say against it.
        format: that the user named.
    """
    keys = list(tensors)
    if not keys:
        holds = ", ".join(f"'{key}'" for key in list(file.content)[:5]) or "nothing"
        stubs = f"; classes that were not loaded: {', '.join(file.stubbed[:3])}" if file.stubbed else ""
        return WeightsError(f"{file.path} holds no tensors; it holds {holds}{stubs}", "Save model.state_dict().")
    if file.content.get("format") == CHECKPOINT_FORMAT:
        what = "a detector" if "detector" in file.content or "model" in file.content else "linear heads"
        return WeightsError(
            f"{file.path} is a checkpoint of the training of {what}, not weights of a backbone",
            "The command that wrote it continues from it, and writes its results when it ends.",
        )
    message = f"{file.path} is not of format {format}" if format else f"{file.path} has key names of no known format"
    message += f": its {len(keys)} tensors" + (f" at '{where}'" if where else "")
    message += " are " + ", ".join(f"'{key}'" for key in keys[:3]) + (" ..." if len(keys) > 3 else "")
    hint = _prefix_hint(tensors) or _closest(tries)
    hint += f"; {quarrels[0]}" if quarrels else ""
    return WeightsError(
        message + hint,
        "Give --format NAME if you know it (sslbench list formats), or your own network: --backbone MODULE:FUNCTION.",
    )


def _prefix_hint(tensors: Mapping[str, Tensor]) -> str:
    """Says which beginning of many keys hides names that are known."""
    keys = list(tensors)
    beginnings = {".".join(key.split(".")[:n]) + "." for key in keys for n in range(1, min(key.count("."), 4) + 1)}
    tables = [t for name in names.list_names("format") for t in load_networks(name) if not t.file.fallback]
    for prefix in sorted(beginnings, key=len):
        behind = {key.removeprefix(prefix): tensors[key] for key in keys if key.startswith(prefix)}
        if 3 * len(behind) < len(keys):
            continue
        for table in sorted(tables, key=lambda table: table.is_general):
            if not table.file.marker and table.file.detect != () and _claims(table, behind):
                some = "all" if len(behind) == len(keys) else str(len(behind))
                return f"; {some} start with '{prefix}', and have {table.name} names behind it"
    prefix = common_prefix(keys)
    return f"; all start with '{prefix}'" if prefix else ""


def _claims(table: Table, tensors: Mapping[str, Tensor]) -> bool:
    try:
        split = table.split(tensors)
    except WeightsError:
        return False
    return bool(split.canonical) and not split.unknown and table.detected(tensors)


def _closest(tries: Sequence[tuple[Table, Split]]) -> str:
    known = [(table, s) for table, s in tries if s.canonical and s.unknown and not table.file.fallback]
    if not known:
        return ""
    table, split = max(known, key=lambda pair: (len(pair[1].canonical), -len(pair[1].unknown), not pair[0].is_general))
    if len(split.canonical) < len(split.unknown):
        return ""
    return f"; closest is {table.name}, which does not know {len(split.unknown)} of them, such as '{split.unknown[0]}'"


def common_prefix(keys: Iterable[str]) -> str:
    """The whole dotted segments that all keys start with, with the dot at the end; '' if there are none."""
    shared: list[str] | None = None
    for key in keys:
        segments = key.split(".")[:-1]
        pairs = zip(segments, segments if shared is None else shared, strict=False)
        shared = [left for left, right in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "".join(f"{segment}." for segment in shared or [])
