"""In what two results differ that must agree before they may be compared."""

import json
from typing import Any

from sslbench.identity import comparability_key
from sslbench.results import Result

_UNSET = "unset"


def differing(a: Result, b: Result, metric: str | None = None) -> list[tuple[str, str, str]]:
    """(key, value of a, value of b) for all that must agree and does not; empty when they may be compared.

    Args:
        a: one result.
        b: the other one.
        metric: that they are compared by; default the headline of each, which must then be the same.
    """
    one, other = comparability_key(a, metric), comparability_key(b, metric)
    found: list[tuple[str, Any, Any]] = [
        ("protocol", one.protocol, other.protocol),
        ("metric", one.metric, other.metric),
    ]
    if one.protocol == other.protocol:
        found += [("protocol version", one.version, other.version), ("code of the protocol", one.code, other.code)]
        found += _settings(json.loads(one.settings), json.loads(other.settings))
    found += [
        ("train data", _data(a.data.train.name, one.train), _data(b.data.train.name, other.train)),
        ("test data", _data(a.data.test.name, one.test), _data(b.data.test.name, other.test)),
        ("train samples used", one.n_train, other.n_train),
        ("test samples used", one.n_test, other.n_test),
        ("unreadable images", one.unreadable, other.unreadable),
        ("groups", one.groups, other.groups),
    ]
    if a.benchmark is not None and b.benchmark is not None:
        first, second = a.benchmark, b.benchmark
        found.append(("benchmark", f"{first.name} v{first.version}", f"{second.name} v{second.version}"))
    # Names of data may differ where the data do not, and the other way round: it is the fingerprints that count.
    same = {"train data": one.train == other.train, "test data": one.test == other.test}
    return [(key, str(x), str(y)) for key, x, y in found if not same.get(key, x == y)]


def _data(name: str, fingerprint: str) -> str:
    return f"{name} {fingerprint[:8]}"


def _settings(one: dict[str, Any], other: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    return [
        (f"setting {name}", _text(one.get(name, _UNSET)), _text(other.get(name, _UNSET)))
        for name in sorted({*one, *other})
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
