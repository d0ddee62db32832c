"""Downloads, addresses of data, and secrets in them."""

import contextlib
import gzip
import hashlib
import importlib.util
import io
import logging
import socket
import struct
import sys
import tarfile
import threading
import types
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torchvision.datasets
from click.testing import CliRunner
from helpers.serving import serving
from PIL import Image

from sslbench import paths
from sslbench.cli.commands.data import command
from sslbench.cli.commands.eval.check import expand
from sslbench.data import catalog, remote
from sslbench.data.catalog import CatalogEntry
from sslbench.data.formats import torchvision as torchvision_sets
from sslbench.data.formats.torchvision import all_sets
from sslbench.data.location import locate
from sslbench.data.open import open_data
from sslbench.data.prepare.download import downloads, find_download, states
from sslbench.data.remote import urls
from sslbench.errors import DataError, SslbenchError, UsageError
from sslbench.library.benchmarks import load_benchmark
from sslbench.names import list_names
from sslbench.results import plain
from sslbench.text import csv_text, visible, without_secrets
from sslbench.weights.save import own_content


def run(*arguments):
    result = CliRunner().invoke(command, [str(a) for a in arguments])
    return result.exit_code, result.stdout, result.stderr + str(result.exception or "")


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("SSLBENCH_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path / "mine"))
    (tmp_path / "mine" / "benchmarks" / "data").mkdir(parents=True)
    with serving(tmp_path / "served") as served:
        yield served


def idx(array):
    return gzip.compress(struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes())


@pytest.fixture
def fashion(tmp_path, server, monkeypatch):
    """FashionMNIST of a few images, served as its mirror does."""
    rng, resources = np.random.default_rng(0), []
    for prefix, n in (("train", 20), ("t10k", 10)):
        for kind, array in (
            ("images-idx3", rng.integers(0, 256, (n, 28, 28)).astype(np.uint8)),
            ("labels-idx1", np.arange(n, dtype=np.uint8) % 10),
        ):
            content = idx(array)
            (tmp_path / "served" / f"{prefix}-{kind}-ubyte.gz").write_bytes(content)
            resources.append((f"{prefix}-{kind}-ubyte.gz", hashlib.md5(content).hexdigest()))
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "mirrors", [server.address + "/"])
    monkeypatch.setattr(torchvision.datasets.FashionMNIST, "resources", resources)
    own = tmp_path / "mine" / "benchmarks" / "data" / "_fashion_mnist.yaml"
    own.write_text("title: t\ndata: torchvision:FashionMNIST\nsamples: {train: 20, test: 10}\n")
    return own


def state(name):
    return next(row[1] for row in states(paths.data_dir()) if row[0] == name)


def test_a_set_of_torchvision_is_downloaded_and_verified(fashion, server):
    assert state("fashion_mnist") == "absent"
    code, _, err = run("download", "fashion_mnist")
    assert code != 0 and "--yes" in err and "MIT" in err and "31 MB" in err, "size and licence are shown"
    assert server.fetched() == {}, "nothing is fetched before the answer"
    code, out, err = run("download", "fashion_mnist", "--yes")
    assert code == 0, err
    location = out.split("--data ")[1].strip()
    assert {split: len(part) for split, part in open_data(location).items()} == {"train": 20, "test": 10}
    assert {split: len(part) for split, part in open_data("torchvision:FashionMNIST").items()}["test"] == 10
    assert state("fashion_mnist").startswith("verified 2")
    assert run("list")[1].count("absent") > 30 and "verified" in run("list")[1]


def test_a_damaged_or_other_set_is_refused(fashion, server, tmp_path):
    fashion.write_text(fashion.read_text().replace("20", "60000"))
    code, _, err = run("download", "torchvision:FashionMNIST", "--yes")
    assert code != 0 and "train has 20 images, expected are 60,000" in err
    assert state("fashion_mnist") == "present"
    file = tmp_path / "served" / "train-images-idx3-ubyte.gz"
    file.write_bytes(file.read_bytes()[:-5] + b"wrong")
    code, _, err = run("download", "fashion_mnist", "--yes", "--out", tmp_path / "other")
    assert code != 0 and "cannot be downloaded" in err and str(tmp_path / "other" / "FashionMNIST") in err


