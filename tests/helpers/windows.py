# ruff: noqa: PTH110, PTH113, PTH115, PTH123, PTH208
"""Windows as far as another system can show it; run as a program with one command per argument.

Modules, signals and functions that Windows lacks are taken away, processes are spawned, and files that are open in the
process or mapped into its memory cannot be renamed or removed. Needs /proc.
"""

import multiprocessing
import os
import shlex
import signal
import sys

for name in ("fcntl", "resource", "pwd", "grp", "termios", "syslog"):
    sys.modules[name] = None
for name in ("SIGUSR1", "SIGUSR2", "SIGHUP"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("fork", "posix_fallocate", "sched_getaffinity", "mkfifo", "setsid"):
    if hasattr(os, name):
        delattr(os, name)
multiprocessing.set_start_method("spawn", force=True)
multiprocessing.get_all_start_methods = lambda: ["spawn"]

_replace, _rename, _unlink = os.replace, os.rename, os.unlink


def _refuse_open(path):
    used = set()
    for handle in os.listdir("/proc/self/fd"):
        try:
            used.add(os.readlink(f"/proc/self/fd/{handle}"))
        except OSError:
            continue
    with open("/proc/self/maps") as maps:
        used |= {line.split(None, 5)[5].strip() for line in maps if line.count("/")}
    path = os.path.realpath(os.fspath(path))
    if path in used and os.path.isfile(path):
        raise PermissionError(13, "The process cannot access the file because it is being used", path)


def replace(source, target, **options):
    _refuse_open(source)
    _refuse_open(target)
    return _replace(source, target, **options)


def rename(source, target, **options):
    _refuse_open(source)
    if os.path.exists(target):
        raise FileExistsError(17, "Cannot create a file when that file already exists", os.fspath(target))
    return _rename(source, target, **options)


def unlink(path, *, dir_fd=None):
    if dir_fd is None:
        _refuse_open(path)
    return _unlink(path, dir_fd=dir_fd)


os.replace, os.rename, os.unlink, os.remove = replace, rename, unlink, unlink

if __name__ == "__main__":
    from sslbench.cli.main import main

    for command in sys.argv[1:]:
        try:
            main(shlex.split(command))
        except SystemExit as ended:
            if ended.code:
                sys.exit(f"{command}: exit code {ended.code}")
