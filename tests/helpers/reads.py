"""Files and environment variables that sslbench reads while a block runs: a run may read nothing but its inputs."""

import contextlib
import os
import sys
import sysconfig
from pathlib import Path

import sslbench

OWN = str(Path(sslbench.__file__).parent)
# Processes, devices and locks, on which no number depends.
OF_THE_MACHINE = tuple(f"{OWN}/{part}" for part in ("distributed/", "runtime/", "train/lock.py"))
LIBRARIES = (sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), "/proc", "/sys", "/dev", "/usr/share")
# The file of decoded samples that a training writes for itself: where it lies and how large it may be.
KEPT, KEPT_SETTINGS = "/.decoded-samples.", ("$SSLBENCH_CACHE ", "$SSLBENCH_DECODED_CACHE ")
_seen = []  # sets of running blocks; a hook of the interpreter stays for good


def _hook(event, args):
    if event != "open" or not _seen or not isinstance(args[0], str | bytes | os.PathLike):
        return
    path = str(Path(os.fsdecode(args[0])).absolute())
    writes = isinstance(args[1], str) and set(args[1]) & set("wax")
    # Compiled modules are written under passing names; versions of libraries are looked for in all places of modules.
    code = path.endswith((".py", ".so")) or "/__pycache__/" in path or path in sys.path
    if not writes and not code and not path.startswith(LIBRARIES):
        _seen[-1].add(path)


sys.addaudithook(_hook)


@contextlib.contextmanager
def reads(*allowed):
    """Yield the set of files outside the allowed folders, and of variables that code of sslbench asks for."""
    found, files, environ = set(), set(), type(os.environ)
    original = environ.__getitem__

    def asked(self, key):
        frame = sys._getframe(1)
        while (file := frame.f_code.co_filename).endswith(("os.py", "_collections_abc.py")) or "<frozen" in file:
            frame = frame.f_back
        if file.startswith(OWN) and not file.startswith(OF_THE_MACHINE):
            found.add(f"${key} in {file}")
        return original(self, key)

    environ.__getitem__ = asked
    _seen.append(files)
    try:
        yield found
    finally:
        _seen.remove(files)
        environ.__getitem__ = original
        found -= {name for name in found if name.startswith(KEPT_SETTINGS)}
        folders = tuple(str(folder) for folder in allowed)
        found |= {path for path in files if KEPT not in path and not path.startswith(folders)}
