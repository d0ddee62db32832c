"""Presets: a protocol run the way a publication ran it, as YAML with its source (benchmarks/README.md)."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from sslbench import names, paths
from sslbench.config import build, read_yaml
from sslbench.errors import UsageError

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Preset:
    """A published way to run a protocol.

    Attributes:
        name: path below benchmarks/presets/, without suffix: 'knn/dino'.
        title: one line.
        source: the paper and section, or the file of the published code, that the values come from.
        published_for: the backbone that the values were published for, as `--backbone` takes it. Others may be
            evaluated; this one is what the preset is tested with.
        protocol: the protocol that runs it, as `sslbench list protocols` spells it. Usually the one that the folder is
            named after, but presets for training on images lie in linear/ too, and linear-online runs them.
        version: grows whenever numbers would change.
        settings: the protocol's settings that differ from its defaults.
        layers: layers that are evaluated; empty: the backbone's default.
        preprocessing: values of the image preprocessing that the publication fixes.
        selects_on_test: true if something is chosen on the test part, as the publication did; the settings say so too.
        sha256: of the content, 16 hex digits.
        modified: True when a file of the user's stands in for the shipped one of that name.
        place: name or file that it was loaded by.
    """

    name: str
    title: str
    source: str
    protocol: str
    published_for: str = ""
    version: int = 1
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    layers: tuple[str, ...] = ()
    preprocessing: dict[str, Any] = dataclasses.field(default_factory=dict)
    selects_on_test: bool = False
    sha256: str = ""
    modified: bool = False
    place: str = ""

    @property
    def family(self) -> str:
        """The protocol that a user names to get it: 'low-shot' for low_shot/vissl_voc07."""
        return family_of(self.name) or self.protocol


def family_of(name: str) -> str:
    """Return the protocol before the slash of a preset's name, as the command line spells it; '' without a slash."""
    return name.rpartition("/")[0].replace("_", "-")


def load_preset(name: str) -> Preset:
    """Load the preset 'knn/dino', or a YAML file; the user's folders of $SSLBENCH_PATH come first."""
    file = names.find_file("preset", as_file_name(name))
    content = read_yaml(file)
    stem = as_file_name(name).removesuffix(".yaml")
    shipped = paths.builtin_dir("benchmarks") / "presets" / f"{stem}.yaml"
    modified = shipped.is_file() and file.resolve() != shipped.resolve() and read_yaml(shipped) != content
    short = Path(name).stem if name.endswith(".yaml") else stem
    return identified(Preset, file, content, name=short, modified=modified, place=name)


def identified(kind: type[T], file: Path, content: dict[str, Any], *, name: str, modified: bool, place: str) -> T:
    """Return the preset or benchmark of a file's content, with its name, digest and origin."""
    for key in ("name", "sha256", "modified", "place"):
        if key in content:
            raise UsageError(f"{file}: remove the key '{key}', which follows from the file's path")
    # Of the resolved content: comments and order in the file change no number.
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]
    facts = {"name": name, "sha256": digest, "modified": modified, "place": place}
    return build(kind, {**names.without_code(content, str(file)), **facts}, str(file))


def find_presets(asked: Sequence[str], protocols: Sequence[str]) -> list[Preset]:
    """Return the presets asked for: 'knn/dino', a YAML file, or 'dino' for each protocol that has one."""
    known = names.list_names("preset")
    found: dict[str, Preset] = {}
    for name in asked:
        full = [name] if "/" in name or name.endswith(".yaml") else _of_protocols(name, protocols, known)
        for each in full:
            preset = load_preset(each)
            if protocols and not {preset.family, preset.protocol} & set(protocols):
                raise UsageError(
                    f"the preset {preset.name} is for {preset.family}, which is not among the protocols named: "
                    + ", ".join(protocols),
                    f"Name {preset.family} too, or give only --preset {name}.",
                )
            found.setdefault(preset.name, preset)
    return list(found.values())


def _of_protocols(name: str, protocols: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the full names of a bare one."""
    alike = [full for full in known if full.rpartition("/")[2] == name]
    if not protocols:
        which = ", ".join(alike) if alike else names.did_you_mean(name, known)
        raise UsageError(f"--preset {name} exists for several protocols", f"Write it as PROTOCOL/NAME: {which}")
    found = [full for full in alike if family_of(full) in protocols]
    # A protocol may run presets from another's folder: `eval linear-online --preset moco`.
    found += [full for full in alike if full not in found and load_preset(full).protocol in protocols]
    if not found:
        own = [full for full in known if family_of(full) in protocols]
        bare = [full.rpartition("/")[2] for full in own]
        none = "There are none; published recipes are benchmarks: --benchmark NAME (sslbench list benchmarks)."
        remedy = names.did_you_mean(name, bare) if bare else none
        raise UsageError(f"{' and '.join(protocols)}: no preset '{name}'", remedy)
    return found


def as_file_name(name: str) -> str:
    """'low-shot/vissl_voc07' is the file low_shot/vissl_voc07.yaml; a path to a file stays as it is."""
    if name.endswith(".yaml"):
        return name
    folder, slash, last = name.rpartition("/")
    return folder.replace("-", "_") + slash + last
