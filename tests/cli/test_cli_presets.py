"""`--preset` on the command line: what it sets, what comes on top of it, and what the record says."""

import json

RUN = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos", "--no-floors")


def only_record(world, protocol):
    (file,) = (world / "results" / protocol).glob("*.json")
    return json.loads(file.read_text())


def test_a_preset_sets_the_protocol_and_stands_in_the_record_with_its_source(world, sslbench):
    code, out, err = sslbench("eval", "knn", "--preset", "dino", *RUN)
    assert code == 0, err
    assert "knn (knn/dino)" in out
    record = only_record(world, "knn")
    assert record["protocol"]["settings"]["k"] == [20] and record["preprocessing"]["interpolation"] == "bicubic"
    assert record["preset"]["name"] == "knn/dino" and "2104.14294" in record["preset"]["source"]
    assert record["preset"]["modified"] is False


def test_settings_on_top_win_and_mark_the_row(world, sslbench):
    code, out, err = sslbench("eval", "knn", "--preset", "knn/dino", *RUN, "k=3")
    assert code == 0, err
    assert "modified" in out
    record = only_record(world, "knn")
    assert record["protocol"]["settings"]["k"] == [3] and record["preset"]["modified"] is True
    _, out, _ = sslbench("leaderboard", "results", "--csv", "board.csv")
    assert "preset knn/dino modified" in (world / "board.csv").read_text()


def test_the_same_value_as_the_presets_is_no_change(world, sslbench):
    sslbench("eval", "--preset", "knn/dino", *RUN, "k=20")
    assert only_record(world, "knn")["preset"]["modified"] is False


def test_several_presets_run_together_and_a_protocol_without_one_keeps_its_defaults(world, sslbench):
    presets = ("--preset", "knn/npid", "--preset", "lsr/big_vision")
    images = ("--resize", "16x16", "--crop", "none", "--interpolation", "bilinear")
    code, _, err = sslbench("eval", "knn", "lsr", "linear", *presets, *RUN, *images, "knn.k=5", "lsr.k=[1,5]")
    assert code == 0, err
    assert err.count("images in") == 2, "both parts of the data, encoded once for all three"
    assert only_record(world, "lsr")["preset"]["name"] == "lsr/big_vision"
    assert only_record(world, "linear")["preset"] is None


def test_dry_run_names_the_preset_as_the_origin(world, sslbench):
    code, out, err = sslbench(
        "eval", "--preset", "knn/dino", *RUN, "--dry-run", "temperature=0.1", "--resize", "20", "--crop", "none"
    )
    assert code == 0, err
    lines = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert lines["k"].endswith("[preset knn/dino]") and lines["interpolation"].endswith("[preset knn/dino]")
    assert lines["temperature"].endswith("[command line]") and lines["resize"].endswith("[asked for]")
    assert "knn (knn/dino v2" in out


def test_a_resize_that_does_not_fill_the_crop_of_a_preset_is_refused(world, sslbench):
    code, _, err = sslbench("eval", "--preset", "knn/dino", *RUN, "--resize", "20")
    assert code == 2 and "20x20 do not fill the centre crop of 224x224 (knn/dino)" in err and "--crop none" in err


def test_layers_of_a_preset_are_used_unless_others_are_asked_for(world, sslbench, monkeypatch):
    folder = world / "own" / "benchmarks" / "presets" / "knn"
    folder.mkdir(parents=True)
    text = "title: t\nsource: a paper of 2026\nprotocol: knn\nsettings: {k: [3]}\nlayers: ['conv1:avg(4,4)']\n"
    (folder / "paper.yaml").write_text(text)
    monkeypatch.setenv("SSLBENCH_PATH", str(world / "own"))
    code, _, err = sslbench("eval", "knn", "--preset", "paper", *RUN)
    assert code == 0, err
    record = only_record(world, "knn")
    assert record["layer"] == "conv1:avg(4,4)" and record["preset"]["modified"] is False
    _, out, _ = sslbench("eval", "knn", "--preset", "paper", *RUN, "--dry-run")
    assert "[preset knn/paper]" in out.split("layers")[1].split("data")[0]
    sslbench("eval", "knn", "--preset", "paper", *RUN, "--layers", "output", "--out", "other")
    (file,) = (world / "other" / "knn").glob("*.json")
    other = json.loads(file.read_text())
    assert other["layer"] == "output" and other["preset"]["modified"] is True


def test_a_preset_on_a_benchmark_changes_its_settings_and_marks_it(world, sslbench):
    (world / "mine.yaml").write_text("title: t\nversion: 1\nprotocol: knn\nsettings: {temperature: 0.5, k: [9]}\n")
    code, _, err = sslbench("eval", "--benchmark", "mine.yaml", "--preset", "knn/npid", *RUN, "k=5")
    assert code == 0, err
    record = only_record(world, "knn")
    assert record["protocol"]["settings"]["temperature"] == 0.07
    assert record["benchmark"]["modified"] is True


def test_what_selects_on_test_is_marked_wherever_its_number_stands(world, sslbench):
    few = ("k=[2]", "draws=2", "costs=[0.1,1]", "--layers", "output")
    code, out, err = sslbench("eval", "--preset", "low_shot/vissl_places", *RUN, *few)
    assert code == 0, err
    assert "selected on test" in out
    sslbench("leaderboard", "results", "--csv", "board.csv")
    assert "selected on test" in (world / "board.csv").read_text()


def test_show_list_and_diff(world, sslbench):
    _, out, _ = sslbench("list", "presets")
    assert {"knn/dino", "svm/voc07"} <= set(out.split())
    _, out, _ = sslbench("show", "knn/dino")
    assert "2104.14294" in out and "temperature: 0.07" in out
    code, out, _ = sslbench("diff-preset", "knn", "knn/vissl")
    assert code == 1 and {"k", "temperature", "metric"} <= {line.split()[0] for line in out.splitlines()}
    code, out, _ = sslbench("diff-preset", "knn/dino", "knn/dino")
    assert code == 0 and "do not differ" in out
    code, out, _ = sslbench("diff-preset", "knn/dino", "knn/vissl", "--json")
    assert json.loads(out)["differences"]["metric"] == {"a": "cosine", "b": "dot"}
