"""Damaged weights files, and such as were made to harm whatever reads them."""

import functools
import io
import json
import random
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hostile.campaign import Case
from hostile.text_cases import mutated
from safetensors.torch import save as save_safetensors
from torch import Tensor
from weights.hostile_pickles import attacks, built, in_legacy, in_zip

from sslbench.backbones.build import build

WIDTH = "resnet18w0.25"
NAMES = ("os.system", "builtins.eval", "builtins.exec", "subprocess.Popen", "pathlib.Path.write_text", "runpy.run_path")
COMMANDS = {
    "inspect": lambda name: ["inspect", name],
    "convert": lambda name: ["convert", name, "out.safetensors", "--to", "torchvision"],
    "diff": lambda name: ["diff", name, name],
}


def tensors() -> dict[str, Tensor]:
    """Return the state dict of a small ResNet."""
    return dict(_tensors())


@functools.cache
def _tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return build(WIDTH).module.state_dict()


def torch_file(content: Any, *, zipped: bool = True) -> bytes:
    """Return the bytes of a file of torch.save."""
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=zipped)
    return file.getvalue()


def own(**changes: Any) -> bytes:
    """Return sslbench's own file with some of its fields replaced."""
    content = {"format": "sslbench", "version": 1, "backbone": WIDTH, "state_dict": tensors(), "metadata": {}}
    return torch_file(content | changes)


