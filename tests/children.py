"""The child processes of a test."""

import multiprocessing


def decoding_processes():
    """Those that decode images; the processes that `two_processes` keeps for later tests are not daemons."""
    return [child for child in multiprocessing.active_children() if child.daemon]
