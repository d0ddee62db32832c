"""Names for data locations: where they are looked up, what they may not hide, and options behind a '?'."""

import json

import pytest
from click.testing import CliRunner

from sslbench.cli.main import cli
from sslbench.data import catalog
from sslbench.data.location import absolute, locate
from sslbench.data.open import open_data
from sslbench.data.splits import train_test
from sslbench.errors import SslbenchError, UsageError


@pytest.fixture(autouse=True)
def own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("SSLBENCH_CONFIG", str(tmp_path / "config"))
    monkeypatch.delenv("SSLBENCH_PATH", raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def run(*arguments):
    return CliRunner().invoke(cli, ["data", *arguments])


def test_a_name_works_from_any_folder_until_it_is_removed(tmp_path, class_folders, monkeypatch):
    class_folders(tmp_path / "work" / "photos", cat=3, dog=3)
    done = run("add", "pets", "photos")
    assert done.exit_code == 0 and "all 6 images" in done.output
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert len(open_data("pets")["all"]) == 6
    assert len(train_test("pets").train) == 4
    assert run("list").stdout.splitlines()[0].split() == ["pets", str(tmp_path / "work" / "photos")]
    assert f"data: {tmp_path / 'work' / 'photos'}" in run("show", "pets").output
    assert run("remove", "pets").exit_code == 0
    with pytest.raises(UsageError, match="'pets' does not exist"):
        open_data("pets")


def test_the_columns_of_a_table_are_remembered(tmp_path, picture):
    for name in "ab":
        picture(tmp_path / "work" / f"{name}.png")
    (tmp_path / "work" / "t.csv").write_text("where,path,what\na.png,1,cat\nb.png,2,dog\n")
    assert run("add", "t", "t.csv", "--image-col", "where", "--label-col", "what").exit_code == 0
    assert open_data("t")["all"].target.classes == ("cat", "dog")
    assert open_data("t", label_column="path")["all"].target.classes == ("1", "2")


def test_what_cannot_be_opened_gets_no_name(tmp_path):
    done = run("add", "pets", "nowhere")
    assert isinstance(done.exception, UsageError) and "nowhere" in str(done.exception)
    assert not catalog.user_file().exists()


def test_a_path_wins_over_a_name_and_it_is_said(tmp_path, class_folders, caplog):
    class_folders(tmp_path / "far", cat=1, dog=1)
    class_folders(tmp_path / "work" / "photos", eel=2)
    catalog.add("photos", catalog.CatalogEntry(str(tmp_path / "far")), catalog.user_file())
    assert open_data("photos")["all"].target.classes == ("eel",)
    assert "the path is used" in caplog.text and str(tmp_path / "far") in caplog.text


def test_the_project_comes_before_the_search_path_and_that_before_the_user(tmp_path, monkeypatch, class_folders):
    for name, n in (("mine", 1), ("shared", 2), ("project", 3)):
        class_folders(tmp_path / name, cat=n, dog=n)
    catalog.add("pets", catalog.CatalogEntry(str(tmp_path / "mine")), catalog.user_file())
    assert len(open_data("pets")["all"]) == 2
    (tmp_path / "shared" / catalog.PROJECT_FILE).write_text("pets: ../shared\n")
    monkeypatch.setenv("SSLBENCH_PATH", str(tmp_path / "shared"))
    assert len(open_data("pets")["all"]) == 4
    (tmp_path / "work" / catalog.PROJECT_FILE).write_text("pets: {data: ../project}\nother: sklearn:digits\n")
    assert len(open_data("pets")["all"]) == 6
    assert list(catalog.entries()) == ["other", "pets"]


def test_a_catalog_with_a_mistake_is_refused_with_its_place(tmp_path):
    for text, message in (
        ("pets: {dat: x}\n", "unknown key 'dat'"),
        ("pets: {label_column: x}\n", "the key 'data' is missing"),
        ("pets: [a, b]\n", "should be a string"),
        ("pets: a\npets: b\n", "occurs twice"),
        ("'a b': x\n", "cannot be a name"),
        ("pets: ''\n", "is empty"),
        ("- pets\n", "mapping"),
    ):
        (tmp_path / "work" / catalog.PROJECT_FILE).write_text(text)
        with pytest.raises(UsageError, match=message):
            open_data("anything")


def test_a_mistyped_name_gets_the_nearest(tmp_path):
    catalog.add("flowers", catalog.CatalogEntry("sklearn:digits"), catalog.user_file())
    with pytest.raises(UsageError, match="'flowers'"):
        open_data("flower")
    assert "Did you mean 'flowers'?" in str(run("show", "flwers").exception)
    assert "Did you mean 'flowers'?" in str(run("remove", "flwers").exception)


def test_a_name_is_not_replaced_unless_asked_and_never_stands_for_itself():
    assert run("add", "d", "sklearn:digits").exit_code == 0
    assert "already" in str(run("add", "d", "sklearn:digits").exception)
    assert run("add", "d", "sklearn:digits", "--overwrite").exit_code == 0
    for name in ("a/b", "a:b", "", "-x", "a b"):
        with pytest.raises(UsageError, match="cannot be a name"):
            catalog.add(name, catalog.CatalogEntry("sklearn:digits"), catalog.user_file())
    with pytest.raises(UsageError, match="itself"):
        catalog.add("same", catalog.CatalogEntry("same"), catalog.user_file())


def test_options_of_the_name_and_of_the_string_come_together(tmp_path):
    catalog.add("toys", catalog.CatalogEntry("kwcoco:shapes8?unit=annotation&margin=0.5"), catalog.user_file())
    assert locate("toys?margin=0").options == {"unit": "annotation", "margin": "0"}


def test_absolute_keeps_what_is_no_path_and_the_options(tmp_path, class_folders):
    class_folders(tmp_path / "work" / "photos", cat=1)
    here = tmp_path / "work"
    assert absolute("photos/") == f"{here}/photos/"
    assert absolute("s-{0..3}.tar") == f"{here}/s-{{0..3}}.tar"
    assert absolute("sklearn:digits") == "sklearn:digits"
    assert absolute("kwcoco:shapes8?unit=annotation") == "kwcoco:shapes8?unit=annotation"


def test_options_are_strict():
    for spec, message in (
        ("kwcoco:shapes8?unit=box", "annotation"),
        ("kwcoco:shapes8?marign=1", "Did you mean 'margin'"),
        ("kwcoco:shapes8?margin=-1", "should be 0 or more"),
        ("kwcoco:shapes8?margin=wide", "margin"),
        ("sklearn:digits?unit=annotation", "takes no options"),
    ):
        with pytest.raises(SslbenchError, match=message):
            open_data(spec)


def test_a_file_with_a_question_mark_is_a_file(tmp_path, manifest):
    manifest(tmp_path / "work" / "m.json?unit=annotation.json", {"a.png": [1], "b.png": [2]})
    assert len(open_data("m.json?unit=annotation.json")["all"]) == 2
    assert json.loads((tmp_path / "work" / "m.json?unit=annotation.json").read_text())["images"]
