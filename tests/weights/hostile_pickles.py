"""Pickles made to harm whatever reads them; run as a script, it reads them all in this process.

`python hostile_pickles.py` reads those of `attacks`; with SEED COUNT then random ones, a line before each, so that the
last line names the one that killed it.
"""

import io
import pickle
import random
import resource
import signal
import struct
import sys
import tempfile
import zipfile
from pathlib import Path

MEMORY = 1 << 30
_MEMO = struct.pack("<I", 1000)  # above those that pickle itself uses for a value
NAMES = (
    *("numpy.dtype", "numpy.ndarray", "numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar"),
    *("numpy._core.numeric._frombuffer", "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v2"),
    *("torch._utils._rebuild_tensor_v3", "torch._utils._rebuild_parameter", "torch._utils._rebuild_qtensor"),
    *("torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_nested_tensor", "torch.Size", "torch.device"),
    *("torch._tensor._rebuild_from_type_v2", "torch._utils._rebuild_meta_tensor_no_storage", "torch.float32"),
    *("torch.FloatStorage", "torch.LongStorage", "torch.QInt8Storage", "torch.storage.UntypedStorage"),
    *("collections.OrderedDict", "collections.Counter", "collections.deque", "collections.defaultdict"),
    *("copyreg._reconstructor", "_codecs.encode", "argparse.Namespace", "vissl.AttrDict", "builtins.object"),
    *("builtins.list", "builtins.set", "builtins.frozenset", "builtins.dict", "builtins.str", "builtins.int"),
    *("dill._dill._create_array", "dill._dill._create_dtypemeta", "dill._dill._create_namedtuple"),
    *("haiku._src.data_structures.FlatMapping", "numpy.float32", "__torch__.M", "torch.jit._pickle.build_intlist"),
    *("torch.nn.modules.linear.Linear", "omegaconf.dictconfig.DictConfig", "torch.serialization._get_layout"),
)
TEXTS = ("f4", "O8", "U7", "V16", "|O", "<i8", "<", ">", "|", "latin1", "0", "storage", "cpu", "a", "\ud800", "")
NUMBERS = (0, 1, -1, 2, 3, 4, 7, 8, 63, 255, -8, 1 << 20, 1 << 31, (1 << 62) - 1, 1 << 63, -(1 << 63), 1 << 70)


