"""Who may import whom: read from the source, so that functions and type checking count as well."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sslbench import protocols

ROOT = Path(__file__).resolve().parent.parent / "sslbench"

# A part is a module or package directly below sslbench; it imports from rows above its own, and from itself.
ROWS = (
    {"arithmetic", "arrays", "errors", "locks", "paths", "names", "text", "text_rows", "steps"},
    {
        "config",
        "preprocessing",
        "metrics",
        "targets",
        "results",
        "identity",
        "user_code",
        "library",
        "weights",
        "solvers",
    },
    {"distributed", "runtime"},
    {"data", "backbones"},
    {"features", "methods", "train"},
    {"protocols", "detection"},
    {"leaderboard", "evaluation", "pretraining", "show", "api", "__init__"},
    {"cli", "__main__"},
)
LEVEL = {part: level for level, parts in enumerate(ROWS) for part in parts}

# Within a row, the few steps that are wanted; without a cycle, which is checked too.
WITHIN_ROW = {
    "errors": {"text"},
    "locks": {"errors"},
    "paths": {"errors", "locks"},
    "names": {"errors", "paths"},
    "targets": {"metrics"},
    "results": {"config", "preprocessing", "metrics", "targets"},
    "identity": {"results"},
    "weights": {"config", "preprocessing"},
    "library": {"config"},
    "backbones": {"data"},
    "methods": {"train"},
    "runtime": {"distributed"},
    "evaluation": {"pretraining"},
    "show": {"evaluation"},
    "protocols": {"detection"},
    "api": {"evaluation", "leaderboard", "pretraining"},
    "__init__": {"api", "evaluation"},
    "__main__": {"cli"},
}

# Read by `--help`, completion and `import sslbench`, so they must load in a moment.
LIGHT = (
    "errors",
    "locks",
    "paths",
    "names",
    "text",
    "config",
    "preprocessing",
    "library",
    "results",
    "cli",
    "__init__",
)
HEAVY = {
    *("torch", "torchvision", "timm", "sklearn", "scipy", "pandas", "faiss", "kwcoco", "matplotlib", "hydra", "cv2"),
    *("numpy", "jinja2", "PIL"),
}
NUMPY_TOO = {"results"}  # arrays are in their signatures

# Imported inside functions: libraries that are slow to load, may be missing, or exist on some systems only.
HEAVY_OR_OPTIONAL = {
    *("torch", "torchvision", "timm", "sklearn", "scipy", "pandas", "faiss", "kwcoco", "kwimage", "delayed_image"),
    *("matplotlib", "hydra", "omegaconf", "cv2", "PIL", "jinja2", "rich", "yaml", "platformdirs", "pyarrow", "joblib"),
    *(
        "faster_coco_eval",
        "tifffile",
        "tensorflow_datasets",
        "huggingface_hub",
        "array_record",
        "fsspec",
        "threadpoolctl",
        "wandb",
        "mlflow",
        "trackio",
    ),
    *(
        "av",
        "submitit",
        "umap",
        "transformers",
        "open_clip",
        "detectron2",
        "h5py",
        "tensorboard",
        "zstandard",
        "fcntl",
        "resource",
        "psutil",
        "onnx",
        "onnxscript",
        "onnxruntime",
    ),
}


@functools.cache
def modules():
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 20
    return files


@functools.cache
def parsed(file):
    return ast.parse(file.read_text(encoding="utf-8"))


@functools.cache
def nodes_of(file):
    """All that stands in a module, walked once for all tests."""
    return list(ast.walk(parsed(file)))


@functools.cache
def import_nodes(file):
    """The import statements of a module, wherever in the file."""
    return [node for node in nodes_of(file) if isinstance(node, ast.Import | ast.ImportFrom)]


def part_of(file):
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def dotted(file):
    parts = ["sslbench", *file.relative_to(ROOT).with_suffix("").parts]
    return parts[:-1] if parts[-1] == "__init__" and len(parts) > 2 else parts


def imported(file, nodes=None):
    """The full names of what a module imports, wherever in the file; `from a import b` gives a and a.b."""
    package = dotted(file) if file.name == "__init__.py" else dotted(file)[:-1]
    if file == ROOT / "__init__.py":
        package = ["sslbench"]
    for node in nodes if nodes is not None else import_nodes(file):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def parts_imported(file):
    """The parts of sslbench that a module imports."""
    for name in imported(file):
        first, *rest = name.split(".")
        if first == "sslbench" and rest and rest[0] in LEVEL:
            yield rest[0]


def import_time(tree):
    """The statements that run when a module is imported: not in functions, not under `if TYPE_CHECKING`."""
    for node in tree.body if hasattr(tree, "body") else []:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from import_time(node)
        for branch in (*getattr(node, "handlers", ()), *getattr(node, "orelse", ()), *getattr(node, "finalbody", ())):
            yield branch
            yield from import_time(branch)


def test_every_part_has_its_place():
    found = {part_of(file) for file in modules()}
    assert found <= set(LEVEL), f"no row for {sorted(found - set(LEVEL))}: see DESIGN section 2"
    assert {"errors", "config", "results", "data", "features", "protocols", "leaderboard", "cli"} <= found
    assert "utils" not in {file.stem for file in modules()} | {file.parent.name for file in modules()}


def test_the_table_in_contributing_has_the_same_rows():
    rows = [set() for _ in ROWS]
    for line in (ROOT.parent / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines():
        if found := re.match(r"\| (\d) \| ([^|]+)\|", line):
            rows[int(found[1])] |= set(re.findall(r"`(\w+)`", found[2]))
    assert rows == list(ROWS)


def test_imports_point_upwards():
    wrong = [
        f"{file.relative_to(ROOT)} ({part_of(file)}, row {LEVEL[part_of(file)]}) imports {part} (row {LEVEL[part]})"
        for file in modules()
        for part in parts_imported(file)
        if part != part_of(file)
        and LEVEL[part] >= LEVEL[part_of(file)]
        and part not in WITHIN_ROW.get(part_of(file), ())
    ]
    assert wrong == []


def test_steps_within_a_row_have_no_cycle():
    done = set()
    while len(done) < len(WITHIN_ROW):
        ready = {
            part for part, needs in WITHIN_ROW.items() if part not in done and not (needs & set(WITHIN_ROW)) - done
        }
        assert ready, "a cycle"
        done |= ready
    assert all(LEVEL[part] == LEVEL[need] for part, needs in WITHIN_ROW.items() for need in needs)


@functools.cache
def by_name():
    """Each module's file, by the module's full name."""
    return {".".join(dotted(file)): file for file in modules()} | {"sslbench": ROOT / "__init__.py"}


def importing(file):
    """The modules of sslbench that a module imports, wherever in the file: packages by the module that they are."""
    for node in import_nodes(file):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sslbench"):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in by_name() else node.module


def circles(graph):
    """What cannot be put in an order: every one of them imports another one of them."""
    left = {name: set(needs) for name, needs in graph.items()}
    while ready := [name for name, needs in left.items() if not needs & set(left)]:
        for name in ready:
            del left[name]
    return sorted(left)


@pytest.mark.parametrize("depth", [2, 3, 4, 9], ids=["parts", "packages", "packages in packages", "modules"])
def test_no_circle_is_hidden_in_a_function_or_under_type_checking(depth):
    graph = {}
    for file in modules():
        name = ".".join(dotted(file)[:depth])
        needs = {".".join(other.split(".")[:depth]) for other in importing(file)}
        graph.setdefault(name, set()).update(needs - {name, "sslbench"})
    assert len(graph) > 15 and circles(graph) == []


def test_the_search_for_circles_finds_one():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]


@functools.cache
def loaded(name):
    """The heavy libraries that are loaded with a module of sslbench, by it or by what it imports."""
    heavy, seen, left = set(), set(), [name]
    while left:
        name = left.pop()
        while name not in by_name() and name.startswith("sslbench."):
            name = name.rpartition(".")[0]  # `from module import name`
        if name in seen:
            continue
        seen.add(name)
        if name in by_name():
            left += [*imported(by_name()[name], import_time(parsed(by_name()[name]))), name.rpartition(".")[0]]
        elif name.split(".")[0] in HEAVY:
            heavy.add(name.split(".")[0])
    return heavy


def hidden_imports(file):
    """The names that functions of a module import without need.

    Heavy and optional libraries are imported there, and modules of sslbench that would load a heavy library which the
    importing module does not load: `eval PROTOCOL --help` reads the protocol's module, and no torch. In `cli` a
    command's function imports what the command needs.
    """
    functions = [node for node in nodes_of(file) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    statements = {
        node.lineno: node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    for node in statements.values():
        name, *rest = imported(file, [node])
        top = name.split(".")[0]
        if top != "sslbench" and top not in HEAVY_OR_OPTIONAL and "results/sinks" not in file.as_posix():
            yield name
        elif top == "sslbench" and part_of(file) != "cli":
            here = loaded(".".join(dotted(file)))
            if all(loaded(each) <= here for each in rest or [name]):
                yield name


def test_imports_inside_functions_are_of_heavy_or_optional_libraries():
    found = [f"{file.relative_to(ROOT)}: {name}" for file in modules() for name in hidden_imports(file)]
    assert found == []


def test_the_search_for_heavy_libraries_follows_imports():
    assert loaded("sslbench.results") == {"numpy"}
    assert {"numpy", "scipy", "cv2"} <= loaded("sslbench.protocols.robustness")
    assert "torch" not in loaded("sslbench.protocols.linear")
    assert "torch" in loaded("sslbench.train.loop")


def test_modules_have_plain_names():
    """Parts that methods or protocols share lie in `_parts`, since every other name there is one of a thing."""
    private = [str(file.relative_to(ROOT)) for file in modules() if re.match(r"_(?!_)", file.name)]
    assert private == []


def test_nobody_imports_a_named_protocol_or_source():
    """But for `show`, which repeats the search of two protocols to draw what it found."""
    face = {f"sslbench.protocols.{name}" for name in protocols.__all__}
    drawn = ("sslbench.protocols.knn", "sslbench.protocols.segmentation_knn")
    wrong = [
        f"{file.relative_to(ROOT)} imports {name}"
        for file in modules()
        for name in imported(file)
        for package, own in (
            ("sslbench.protocols.", "sslbench/protocols/"),
            ("sslbench.data.formats.", "sslbench/data/"),  # export and the openers share parts of some formats
            ("sslbench.methods.", "sslbench/methods/"),
        )
        if name.startswith(package) and not name.removeprefix(package).startswith("_") and own not in file.as_posix()
        if name not in face and not (part_of(file) == "show" and name.startswith(drawn))
    ]
    assert wrong == []


def test_one_module_knows_torch_distributed():
    wrong = []
    for file in modules():
        if "distributed" not in file.read_text(encoding="utf-8"):
            continue
        used = {ast.unparse(node) for node in nodes_of(file) if isinstance(node, ast.Attribute)}
        names = {*imported(file), *used}
        if any(f"{name}.".startswith("torch.distributed.") for name in names) and part_of(file) != "distributed":
            wrong.append(str(file.relative_to(ROOT)))
    assert wrong == []


def test_only_the_command_line_knows_hydra_and_prints():
    """Recipes are read with Hydra too, for Python as for the command line; what leaves that module is plain."""
    wrong = []
    for file in modules():
        if part_of(file) in ("cli", "__main__"):
            continue
        called = [n.func for n in nodes_of(file) if isinstance(n, ast.Call)]
        plain = [f for f in called if getattr(f, "id", getattr(f, "attr", "")) in ("print", "exit")]
        prints = [f for f in plain if ast.unparse(f) in ("print", "sys.exit")]
        banned = ("click",) if file == ROOT / "library" / "recipes.py" else ("hydra", "omegaconf", "click")
        if prints or any(name.split(".")[0] in banned for name in imported(file)):
            wrong.append(str(file.relative_to(ROOT)))
    assert wrong == []


@pytest.mark.parametrize("part", LIGHT)
def test_light_modules_load_nothing_heavy(part):
    files = [file for file in modules() if part_of(file) == part]
    assert files
    for file in [*files, ROOT / "data" / "source.py"]:
        tree = parsed(file)
        tops = {name.split(".")[0] for name in imported(file, import_time(tree))}
        allowed = {"numpy"} if part in NUMPY_TOO or file.name == "source.py" else set()
        assert not (tops & HEAVY) - allowed, f"{file.relative_to(ROOT)} loads {sorted(tops & HEAVY)}"


def test_stored_features_are_evaluated_without_torchvision():
    """Its import takes two seconds, and only decoding needs it."""
    here = loaded("sslbench.cli.commands.eval.work")
    assert "torch" in here and not here & {"torchvision", "timm", "sklearn"}
    assert not loaded("sslbench.api") & {"timm", "sklearn"}


def test_importing_sslbench_is_light():
    code = "import sys, sslbench; print(sorted({'torch', 'numpy', 'hydra', 'timm'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_reader_of_imports_sees_them_all(tmp_path):
    """The guard is worth what it sees: every way to write an import counts."""
    text = (
        "import sslbench.cli.main as m\n"
        "from sslbench import api\n"
        "from . import board\n"
        "from ..data.source import Source\n"
        "def f():\n    from sslbench.train import loop\n"
        "if TYPE_CHECKING:\n    import torch.distributed as dist\n"
    )
    file = ROOT / "leaderboard" / "example.py"
    found = set(imported(file, ast.walk(ast.parse(text))))
    assert {
        *("sslbench.cli.main", "sslbench.api", "sslbench.leaderboard.board", "sslbench.data.source"),
        *("sslbench.train", "torch.distributed"),
    } <= found
    assert set(imported(file, import_time(ast.parse(text)))) == found - {
        *("sslbench.train", "sslbench.train.loop", "torch.distributed")
    }
