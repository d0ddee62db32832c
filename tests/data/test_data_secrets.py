"""Secrets of URLs: in no file, message, record or page."""

import logging
import tarfile

import fsspec
import pytest
from helpers.serving import serving

from sslbench.cli.commands.eval.check import expand
from sslbench.data import catalog, remote
from sslbench.data.catalog import CatalogEntry
from sslbench.data.location import locate
from sslbench.errors import DataError, UsageError
from sslbench.results import plain
from sslbench.text import csv_text, visible, without_secrets
from sslbench.weights.save import own_content

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