class Writer:
    """A pickle, opcode by opcode."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.out = io.BytesIO()
        self.memo = 0

    def op(self, code, data=b""):
        self.out.write(code + data)

    def value(self, value):
        """Any plain value, as pickle writes it, without its frame."""
        if isinstance(value, tuple):
            self.op(b"(")
            for entry in value:
                self.value(entry)
            self.op(b"t")
        elif isinstance(value, Ask):
            value.write(self)
        else:
            data = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else None
            self.op(*((b"X", struct.pack("<I", len(data)) + data) if data is not None else (plain(value),)))

    def name(self, full):
        module, _, name = full.rpartition(".")
        self.op(b"c", f"{module}\n{name}\n".encode())

    def call(self, full, *args, state=None):
        self.name(full)
        self.value(args)
        self.op(b"R")
        if state is not None:
            self.value(state)
            self.op(b"b")

    def anything(self, depth=0):
        """A random value, often of a shape that a constructor expects."""
        choose = self.random
        kind = choose.randrange(9 if depth < 4 else 4)
        if kind == 0:
            self.value(choose.choice(NUMBERS))
        elif kind == 1:
            self.value(choose.choice(TEXTS))
        elif kind == 2:
            self.value(choose.choice((None, True, b"", b"\x00" * 8, b"\xff" * 64)))
        elif kind == 3:
            self.name(choose.choice(NAMES))
        elif kind == 4:
            self.op(b"(")
            for _ in range(choose.randrange(6)):
                self.anything(depth + 1)
            self.op(choose.choice((b"t", b"l")))
        elif kind == 5:
            self.dtype()
        elif kind == 6:
            self.array(depth)
        elif kind == 7:
            self.tensor(depth)
        else:
            self.name(choose.choice(NAMES))
            self.op(b"(")
            for _ in range(choose.randrange(6)):
                self.anything(depth + 1)
            self.op(b"t" + choose.choice((b"R", b"\x81")))
        if depth < 4 and choose.random() < 0.3:
            self.act(depth)

    def act(self, depth):
        """Something that a pickle may do to what lies on top of the stack."""
        kind = self.random.randrange(5)
        if kind == 0:
            self.anything(depth + 1)
            self.op(b"b")
        elif kind == 1:
            self.anything(depth + 1)
            self.op(b"a")
        elif kind == 2:
            self.anything(depth + 1)
            self.anything(depth + 1)
            self.op(b"s")
        elif kind == 3:
            self.op(b"r", struct.pack("<I", self.memo))
            self.memo += 1
        elif self.memo:
            self.op(b"0j", struct.pack("<I", self.random.randrange(self.memo)))

    def some(self, usual):
        """The usual value, or now and then another one."""
        if self.random.random() < 0.2:
            self.anything(3)
        else:
            self.value(usual)

    def dtype(self):
        choose = self.random
        self.name("numpy.dtype")
        self.value((choose.choice(("f4", "O8", "V8", "U7", "i8", "b1")), False, True))
        self.op(b"R(")
        fields = {"a": (b"", 0)}
        size = choose.choice((-1, -1, 4, 1 << 40))
        for usual in (3, choose.choice("<>|"), None, choose.choice((None, ("a",))), choose.choice((None, fields))):
            self.some(usual)
        for usual in (size, choose.choice((-1, 64)), choose.choice((0, 63, 255))):
            self.some(usual)
        self.op(b"tb")

    def array(self, depth):
        choose = self.random
        self.call("numpy.core.multiarray._reconstruct", Ask("numpy.ndarray"), (0,), b"b")
        self.op(b"(")
        self.some(1)
        self.some(choose.choice(((2,), (1 << 40,), (-1, -2), (2, 1))))
        if choose.random() < 0.5:
            self.dtype()
        else:
            self.call("numpy.dtype", "f4", False, True, state=(3, "<", None, None, None, -1, -1, 0))
        self.some(False)
        if choose.random() < 0.3:
            self.anything(depth + 1)
        else:
            self.value(b"\x00" * choose.choice((8, 16, 64)))
        self.op(b"tb")

    def tensor(self, depth):
        choose = self.random
        self.name(choose.choice(("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor")))
        self.op(b"((")
        self.some("storage")
        self.name(choose.choice(("torch.FloatStorage", "torch.LongStorage", "torch.HalfStorage")))
        self.some("0")
        self.some("cpu")
        self.some(choose.choice((16, 8, 1 << 20, 1 << 50)))
        self.op(b"tQ")
        self.some(choose.choice((0, 4, 1 << 40)))
        self.some(choose.choice(((2, 3), (1 << 40,), (4, 1 << 30), (0, 5))))
        self.some(choose.choice(((3, 1), (1,), (0, 0), (1 << 60, 1))))
        if choose.random() < 0.5:
            self.value((False, None))
            self.op(b"00" if choose.random() < 0.01 else b"0")
        self.op(b"tR")


def address(value=0x4141414141414141):
    """A structured dtype that says it holds no objects, and a scalar of it whose bytes are the address of one."""
    writer = Writer(0)
    writer.op(b"\x80\x02}")
    writer.value("w")
    writer.name("numpy.core.multiarray.scalar")
    writer.op(b"(")
    writer.call("numpy.dtype", "V8", False, True)
    writer.op(b"(")
    for value_ in (3, "|", None, ("a",)):
        writer.value(value_)
    writer.op(b"}")
    writer.value("a")
    writer.op(b"(")
    writer.call("numpy.dtype", "O8", False, True)
    writer.value(0)
    writer.op(b"ts")
    for value_ in (8, 1, 0):
        writer.value(value_)
    writer.op(b"tb")
    writer.value(struct.pack("<Q", value))
    writer.op(b"tRs.")
    return writer.out.getvalue()


class Ask:
    """A name where a value stands."""

    def __init__(self, full):
        self.full = full

    def write(self, writer):
        writer.name(self.full)


def plain(value):
    """The opcodes of a plain value."""
    return pickle.dumps(value, 2)[2:-1]


def random_pickle(seed):
    """A dict of a few random values."""
    writer = Writer(seed)
    writer.op(b"\x80\x02}(")
    for number in range(writer.random.randrange(1, 5)):
        writer.value(f"w{number}")
        writer.anything()
    writer.op(b"u.")
    return writer.out.getvalue()


def in_zip(pickled, storage=b"\x01" * 64):
    """As torch.save and torch.jit.save write it."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickled)
        file.writestr("archive/version", "3\n")
        file.writestr("archive/byteorder", "little")
        file.writestr("archive/data/0", storage)
    return archive.getvalue()


