"""Every score stands beside chance, pixels and the untrained network, unasked; one that is not above is flagged."""

from pathlib import Path

from sslbench.results.records import read_tree

EVAL = ("eval", "knn", "linear", "--weights", "w.pth", "--backbone", "tiny_net_of_the_tests:net", "--data", "photos")


def test_floors_stand_beside_each_score_unasked_and_are_not_computed_twice(world, sslbench):
    code, out, err = sslbench(*EVAL, "--workers", "0", "--no-overlaps")
    assert code == 0, err
    for floor in ("untrained", "pixels", "majority", "chance"):
        assert floor in out + err
    assert out.count("not clearly above untrained (100.00)") == 2, "colours need no training"
    for record in read_tree(Path("results")):
        assert record.is_floor or {"untrained", "pixels", "majority"} <= set(record.floors)
    code, board, _ = sslbench("leaderboard", "results")
    assert code == 0 and "pixels" in board and "untrained" in board
    code, _, err = sslbench(*EVAL[:2], *EVAL[3:], "k=3", "--workers", "0", "--no-overlaps")
    assert code == 0 and " images in " not in err, "features of the floors are kept"
