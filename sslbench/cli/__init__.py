"""Command line; no other package prints or knows about flags and progress bars."""

import signal
import sys
from pathlib import Path

STARTED_AS_COMMAND = Path(sys.argv[0]).stem in ("sslbench", "__main__")

if STARTED_AS_COMMAND and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports before `main` prints no traceback
