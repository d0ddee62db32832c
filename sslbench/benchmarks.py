"""Named benchmarks: what is measured, in YAML that a user can read, copy and change (benchmarks/README.md)."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from sslbench import names, paths
from sslbench.config import build, read_yaml
from sslbench.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Reference:
    """A published value that this benchmark should give.

    Attributes:
        weights: what was evaluated.
        metric: name of the metric.
        value: in percent for rates.
        source: where it was published.
        tolerance: how far a correct run may be from it.
    """

    weights: str
    metric: str
    value: float
    source: str
    tolerance: float = 0.5


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """What is measured: a protocol with its settings on a data set. Never a path, weights, hardware or a seed.

    Attributes:
        name: path below benchmarks/, without suffix.
        title: one line.
        version: grows whenever numbers would change.
        protocol: name of the protocol.
        settings: the protocol's settings that differ from its defaults.
        data: `--data` string of a named data set; empty when the user has to say where the images are.
        layers: layers that are evaluated; empty: the backbone's default.
        preprocessing: values of the image preprocessing that this benchmark fixes.
        samples: expected number of samples, {'train': 50000, 'test': 10000}.
        classes: expected number of classes; 0: any.
        reference: published values.
        sha256: of the resolved content, 16 hex digits.
        modified: True when a file of the user's stands in for the shipped one of that name.
    """

    name: str
    title: str
    version: int
    protocol: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: str = ""
    layers: tuple[str, ...] = ()
    preprocessing: dict[str, Any] = dataclasses.field(default_factory=dict)
    samples: dict[str, int] = dataclasses.field(default_factory=dict)
    classes: int = 0
    reference: tuple[Reference, ...] = ()
    sha256: str = ""
    modified: bool = False


def load_benchmark(name: str) -> Benchmark:
    """The benchmark of that name, or in that YAML file.

    Raises:
        UsageError: no such benchmark, or its file is wrong.
    """
    file = names.find_file("benchmark", name)
    content = _read(file)
    for key in ("name", "sha256", "modified"):
        if key in content:
            raise UsageError(f"{file}: the key '{key}' is not written in the file; the file's place is its name")
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
    shipped = paths.builtin_dir("benchmarks") / f"{name}.yaml"
    modified = not shipped.is_file() or file.resolve() != shipped.resolve()
    if modified and shipped.is_file():
        modified = _read(shipped) != content
    stem = name.removesuffix(".yaml")
    return build(Benchmark, {**content, "name": stem, "sha256": digest, "modified": modified}, str(file))


def load_suite(name: str) -> tuple[str, ...]:
    """The names of the benchmarks in a suite (benchmarks/suites/NAME.yaml).

    Raises:
        UsageError: no such suite, or its file is wrong.
    """
    file = names.find_file("suite", name)
    return build(_Suite, read_yaml(file), str(file)).benchmarks


@dataclasses.dataclass(frozen=True)
class _Suite:
    title: str
    benchmarks: tuple[str, ...]


def _read(file: Path) -> dict[str, Any]:
    """The content of a benchmark file; `extends: NAME` takes what is not written here from that one file."""
    content = read_yaml(file)
    base_name = content.pop("extends", None)
    if base_name is None:
        return content
    base_file = next(
        (p for root in paths.search_path("benchmarks") if (p := root / f"{base_name}.yaml").is_file()), None
    )
    if base_file is None:
        raise UsageError(f"{file}: extends '{base_name}', which does not exist")
    base = read_yaml(base_file)
    if "extends" in base:
        raise UsageError(f"{file}: extends {base_file}, which itself extends another file; one base is all there is")
    merged = {**base, **content}
    for key in ("settings", "preprocessing"):
        if key in base and key in content:
            merged[key] = {**base[key], **content[key]}
    return merged
