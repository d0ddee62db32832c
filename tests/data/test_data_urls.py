"""Servers that misbehave, and URLs that are none, end in one message."""

import contextlib
import socket
import threading

import pytest

from sslbench.data import remote
from sslbench.data.remote import urls
from sslbench.errors import SslbenchError, UsageError


@contextlib.contextmanager
def answering(answer):
    """The address of a server that calls `answer(first line of the request, connection)`."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.05)
        over = threading.Event()

        def one(connection):
            with connection, contextlib.suppress(OSError):
                request = connection.recv(65536)
                answer(request.split(b"\r\n")[0].decode(), connection)

        def serve():
            while not over.is_set():
                with contextlib.suppress(TimeoutError):
                    threading.Thread(target=one, args=(listening.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            thread.join()


def test_what_is_no_url_is_refused_with_the_url():
    for url in (
        "http://a b/x.tar",
        "http://host/%00.tar",
        "http://[::1/x.tar",
        "http://host:port/x.tar",
        "http://host\n/x.tar",
    ):
        with pytest.raises(UsageError, match="not a URL"):
            remote.local_copies([url])


@pytest.mark.parametrize(
    "sent",
    [
        b"what?\r\n\r\n",
        b"HTTP/1.1 9999 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x" * 100_000,
        b"HTTP/1.1 301 Moved\r\nLocation: http://[::1\r\n\r\n",
        b"HTTP/1.1 301 Moved\r\nLocation: file:///etc/hostname\r\n\r\n",
        b"",
    ],
    ids=lambda sent: repr(sent[:40]),
)
def test_an_answer_that_is_none_is_one_message(sent, monkeypatch):
    monkeypatch.setattr(remote, "PAUSES_S", ())
    with answering(lambda _, connection: connection.sendall(sent)) as address, pytest.raises(SslbenchError) as raised:
        remote.local_copies([f"{address}/x.tar"])
    assert f"{address}/x.tar" in raised.value.message


def test_a_url_that_is_signed_for_get_alone_is_read(tmp_path):
    content = b"x" * 1000

    def answer(line, connection):
        if line.startswith("HEAD"):
            connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
        else:
            connection.sendall(b"HTTP/1.1 200 OK\r\nETag: one\r\nContent-Length: 1000\r\n\r\n" + content)

    with answering(answer) as address:
        copies = remote.local_copies([f"{address}/x.zip?signature=abc"])
        assert copies[0].read_bytes() == content


def test_the_size_behind_a_range_is_that_of_the_whole():
    def answer(line, connection):
        if line.startswith("HEAD"):
            connection.sendall(b"HTTP/1.1 405 No\r\nContent-Length: 0\r\n\r\n")
        else:
            head = b"HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-0/1234\r\nContent-Length: 1\r\n\r\n"
            connection.sendall(head + b"x")

    with answering(answer) as address:
        assert urls.described(f"{address}/x.zip").size == 1234