def test_official_archives_are_downloaded_and_laid_out(server, tmp_path):
    mine = tmp_path / "mine" / "benchmarks"
    (mine / "data" / "_imagenet_a.yaml").write_text(
        "title: t\nfolder: imagenet\ntest_folder: imagenet-a\nsamples: {test: 2}\n"
    )
    (mine / "_downloads.yaml").write_text(
        f"imagenet_a: {{archives: {{imagenet-a.tar: '{server.address}/imagenet-a.tar'}}, megabytes: 1, page: a page}}\n"
    )
    with tarfile.open(tmp_path / "served" / "imagenet-a.tar", "w") as tar:
        for name in ("n01498041", "n01531178"):
            buffer = io.BytesIO()
            Image.new("RGB", (8, 8)).save(buffer, "JPEG")
            info = tarfile.TarInfo(f"imagenet-a/{name}/1.jpg")
            info.size = len(buffer.getvalue())
            tar.addfile(info, io.BytesIO(buffer.getvalue()))
    code, out, err = run("download", "imagenet_a", "--yes")
    assert code == 0, err
    assert len(open_data(out.split("--data ")[1].strip())["all"]) == 2
    assert set(server.fetched()) == {"imagenet-a.tar"} and state("imagenet_a").startswith("verified")


def test_a_file_that_is_used_as_it_is_goes_to_its_place(server, tmp_path):
    content = b"no arrays, but the file of that checksum"
    (tmp_path / "served" / "bloodmnist_224.npz").write_bytes(content)
    entry = (
        "bloodmnist: {{folder: medmnist/bloodmnist_224.npz, page: p, archives: {{{0}: '{1}'}}, md5: {{{0}: {2}}}}}\n"
    )
    file = tmp_path / "mine" / "benchmarks" / "_downloads.yaml"
    address = f"{server.address}/bloodmnist_224.npz"
    file.write_text(entry.format("bloodmnist_224.npz", address, hashlib.md5(b"another file").hexdigest()))
    code, _, err = run("download", "bloodmnist", "--yes")
    assert code != 0 and "cannot be downloaded" in err and state("bloodmnist") != "verified"
    assert not list((tmp_path / "data").rglob("*.npz")), "a damaged file would be taken for the data"
    file.write_text(entry.format("bloodmnist_224.npz", address, hashlib.md5(content).hexdigest()))
    code, out, err = run("download", "bloodmnist", "--yes")
    assert code == 0, err
    place = tmp_path / "data" / "medmnist" / "bloodmnist_224.npz"
    assert place.read_bytes() == content and out.strip().endswith(str(place))
    assert state("bloodmnist").startswith("verified")


def test_what_cannot_be_downloaded_says_what_to_do(server, tmp_path):
    for name, words in (
        ("cifar1", "cifar10"),
        ("imagenet1k", "data prepare imagenet1k"),
        ("tfds:nothing", "tensorflow-datasets"),
    ):
        code, _, err = run("download", name, "--yes")
        assert code != 0 and words in err
    with pytest.raises(UsageError):
        find_download("torchvision:Nothing")
    for name in ("tfds:nothing", "hf:me/nothing"):
        code, _, err = run("download", name, "--yes", "--out", tmp_path)
        assert code != 0 and "--out has no effect" in err


class Tfds(types.ModuleType):
    """The part of TFDS that fetches and prepares, for data sets that it downloads itself and for others."""

    def __init__(self):
        super().__init__("tensorflow_datasets")
        self.core = types.SimpleNamespace(DatasetNotFoundError=LookupError)
        self.download = types.SimpleNamespace(DownloadConfig=dict)
        self.prepared, self.fails = [], None

    def list_builders(self, **_):
        return ["by_hand", "by_itself"]

    def builder(self, name, **form):
        if name not in self.list_builders():
            raise LookupError(name)

        def prepare(download_config):
            if self.fails:
                raise ValueError(self.fails)
            self.prepared.append((name, form, download_config))

        manual = "Register, and put a.tar\n  into the folder." if name == "by_hand" else None
        return types.SimpleNamespace(
            MANUAL_DOWNLOAD_INSTRUCTIONS=manual, data_dir="/prepared", download_and_prepare=prepare
        )


