"""`sslbench eval correspondence` and `eval tracking` from data to record, leaderboard and comparison."""

import json

from sample_data import davis, spair

NET = ("--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net")
PAIRS = ("eval", "correspondence", *NET, "--layers", "conv1,conv2", "size=64", "workers=1")
VIDEOS = ("eval", "tracking", *NET, "--layers", "conv1,conv2", "short=32", "workers=1")


def records(world, protocol):
    return [json.loads(file.read_text()) for file in sorted((world / "results" / protocol).glob("*.json"))]


def test_pairs_become_a_record_per_layer_with_all_floors(world, sslbench):
    code, out, err = sslbench(*PAIRS, "--data", spair.make(world / "spair"))
    assert code == 0, err
    found = [r for r in records(world, "correspondence") if not r["weights"]["untrained"]]
    assert {r["layer"] for r in found} == {"conv1", "conv2"} and "pck_per_image@0.1" in out
    for record in found:
        assert set(record["floors"]) == {"chance", "pixels", "untrained"} and not record["missing_floors"]
        assert set(record["variants"]) == {"position only", "ceiling"}
        assert record["data"]["test"]["n"] == 2 and record["data"]["labels"] == "points"
        assert record["data"]["how"].endswith("spair (test) alone")


def test_made_homographies_of_any_folder_are_scored(world, sslbench):
    code, out, err = sslbench(*PAIRS, "--data", "homography:photos/test", "--limit", "4", "--no-floors")
    assert code == 0 and "match_recall@5px" in out, err
    assert all(r["floors"] == {} for r in records(world, "correspondence"))


def test_videos_become_a_record_per_layer_and_two_are_compared(world, sslbench):
    where = davis.make(world / "DAVIS", frames=5)
    code, out, err = sslbench(*VIDEOS, "--data", where)
    assert code == 0 and "jf_mean" in out, err
    for record in records(world, "tracking"):
        assert set(record["floors"]) >= {"chance", "pixels"} and record["data"]["test"]["n"] == 2
    assert sslbench("leaderboard", "results")[0] == 0
    assert "tracking" in sslbench(*VIDEOS, "--data", where, "--dry-run")[1]


WRONG = [
    ((*PAIRS, "--data", "photos"), "no pairs of images with corresponding points"),
    ((*VIDEOS, "--data", "photos"), "no videos with masks"),
    ((*PAIRS, "--data", "homography:photos", "--resize", "32"), "--resize has no effect on correspondence"),
    ((*PAIRS, "--data", "homography:photos", "radius=3"), "radius has no effect"),
    ((*PAIRS, "--data", "photos", "--test-data", "homography:photos"), "--data has no effect beside --test-data"),
    (("eval", "tracking", "correspondence", *NET), "take labels of different kinds"),
]


def test_wrong_words_are_one_message_before_any_image_is_decoded(world, sslbench):
    for words, message in WRONG:
        code, _, err = sslbench(*words)
        assert code in (1, 2) and message in err and "Traceback" not in err
        assert not (world / "results").exists()
