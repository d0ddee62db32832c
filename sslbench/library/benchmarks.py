"""Named benchmarks in YAML that a user can read, copy and change (benchmarks/README.md)."""

import dataclasses
from pathlib import Path
from typing import Any, Literal

from sslbench import names, paths
from sslbench.config import build, read_yaml
from sslbench.errors import UsageError
from sslbench.library.presets import identified


@dataclasses.dataclass(frozen=True)
class Reference:
    """A published value that this benchmark should give.

    Attributes:
        weights: name of the weights in the source.
        files: names that the file of these weights was published under: results of such a file are compared.
        sha256: beginning of the hash of its tensors (`sslbench inspect`): such weights are compared under any name.
        metric: name of the metric, as records have it.
        value: in percent for rates.
        source: publication.
        tolerance: largest distance of a correct run.
    """

    weights: str
    metric: str
    value: float
    source: str
    tolerance: float = 0.5
    files: tuple[str, ...] = ()
    sha256: str = ""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """Protocol with its settings on a data set. Never a path, weights, hardware or a seed.

    Attributes:
        name: path below benchmarks/, without suffix.
        title: one line.
        version: grows whenever numbers would change.
        protocol: name of the protocol.
        settings: the protocol's settings that differ from its defaults.
        data: `--data` string of a named data set; empty when the user has to say where the images are.
        layers: layers that are evaluated; empty: the backbone's default.
        preprocessing: values of the image preprocessing that this benchmark fixes.
        folder: place of data without a source of their own below the user's data folder
            ($SSLBENCH_DATA, else ./data): a folder or a manifest, with options behind a '?' if its format has them, or
            several joined by '+';
            `test_folder` holds the test part if that lies apart.
        test_folder: place of the test part below it, if that lies apart.
        test_classes: relation of the classes of test to those of train. 'same': the same names, all of them are scored;
            'subset': test has some of them, and only these can be predicted; 'numbers': test names the i-th of train's
            classes, sorted, by the number i.
        page: address of a page that describes and offers the data.
        samples: expected number of samples, {'train': 50000, 'test': 10000}.
        classes: expected number of classes; 0: any.
        metric: that leads, where it is not the protocol's usual one; empty: that.
        reference: published values.
        sha256: of the resolved content, 16 hex digits.
        modified: True when a file of the user's stands in for the shipped one of that name.
        place: name or file that it was loaded by.
    """

    name: str
    title: str
    version: int
    protocol: str
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: str = ""
    layers: tuple[str, ...] = ()
    preprocessing: dict[str, Any] = dataclasses.field(default_factory=dict)
    folder: str = ""
    test_folder: str = ""
    test_classes: Literal["same", "subset", "numbers"] = "same"
    page: str = ""
    samples: dict[str, int] = dataclasses.field(default_factory=dict)
    classes: int = 0
    metric: str = ""
    reference: tuple[Reference, ...] = ()
    sha256: str = ""
    modified: bool = False
    place: str = ""


def load_benchmark(name: str) -> Benchmark:
    """Load the benchmark of that name, or that YAML file."""
    file = names.find_file("benchmark", name)
    content = _read(file, name)
    root = paths.builtin_dir("benchmarks")
    shipped = root / f"{name}.yaml"
    is_shipped = shipped.is_file()
    if not is_shipped:
        shipped = root / name.rpartition("/")[0] / _EACH
        is_shipped = shipped.is_file() and (root / "data" / f"_{_data_set(name)}.yaml").is_file()
    # A user's file may shadow a shipped one: its numbers must not be taken for those of the shipped benchmark.
    modified = not is_shipped or (file.resolve() != shipped.resolve() and _read(shipped, name) != content)
    return identified(Benchmark, file, content, name=name.removesuffix(".yaml"), modified=modified, place=name)


def load_suite(name: str) -> tuple[str, ...]:
    """Return the names of the benchmarks in a suite (benchmarks/suites/NAME.yaml)."""
    file = names.find_file("suite", name)
    return build(_Suite, read_yaml(file), str(file)).benchmarks


@dataclasses.dataclass(frozen=True)
class _Suite:
    title: str
    benchmarks: tuple[str, ...]


def data_of(benchmark: Benchmark, data: str | None = None, test_data: str | None = None) -> tuple[str, str | None]:
    """Return the locations of train and test: the user's, else those that the benchmark names."""
    if data is not None:
        if benchmark.test_folder and test_data is None:
            raise UsageError(
                f"{benchmark.name} tests on data other than its training data", "Give --test-data as well as --data."
            )
        return data, test_data
    if benchmark.data:
        names.refuse_location(benchmark.data, f"the benchmark {benchmark.name}: data")
        return benchmark.data, test_data
    if not benchmark.folder:
        raise UsageError(f"{benchmark.name} needs --data: {benchmark.title}")
    root = paths.data_dir()
    parts = [name.split("+") for name in (benchmark.folder, benchmark.test_folder) if name]  # VOC2007 + VOC2012
    wanted = ["+".join(str(root / part) for part in names) for names in parts]
    places = sorted({part.partition("?")[0] for names in parts for part in names})
    if missing := [place for place in places if not (root / place).exists()]:
        holds = " and ".join(dict.fromkeys(Path(place).parts[0] for place in missing))
        looked = " and ".join(str((root / place).absolute()) for place in missing)
        where = f" The data are available at {benchmark.page}." if benchmark.page else ""
        where += " `sslbench data list` shows the ways to get it."
        raise UsageError(
            f"{benchmark.name} needs --data; looked for {looked}",
            f"Give --data (and --test-data), or set SSLBENCH_DATA to the folder that holds {holds}.{where}",
        )
    return wanted[0], test_data or (wanted[1] if benchmark.test_folder else None)


_MERGED = ("settings", "preprocessing")
_OF_PRESETS = ("settings", "layers", "preprocessing")  # taken from a preset that a benchmark extends


def source_text(name: str) -> tuple[Path, str]:
    """Return the file of a benchmark and its text; for a computed one the template, with the data set's name in it."""
    file = names.find_file("benchmark", name)
    text = file.read_bytes().decode("utf-8", "backslashreplace")
    return file, text.replace(_NAME, _data_set(name)) if file.name == _EACH else text


_EACH = "_each.yaml"
_NAME = "{name}"


def _data_set(name: str) -> str:
    return name.rpartition("/")[2]


def _read(file: Path, name: str, around: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return the content of a benchmark file; `extends: [NAME, ...]` takes what is not written here from those files.

    These may extend others. Of several bases the later ones win. In a template '{name}' stands for the data set.
    """
    content = read_yaml(file)
    given = content.pop("extends", [])
    given = [given] if isinstance(given, str) else given
    if file.name == _EACH:
        given = [base.replace(_NAME, _data_set(name)) for base in given]
    bases = []
    for base in given:
        found = next((p for root in paths.search_path("benchmarks") if (p := root / f"{base}.yaml").is_file()), None)
        if found is None:
            raise UsageError(f"{file}: extends '{base}', which does not exist")
        if found in (*around, file):
            raise UsageError(f"{file}: extends {found}, which extends this file in turn")
        extended = _read(found, base, (*around, file))
        if base.startswith("presets/"):
            extended = {key: value for key, value in extended.items() if key in _OF_PRESETS}
        bases.append(extended)
    merged: dict[str, Any] = {}
    for part in (*bases, content):
        # One level deep: a setting that is a mapping itself is replaced as a whole.
        both = {key: {**merged[key], **part[key]} for key in _MERGED if key in merged and key in part}
        merged |= part | both
    return merged