def test_tfds_prepares_what_was_fetched_by_hand_and_downloads_the_rest(tmp_path, monkeypatch):
    tfds = Tfds()
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", tfds)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    archives = ("--archive", tmp_path)
    for arguments, words in (
        (("download", "tfds:by_hand", "--yes"), "put a.tar into the folder. Then: sslbench data prepare tfds:by_hand"),
        (("prepare", "tfds:by_hand"), "--archive FOLDER"),
        (("prepare", "tfds:by_itself", *archives), "sslbench data download tfds:by_itself"),
        (("prepare", "tfds:by_hands", *archives), "'by_hand'"),
        (("prepare", "tfds:by_hand", *archives, "--no-verify"), "--no-verify does not go with"),
    ):
        code, _, err = run(*arguments)
        assert code != 0 and words in err and "Traceback" not in err
    assert tfds.prepared == []
    assert run("prepare", "tfds:by_hand", *archives)[:2] == (0, "tfds:by_hand: --data tfds:by_hand\n")
    assert run("download", "tfds:by_itself", "--yes")[:2] == (0, "tfds:by_itself: --data tfds:by_itself\n")
    form = {"file_format": "array_record"}  # the only one that is written without TensorFlow
    assert tfds.prepared == [("by_hand", form, {"manual_dir": str(tmp_path)}), ("by_itself", form, None)]
    for fails, words in (("No module named 'tensorflow'", "pip install tensorflow"), ("disk full", "disk full")):
        tfds.fails = fails
        code, _, err = run("prepare", "tfds:by_hand", *archives)
        assert code != 0 and words in err


def test_every_data_set_that_a_benchmark_names_is_listed_with_a_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_DATA", str(tmp_path))
    listed = [Path(place) for _, _, _, place in states(tmp_path)]
    missing = []
    for name in list_names("benchmark"):
        benchmark = load_benchmark(name)
        if benchmark.data.startswith("torchvision:"):
            places = [torchvision_sets.place(benchmark.data.removeprefix("torchvision:"), tmp_path)]
        else:  # others are drawn or bundled
            folders = f"{benchmark.folder}+{benchmark.test_folder}".split("+")
            places = [tmp_path / each.partition("?")[0] for each in folders if each]
        # Of a set of several manifests one is looked for.
        missing += [
            (name, str(place))
            for place in places
            if not any(place.is_relative_to(each) or (each.suffix and place.parent == each.parent) for each in listed)
        ]
    assert missing == []
    ways = {name: way for name, _, way, _ in states(tmp_path)}
    assert (ways["cifar10"], ways["imagenet1k"], ways["ade20k"]) == ("download", "prepare", "by hand")
    for name in (name for name, way in ways.items() if way == "by hand"):
        with pytest.raises(UsageError, match="by hand") as caught:
            find_download(name)
        assert "http" in str(caught.value.remedy) and len(downloads()[name].files) > 15
    for name in ("cuhk03", "market1501", "msmt17", "mvtec", "mvtec_loco"):
        with pytest.raises(UsageError, match=f"{name} has to be fetched by hand: .*(mat|zip|tar)") as caught:
            find_download(name)
        assert ways[name] == "prepare" and "http" in (told := str(caught.value.remedy))
        assert told.endswith(f"sslbench data prepare {name} --archive FOLDER")


class CutOffError(Exception):
    """Error of an HTTP library, which is none of Python's own."""


def test_the_hub_without_a_network_is_a_message(monkeypatch):
    import huggingface_hub

    def cut_off(*_, **__):
        raise CutOffError("[Errno -2] Name or service not known")

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", cut_off)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", cut_off)
    with pytest.raises(DataError, match=r"hf:me/some cannot be found: .*Name or service not known\nWithout a network"):
        find_download("hf:me/some")
    with pytest.raises(DataError, match=r"cannot get 'me/some' from the hub: .*not known\nWithout a network"):
        open_data("hf:me/some?download=1")


SIZE_UNKNOWN = {"gtsrb", "visa"}


def test_every_download_is_a_data_set_of_benchmarks_with_a_page():
    sets = {name.partition("/")[2] for name in list_names("benchmark") if name.startswith(("knn/", "anomaly/"))}
    for name, each in downloads().items():
        if each.by_hand:  # nothing to download
            continue
        assert name in sets, name
        assert find_download(name).page.startswith("http") and bool(each.data) != bool(each.archives)
        assert each.megabytes > 0 or name in SIZE_UNKNOWN or each.folder.startswith("medmnist/")
        if each.data:
            assert each.data.removeprefix("torchvision:") in all_sets()
            assert load_benchmark(f"knn/{name}").data == each.data


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