def npz(arrays: dict[str, Any]) -> bytes:
    """Return the bytes of an archive of arrays."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def whole_files() -> dict[str, bytes]:
    """Return one sound file of every container."""
    state = tensors()
    return {
        "zip.pth": torch_file({"state_dict": state}),
        "legacy.pth": torch_file(state, zipped=False),
        "own.torch": own(),
        "w.safetensors": save_safetensors(state),
        "arrays.npz": npz({name: value.numpy() for name, value in state.items()}),
    }


def safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """Return a file with this header, which may be text already."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors_headers() -> dict[str, bytes]:
    """Return headers that ask for more than there is, or are no header."""

    def one(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, object]:
        return {"conv1.weight": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}

    eight = bytes(8)
    return {
        "length of 2^63": safetensors(one(), eight, length=1 << 63),
        "length of 1 GB": safetensors(one(), eight, length=1 << 30),
        "length beyond the file": safetensors(one(), eight, length=1 << 20),
        "no length": b"\x01",
        "100 MB of blanks": safetensors(b" " * 100_000_001, eight),
        "deep": safetensors(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
        "no JSON": safetensors(b"\xff" * 100),
        "list": safetensors([]),
        "many digits": safetensors(b'{"a": ' + b"9" * 5000 + b"}"),
        "offsets beyond": safetensors(one(offsets=(0, 1 << 60)), eight),
        "offsets reversed": safetensors(one(offsets=(8, 0)), eight),
        "offsets negative": safetensors(one(offsets=(-8, 0)), eight),
        "huge shape": safetensors(one(shape=(1 << 62, 1 << 62)), eight),
        "shape that wraps to 8 bytes": safetensors(one(shape=(1 << 33, 1 << 31)), eight),
        "shape of nothing": safetensors(one(shape=(0, 1 << 62), offsets=(0, 0))),
        "shape is text": safetensors(one(shape="x"), eight),
        "unknown dtype": safetensors(one(dtype="X9"), eight),
        "same name twice": safetensors(json.dumps(one())[:-1].encode() + b"," + json.dumps(one())[1:].encode(), eight),
        "overlap": safetensors(one() | {"b": one()["conv1.weight"]}, eight),
        "metadata is a list": safetensors({"__metadata__": [1], **one()}, eight),
        "metadata is deep": safetensors({"__metadata__": {"a": {"b": {}}}, **one()}, eight),
        "20,000 tensors": safetensors(
            {f"a.{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(20_000)}
        ),
    }


def odd_contents() -> dict[str, bytes]:
    """Return files that are sound, with contents that no network has."""
    state = tensors()
    first = next(iter(state))
    shapes: dict[str, Any] = {
        "one value expanded to terabytes": torch.zeros(1).expand(1 << 20, 1 << 20),
        "no value, huge shape": torch.zeros(0).reshape(0, 1).expand(0, 1 << 40),
        "scalar": torch.tensor(1.0),
        "7 dimensions": torch.zeros(1, 1, 1, 1, 1, 1, 1),
        "complex": torch.zeros(16, 3, 7, 7, dtype=torch.complex64),
        "bool": torch.zeros(16, 3, 7, 7, dtype=torch.bool),
        "integers": torch.zeros(16, 3, 7, 7, dtype=torch.int64),
        "half": torch.zeros(16, 3, 7, 7, dtype=torch.float16),
        "bfloat16": torch.zeros(16, 3, 7, 7, dtype=torch.bfloat16),
        "NaN": torch.full((16, 3, 7, 7), float("nan")),
        "sparse": torch.zeros(16, 3).to_sparse(),
        "text": "x",
        "None": None,
        "list": [[[]]],
        "list of itself": _itself(),
        "huge number": 10**6000,
    }
    names = (
        "\x1b[31mred",
        "\x1b]0;owned\x07",
        "a\ud800",
        "",
        "a\nb",
        "a" * 1_000_000,
        "\u202e",
        "../../x",
        "[bold]",
        5,
    )
    found = {f"first tensor is {name}": torch_file(state | {first: value}) for name, value in shapes.items()}
    found |= {f"tensor named {str(name)[:20]!r}": torch_file({**state, name: state[first]}) for name in names}
    found |= {f"all below {str(name)[:20]!r}": torch_file({name: state}) for name in names}
    fields: dict[str, dict[str, Any]] = {
        "backbone": {"code": "os:abort", "command": "my:net", "file": "timm:resnet18,checkpoint_path=/etc/hostname"},
        "state_dict": {"text": "x", "none": None, "list": [1], "itself": _itself()},
        "version": {"text": "x", "huge": 10**5000, "later": 99},
        "format": {"checkpoint": "sslbench checkpoint", "list": [], "none": None},
        "metadata": {
            "decoder": {"preprocessing": json.dumps({"decoder": "os:abort"})},
            "list": [1],
            "huge": {"preprocessing": json.dumps({"resize": 10**9, "crop": [10**9, 10**9]})},
            "escape": {"method": "\x1b[2J", "data": "\x1b]0;x\x07"},
        },
    }
    fields["backbone"] |= {"large": "resnet50w64", "none": None, "number": 5, "list": ["a"], "escape": "\x1b[2J"}
    return found | {f"{key}: {name}": own(**{key: value}) for key, odd in fields.items() for name, value in odd.items()}


def _itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def globals_named() -> Iterator[tuple[str, bytes]]:
    """Yield pickles that call a function which would leave a file 'ran'."""
    for full in NAMES:
        pickled = built(lambda writer, full=full: writer.call(full, "open('ran', 'w')"))
        for where, content in {"bare": pickled, "zip": in_zip(pickled), "legacy": in_legacy(pickled)}.items():
            yield f"{full} in a {where} pickle", content


def weights_cases(seed: int = 0, n: int = 0) -> Iterator[Case]:
    """Yield damaged files of every container, and files made to harm; `n`: mutations of each container."""
    draw = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that sparse tensors are experimental
        odd = odd_contents()
    files = {f"{name}.pth": content for name, content in (odd | attacks() | dict(globals_named())).items()}
    files |= {f"header: {name}.safetensors": content for name, content in safetensors_headers().items()}
    for name, whole in whole_files().items():
        files[f"sound {name}"] = whole
        for part in (0, 0.001, 0.01, 0.5, 0.99, 0.9999):
            files[f"cut at {part} {name}"] = whole[: int(part * len(whole))]
        files[f"twice {name}"] = whole + whole
        files[f"zeros inside {name}"] = whole[:1000] + bytes(1000) + whole[2000:]
        for i in range(n + 2):
            files[f"flipped {i} {name}"] = flipped(whole, draw)
            head = draw.choice((2000, len(whole)))
            files[f"mutation {i} {name}"] = mutated(whole[:head], draw) + whole[head:]
    for i, (name, content) in enumerate(files.items()):
        for way in COMMANDS if name.startswith("sound") else (tuple(COMMANDS)[i % len(COMMANDS)],):
            yield f"{way}: {name}", _file(f"w.{name.rpartition('.')[2]}", content, COMMANDS[way])
    for name in ("backbone: code", "metadata: decoder", "metadata: huge", "first tensor is NaN", "backbone: large"):
        yield f"eval: {name}", _file("w.torch", odd[name], lambda file: ["eval", "knn", "--weights", file, "k=1"])


def flipped(content: bytes, draw: random.Random) -> bytes:
    """Return the bytes with a few bits changed, half of them near an end, where the structure lies."""
    out = bytearray(content)
    for _ in range(draw.randint(1, 20)):
        edge = min(4000, len(out))
        at = draw.choice((draw.randrange(len(out)), draw.randrange(edge), len(out) - 1 - draw.randrange(edge)))
        out[at] ^= 1 << draw.randrange(8)
    return bytes(out)


def _file(name: str, content: bytes, command: Callable[[str], list[str]]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / name).write_bytes(content)
        return command(name)

    return write
