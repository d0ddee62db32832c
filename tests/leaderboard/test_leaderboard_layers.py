"""The plot over layers: what is drawn is what the records hold, in the order of the network."""

import pytest
from helpers.record_trees import make

from sslbench.errors import ResultError, UsageError
from sslbench.leaderboard import plots, table


def of_layers(name, **scores):
    return [make(f"{name}.torch", top1=value, layer=layer.replace("_", ".")) for layer, value in scores.items()]


def test_profiles_are_the_scores_by_layer_without_weights_of_one_layer():
    records = [*of_layers("a", res5=70.0, res2=40.0, head_0=65.0), *of_layers("b", res5=75.0)]
    board = table(records)
    order = plots.layer_order(row.layer for row in board.rows)
    (profile,) = plots.profiles(board, 0, order)
    assert profile.label == "a.torch" and list(profile.points) == ["res2", "res5", "head.0"]
    assert [point.value for point in profile.points.values()] == [40.0, 70.0, 65.0]


def test_a_picture_is_written_whole_or_refused(tmp_path):
    target = tmp_path / "plots" / "layers.png"
    with pytest.raises(ResultError, match="no weights have results on several layers"):
        plots.draw_layers(of_layers("a", res5=70.0), target)
    assert not target.parent.exists()
    plots.draw_layers([*of_layers("a", res5=70.0, res2=40.0), *of_layers("b", res5=75.0, res2=45.0)], target)
    assert target.read_bytes()[:4] == b"\x89PNG"
    assert [file.name for file in target.parent.iterdir()] == ["layers.png"]


def test_a_metric_that_no_result_has_is_refused(tmp_path):
    with pytest.raises(UsageError, match="no result has the metric 'tpo1'"):
        plots.draw_layers([*of_layers("a", res5=70.0, res2=40.0)], tmp_path / "layers.png", metric="tpo1")
