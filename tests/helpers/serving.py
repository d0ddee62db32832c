"""A server of a folder, in this process, whose requests are counted and that can be told to misbehave."""

import collections
import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


class Served:
    """What runs.

    Attributes:
        address: of the folder.
        requests: 'GET /name' -> how often.
        breaks: names whose transfers stop after half of their bytes -> how many more of them do.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.requests: collections.Counter[str] = collections.Counter()
        self.breaks: collections.Counter[str] = collections.Counter()

    def fetched(self) -> dict[str, int]:
        """Name -> how often it was asked for."""
        return {key.removeprefix("GET /"): n for key, n in sorted(self.requests.items()) if key.startswith("GET ")}


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Served]:
    folder.mkdir(exist_ok=True)
    served: Served

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *_: object) -> None:
            served.requests[f"{self.command} {self.path}"] += 1

        def copyfile(self, source: object, outputfile: object) -> None:
            name = self.path.removeprefix("/")
            if served.breaks[name] > 0:
                served.breaks[name] -= 1
                content = (folder / name).read_bytes()
                self.wfile.write(content[: len(content) // 2])
            else:
                super().copyfile(source, outputfile)  # type: ignore[arg-type, type-var]

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        served = Served(f"http://127.0.0.1:{running.server_port}")
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield served
        finally:
            running.shutdown()
            thread.join()