def in_legacy(pickled, storage=b"\x01" * 64):
    """As torch.save wrote it before 1.6."""
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)
    head += pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, 2)
    return head + pickled + pickle.dumps(["0"], 2) + struct.pack("<q", len(storage) // 4) + storage


CONTAINERS = (in_zip, in_legacy, lambda pickled: pickled)


def built(write):
    """A pickle whose steps a function writes, in a dict under 'w'."""
    writer = Writer(0)
    writer.op(b"\x80\x02}")
    writer.value("w")
    write(writer)
    writer.op(b"s.")
    return writer.out.getvalue()


def repeated(function, *, times=20_000):
    """The same megabyte, made again and again by a call that is allowed."""

    def write(writer):
        writer.op(b"(")
        writer.value("x" * 1_000_000)
        writer.op(b"r", _MEMO)
        for _ in range(times):
            writer.name(function)
            writer.op(b"j", _MEMO + b"\x85R")
        writer.op(b"l")

    return built(write)


def array_again(times=20_000):
    """As many arrays on the same bytes."""

    def write(writer):
        writer.op(b"}(")
        writer.value(0)
        writer.value(b"\x00" * 1_000_000)
        writer.op(b"r", _MEMO)
        for number in range(1, times):
            writer.value(number)
            writer.call("numpy.core.multiarray._reconstruct", Ask("numpy.ndarray"), (0,), b"b")
            writer.op(b"(")
            writer.value(1)
            writer.value((1_000_000,))
            writer.call("numpy.dtype", "i1", False, True)
            writer.value(False)
            writer.op(b"j", _MEMO + b"tb")
        writer.op(b"u")

    return built(write)


def tensor(count, shape, stride, *, stand_in=True):
    """A tensor on storage '0', which says it has `count` values; an unknown class keeps torch's own reader out."""

    def write(writer):
        if stand_in:
            writer.op(b"cevil\nThing\n0")
        writer.name("torch._utils._rebuild_tensor_v2")
        writer.op(b"((")
        writer.value("storage")
        writer.name("torch.FloatStorage")
        for value in ("0", "cpu", count):
            writer.value(value)
        writer.op(b"tQ")
        for value in (0, shape, stride, False, None):
            writer.value(value)
        writer.op(b"tR")

    return built(write)


def doubled(writer, open_, close):
    """A container that holds the one before twice, 60 times over: 2^60 entries, in a few hundred bytes."""
    writer.value(("a",))
    for _ in range(60):
        writer.op(b"r", _MEMO)
        writer.op(b"0" + open_ + b"j" + _MEMO + b"j" + _MEMO + close)


def key_of_tuples(writer):
    """A dict whose key is such a tuple, which Python would hash."""
    writer.op(b"}")
    doubled(writer, b"(", b"t")
    writer.op(b"Ns")


def set_of_tuples(writer):
    """A set of one such tuple."""
    writer.op(b"\x8f(")
    doubled(writer, b"(", b"t")
    writer.op(b"\x90")


def deflated(size):
    """A small archive that unpacks to `size` bytes."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file, file.open("archive/data.pkl", "w") as member:
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return archive.getvalue()


def attacks():
    """Name -> a file, each of which killed, filled or stopped a reader of pickles."""
    ordered = built(lambda w: w.call("collections.OrderedDict", state=None))
    ordered = ordered[:-2] + b"}X\x05\x00\x00\x00itemsK\x01sbs."
    return {
        "scalar with an address": address(),
        "scalar with an address, in a zip": in_zip(address()),
        "storage longer than its member": in_zip(tensor(1 << 20, (1 << 20,), (1,))),
        "storage longer than its member, without stand-in": in_zip(tensor(1 << 20, (1 << 20,), (1,), stand_in=False)),
        "storage longer than the file, legacy": in_legacy(tensor(1 << 40, (2,), (1,))),
        "one value expanded": in_zip(tensor(16, (1 << 20, 1 << 20), (0, 0))),
        "tensor beyond its storage": in_zip(tensor(16, (1 << 40,), (1,))),
        "lists again and again": repeated("builtins.list"),
        "bytes again and again": repeated("_codecs.encode"),
        "arrays again and again": array_again(),
        "key of 2^60 tuples": built(key_of_tuples),
        "value of 2^60 lists": built(lambda w: doubled(w, b"(", b"l")),
        "set of 2^60 tuples": built(set_of_tuples),
        "number of 6,000 digits": built(lambda w: w.op(b"\x8b" + struct.pack("<i", 2500) + b"\x01" * 2500)),
        "items is an attribute": ordered,
        "archive that unpacks to a gigabyte": deflated(1 << 30),
        "extension": built(lambda w: w.op(b"\x82\x01")),
        "half a character": b"\x80\x02}" + b"X\x03\x00\x00\x00\xed\xa0\x80" + b"K\x01s.",
    }


def limited():
    """Give this process one gigabyte more than it has."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))


def outcome(path):
    """'refused: why' or 'read'; every tensor that came out is used."""
    import torch

    from sslbench.errors import WeightsError
    from sslbench.weights.reading.files import read

    try:
        content = read(path).content
    except WeightsError as error:
        return f"refused: {error.message}"
    for key, value in content.items():
        f"{key} {value}".encode()
        if isinstance(value, torch.Tensor):
            value.clone().sum()
    return "read"


def read_random(path, first, count):
    """Read so many random files, and say what became of them."""
    found = []
    for seed in range(first, first + count):
        path.write_bytes(CONTAINERS[seed % len(CONTAINERS)](random_pickle(seed)))
        print(seed, flush=True)  # noqa: T201
        found.append(outcome(path))
    print(f"{found.count('read')} read, {len(found) - found.count('read')} refused")  # noqa: T201


def read_attacks(path):
    """Read every one of `attacks`, a line each."""
    for name, content in attacks().items():
        path.write_bytes(content)
        signal.setitimer(signal.ITIMER_PROF, 20)  # of processor time
        print(name, end=": ", flush=True)  # noqa: T201
        print(outcome(path).replace(str(path), "w.pth"), flush=True)  # noqa: T201
        signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    import torch  # noqa: F401 - its memory is not counted

    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "w.pth"
        limited()
        read_attacks(weights)
        if sys.argv[1:]:
            read_random(weights, int(sys.argv[1]), int(sys.argv[2]))