SECRET = "5eCrEt9"
LOGIN, QUERY = f"me:{SECRET}@", f"?X-Amz-Credential=a/{SECRET}/b&X-Amz-Signature={SECRET}"
URLS = (
    f"https://{LOGIN}host/a.tar",
    f"https://{SECRET}@host/a.tar",
    f"https://host:8080/a.tar{QUERY}",
    f"https://host/a.tar?{SECRET}",
    f"https://host/a.tar?sv=1&sig={SECRET}%2F",
    f"https://host/a.tar?unit=annotation&Other={SECRET}",
    f"https://host/a.tar#access_token={SECRET}",
    f"https:/host/a.tar?key={SECRET}",
    f"s3://KEY:{SECRET}/+x@bucket/a.tar",
    f"ftp://me:{SECRET}@host/a.tar",
    f"several:a=https://host/a.tar?sig={SECRET},b=https://host/b.tar?sig={SECRET}",
)


@pytest.mark.parametrize("url", URLS)
def test_no_form_of_a_url_shows_its_secrets(url, caplog):
    wrapped = f"cannot read '{url}', or \"{url}\": ({url})."
    shown = (
        without_secrets(wrapped),
        str(DataError(wrapped, wrapped)),
        visible(wrapped),
        csv_text([[url]]),
        str(plain({"command": wrapped, "data": [url]})),
        str(own_content({}, backbone="resnet18", metadata={"data": url, "settings": {"list": [wrapped]}})),
    )
    logging.getLogger("sslbench").warning("%s: trying again", url)
    assert [text for text in (*shown, caplog.text) if SECRET in text] == []
    assert "host" in shown[0] or "bucket" in shown[0]


def test_what_is_no_secret_stays():
    for text in (
        "https://host:8080/path/user@domain/x.tar?unit=annotation&size=64&group=patient_id",
        "https://host/w.pth#sha256=" + "0a" * 32,
        "s3://bucket/train-{0000..0099}.tar",
        "s3://bucket/a?.tar",
        "C:/photos/a.csv",
        "Is it https://host/a? No.",
    ):
        assert without_secrets(text) == text


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_signed_url_is_read_and_no_file_holds_its_secrets(tmp_path, cache, caplog):
    with serving(tmp_path / "served") as served:
        with tarfile.open(tmp_path / "served" / "a.tar", "w"):
            pass
        url = f"{served.address.replace('://', f'://{LOGIN}')}/a.tar{QUERY}"
        with caplog.at_level("DEBUG"):
            path = locate(url).text
            origin = remote.origin_of(tmp_path / path)
            with remote.opened(origin):
                pass
        assert served.fetched() == {f"a.tar{QUERY}": 1}
    assert SECRET not in caplog.text
    files = [file for file in cache.rglob("*") if file.is_file()]
    assert len(files) > 1
    assert [file for file in files if SECRET in str(file) or SECRET.encode() in file.read_bytes()] == []


def test_urls_that_differ_in_hidden_parts_alone_are_other_files(tmp_path, cache):
    with serving(tmp_path / "served") as served:
        (tmp_path / "served" / "a.csv").write_text("x")
        copies = remote.local_copies([f"{served.address}/a.csv?key={i}" for i in (1, 2)])
        first, second = (remote.origin_of(copy) for copy in copies)
    assert copies[0] != copies[1] and first.url == second.url
    assert first.name != second.name and first.stamp != second.stamp


def test_an_address_with_a_login_gets_no_name_in_a_catalog(tmp_path):
    with pytest.raises(UsageError, match=r"would hold the login or key of https://\*\*\*@host/a.tar"):
        catalog.add("mine", CatalogEntry(f"https://{LOGIN}host/a.tar"), tmp_path / "data.yaml")
    assert not (tmp_path / "data.yaml").exists()


def test_an_object_that_is_replaced_by_one_of_equal_size_is_not_kept(cache, monkeypatch):
    system = fsspec.filesystem("memory")
    system.pipe_file("/b/x.csv", b"old")
    asked, answers = remote.described, []

    def replaced(url):
        answers.append(asked(url))
        if len(answers) == 2:  # the state was compared, and nothing is read yet
            system.pipe_file("/b/x.csv", b"new")
        return answers[-1]

    monkeypatch.setattr(remote, "PAUSES_S", ())
    monkeypatch.setattr(remote, "described", replaced)
    with pytest.raises(DataError, match=r"memory://b/x.csv has changed since it was opened"):
        remote.local_copies(["memory://b/x.csv"])
    assert list(cache.rglob("x.csv")) == []


def test_weights_may_be_a_signed_url():
    url = "https://host/w.pth?token=a&x=1"
    assert expand([url]) == [url]
