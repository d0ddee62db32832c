"""`sslbench data download` and `data list`, from a server of this process."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import pytest
import torchvision.datasets
from click.testing import CliRunner
from helpers.serving import serving
from PIL import Image

from sslbench import paths
from sslbench.cli.commands.data import command
from sslbench.data.download import downloads, find_download, states
from sslbench.data.formats.torchvision import all_sets
from sslbench.data.open import open_data
from sslbench.errors import DataError, UsageError
from sslbench.library.benchmarks import load_benchmark
from sslbench.names import list_names


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


SIZE_UNKNOWN = {"gtsrb"}


def test_every_download_is_a_data_set_of_benchmarks_with_a_page():
    sets = {name.partition("/")[2] for name in list_names("benchmark") if name.startswith("knn/")}
    for name, each in downloads().items():
        assert name in sets, name
        assert find_download(name).page.startswith("http") and bool(each.data) != bool(each.archives)
        assert each.megabytes > 0 or name in SIZE_UNKNOWN
        if each.data:
            assert each.data.removeprefix("torchvision:") in all_sets()
            assert load_benchmark(f"knn/{name}").data == each.data
