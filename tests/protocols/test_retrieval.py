"""Retrieval on features: metrics against a slow second implementation, chance, groups, ties, expansion, refusals."""

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from helpers.protocol_samples import features
from sklearn.decomposition import PCA
from sklearn.metrics import average_precision_score

from sslbench.data.images import Arrays
from sslbench.data.labels import single_labels
from sslbench.data.source import Source
from sslbench.errors import DataError, UsageError
from sslbench.metrics.retrieval import (
    LANDMARK,
    RANKING,
    GroundTruth,
    landmark_values,
    random_order_landmark_values,
    random_order_values,
    ranking_values,
    ranks_of_positives,
)
from sslbench.protocols import retrieval
from sslbench.protocols.retrieval import Settings
from sslbench.protocols.retrieval.descriptors import positive_ranks
from sslbench.protocols.retrieval.tasks import by_ground_truth
from sslbench.results import percent_metrics
from sslbench.targets.classes import Answers, Queries

NAMES = [metric.name for metric in RANKING]


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def slow(similarity, positive, ranked):
    """Mean of each metric over the queries with a positive, by sorting; no scores are equal."""
    rows = []
    for scores, own, kept in zip(similarity, positive, ranked, strict=True):
        hits = own[kept][np.argsort(-scores[kept])]
        number = hits.sum()
        if number:
            precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
            at_r = (precision * hits)[:number].sum() / number
            recalls = [float(hits[:k].any()) for k in (1, 5, 10)]
            rows.append([*recalls, hits[:number].mean(), average_precision_score(own[kept], scores[kept]), at_r])
    return dict(zip(NAMES, np.mean(rows, axis=0), strict=True))


def values(outcome):
    return {name: value for name, (value, _, _) in outcome.metrics.items()}


def assert_close(outcome, expected):
    assert values(outcome) == pytest.approx(expected, abs=1e-12)


def test_leave_one_out_equals_sorting(blobs):
    train, test = blobs(40, 90)
    x, y = unit(test.x.astype(float)), test.target.values
    expected = slow(x @ x.T, y[:, None] == y, ~np.eye(90, dtype=bool))
    found = retrieval.run(train, test, Settings(), seed=0)
    assert_close(found, expected)
    assert found.headline == "retrieval_mAP" and found.scores.shape == (90, 0) and not found.notes
    assert all(low <= value <= high for value, low, high in found.metrics.values())
    own = [found.per_class[f"class{c}"] for c in range(4)]
    assert np.average(own, weights=np.bincount(y)) == pytest.approx(expected["retrieval_mAP"])
    assert retrieval.part(Settings()) == "test"


def test_test_queries_train(blobs):
    train, test = blobs(50, 30)
    expected = slow(
        unit(test.x.astype(float)) @ unit(train.x.astype(float)).T,
        test.target.values[:, None] == train.target.values,
        np.ones((30, 50), bool),
    )
    assert_close(retrieval.run(train, test, Settings(database="train"), seed=0), expected)
    assert retrieval.part(Settings(database="train")) is None


def test_images_of_the_own_group_are_not_ranked(blobs):
    train, test = blobs(40, 60)
    groups = np.arange(60) // 3
    x, y = unit(test.x.astype(float)), test.target.values
    expected = slow(x @ x.T, y[:, None] == y, groups[:, None] != groups)
    found = retrieval.run(train, dataclasses.replace(test, groups=groups), Settings(), seed=0)
    assert_close(found, expected)


def test_images_without_a_positive_are_searched_but_no_queries():
    x = np.array([[1, 0], [0.9, 0.1], [0.95, 0.05]], np.float32)
    test = features(x, [0, 0, 1], 2)
    found = retrieval.run(test, test, Settings(), seed=0)
    assert values(found)["recall@1"] == 0 and values(found)["retrieval_mAP"] == 0.5
    assert found.notes == ("1 of 3 test images have no positive in the database and are not queries.",)
    assert {metric.n for metric in percent_metrics(found, len(test)).values()} == {2}
    with pytest.raises(DataError, match="none of the 3 test images has another image of its label"):
        alone = dataclasses.replace(test, target=single_labels(["a", "b", "c"]))
        retrieval.run(alone, alone, Settings(), seed=0)


@pytest.mark.parametrize(
    ("labels", "groups", "refused"),
    [
        ("abc", None, "none of the 3"),
        ("aaa", None, "all 3 test images have one label, 'a'"),
        ("aab", None, ""),
        ("aab", ("x", "x", "y"), "none of the 3"),
        ("aab", ("x", "y", "y"), ""),
    ],
)
def test_data_without_a_right_and_a_wrong_answer_are_refused_before_any_image_is_decoded(labels, groups, refused):
    images = Arrays(np.zeros((3, 8, 8, 3), np.uint8), "pictures")
    source = Source("pictures", ("1", "2", "3"), single_labels(list(labels)), images)
    if groups is not None:
        source = dataclasses.replace(source, attributes={"patient": groups}, grouped_by="patient")
    expected = pytest.raises(DataError, match=refused) if refused else contextlib.nullcontext()
    with expected:
        retrieval.check_test(Settings(), source)
    retrieval.check_test(Settings(database="train"), source)


@pytest.mark.parametrize(("r", "m"), [(1, 1), (1, 4), (2, 5), (3, 12), (4, 4), (2, 13)])
def test_chance_is_the_mean_over_all_orders(r, m):
    each = [ranking_values(np.array(places)) for places in itertools.combinations(range(m), r)]
    np.testing.assert_allclose(random_order_values(r, m), np.mean(each, axis=0), rtol=1e-12)
    each = [landmark_values(np.array(places)) for places in itertools.combinations(range(m), r)]
    np.testing.assert_allclose(random_order_landmark_values(r, m), np.mean(each, axis=0), rtol=1e-12)


def test_features_without_meaning_are_at_chance():
    """Means of 30 runs of 40 queries; a correct protocol fails with a probability below 1e-6 for each metric."""
    rng = np.random.default_rng(0)
    above = []
    for _ in range(30):
        test = features(rng.normal(size=(40, 5)), rng.permutation(np.arange(40) % 8), 8)
        found = retrieval.run(test, test, Settings(), seed=0)
        above.append([found.metrics[name][0] - found.chance[name] for name in NAMES])
    error = np.std(above, axis=0, ddof=1) / np.sqrt(30)
    assert (np.abs(np.mean(above, axis=0)) < 6.2 * error + 1e-12).all()


def test_copies_are_ties_and_the_wrong_one_comes_first_whatever_the_blocks():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(20, 37)), 3, axis=0)
    test = features(x, np.tile([0, 0, 1], 20), 2)
    found = [retrieval.run(test, test, Settings(max_memory=memory), seed=0) for memory in (1.0, 1e-6)]
    assert found[0].metrics == found[1].metrics
    assert values(found[0])["recall@1"] == 0


@pytest.mark.parametrize("n_positives", [1, 16, 17, 100])
def test_both_ways_to_count_ranks_agree_with_sorting(n_positives):
    rng = np.random.default_rng(n_positives)
    scores = rng.integers(0, 30, 300) / 10
    order = rng.permutation(300)
    truth = GroundTruth(order[:n_positives], order[n_positives : n_positives + 40])
    kept = np.setdiff1d(np.arange(300), truth.ignored)
    positive = np.isin(kept, truth.positives)
    ranked = np.lexsort((positive, -scores[kept]))  # of equal scores the negatives first
    np.testing.assert_array_equal(ranks_of_positives(scores, truth), np.flatnonzero(positive[ranked]))


def test_whitening_is_learnt_on_train(blobs):
    train, test = blobs(300, 60)
    pca = PCA(6, whiten=True).fit(unit(train.x.astype(float)))
    x, y = unit(pca.transform(unit(test.x.astype(float)))), test.target.values
    expected = slow(x @ x.T, y[:, None] == y, ~np.eye(60, dtype=bool))
    found = retrieval.run(train, test, Settings(whiten=True, components=6), seed=0)
    assert values(found) == pytest.approx(expected, abs=1e-4)
    assert retrieval.part(Settings(whiten=True)) is None


def test_expansion_adds_the_nearest_others(blobs):
    train, test = blobs(40, 30)
    database, queries = unit(train.x.astype(float)), unit(test.x.astype(float))

    def expanded(x, similarity, k, alpha):
        near = np.argsort(-similarity, axis=1)[:, :k]
        weights = np.maximum(np.take_along_axis(similarity, near, axis=1), 0) ** alpha
        return unit(x + np.einsum("qk,qkd->qd", weights, database[near]))

    same = database @ database.T - 9 * np.eye(40)
    augmented = expanded(database, same, 3, 2.0)
    database, queries = augmented, expanded(queries, queries @ database.T, 0, 2.0)
    queries = expanded(queries, queries @ database.T, 4, 2.0)
    positive = test.target.values[:, None] == train.target.values
    expected = slow(queries @ database.T, positive, np.ones((30, 40), bool))
    chosen = Settings(database="train", augmentation=3, query_expansion=4, alpha=2.0)
    assert values(retrieval.run(train, test, chosen, seed=0)) == pytest.approx(expected, abs=1e-4)


def test_an_image_is_not_added_to_its_own_query():
    x = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float32)
    test = features(x, [0, 0, 0], 1)
    with_groups = dataclasses.replace(test, groups=np.array([0, 0, 0]))
    retrieval.run(test, test, Settings(query_expansion=5), seed=0)
    with pytest.raises(DataError, match="do not find each other"):
        retrieval.run(with_groups, with_groups, Settings(query_expansion=5), seed=0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"normalise_scores": True}, "no effect without predictions"),
        ({"covariance": "uncentred"}, "no effect without whiten=true"),
        ({"predictions": -1}, "should be 0 or more"),
        ({"components": 3}, "no effect without whiten=true"),
        ({"components": -3, "whiten": True}, "should be 0 or more"),
        ({"max_memory": 0.0}, "above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(changed, message):
    with pytest.raises(UsageError, match=message):
        retrieval.check(Settings(**changed), single_labels(["a", "b"]))


def test_augmentation_needs_queries_apart(blobs):
    test = ground_truth(blobs(5, 40)[1])
    with pytest.raises(UsageError, match="would contain the query"):
        retrieval.check_queries(Settings(augmentation=3), None)
    with pytest.raises(UsageError, match="a database of their own"):
        retrieval.check_queries(Settings(database="train"), test.target.queries)
    retrieval.check_queries(Settings(augmentation=3), test.target.queries)
    inside = dataclasses.replace(test.target.queries, apart=frozenset())
    with pytest.raises(UsageError, match="would contain the query"):
        retrieval.check_queries(Settings(augmentation=3), inside)


def ground_truth(test, n_queries=8):
    """The first rows query the others in two tasks, with positives and ignored images drawn."""
    rng = np.random.default_rng(1)
    queries, database = test.ids[:n_queries], np.array(test.ids[n_queries:])
    tasks = {}
    for name in ("hard", "easy"):
        tasks[name] = {}
        for query in queries[: -1 if name == "easy" else None]:
            drawn = rng.permutation(database)[:9]
            tasks[name][query] = Answers(tuple(drawn[:4]), tuple(drawn[4:]))
    return dataclasses.replace(test, target=test.target.changed(queries=Queries(tasks, frozenset(queries))))


def slow_landmark(similarity, test, name, kept):
    """Mean average precision and precisions of a task, by the formulas of the revisited protocol's code."""
    rows = []
    for i, (query, answers) in enumerate(test.target.queries.tasks[name].items()):
        assert query == test.ids[i]
        order = [test.ids[8:][j] for j in np.argsort(-similarity[i])]
        order = [sample for sample in order if sample not in answers.ignored]
        places = np.array([j for j, sample in enumerate(order) if sample in answers.positives])
        ap = sum((j / r if r else 1.0) + (j + 1) / (r + 1) for j, r in enumerate(places.tolist())) / 2 / len(places)
        shortened = [min(places.max() + 1, k) for k in (1, 5, 10)]
        rows.append([ap, *((places < k).sum() / k for k in shortened)])
    return dict(zip([f"{metric.name}({name})" for metric in LANDMARK], np.mean(rows, axis=0)[:kept], strict=True))


def test_ground_truth_equals_the_published_formulas(blobs):
    train, test = blobs(40, 90)
    test = ground_truth(test)
    x = unit(test.x.astype(float))
    found = retrieval.run(train, test, Settings(), seed=0)
    similarity = x[:8] @ x[8:].T
    assert_close(found, slow_landmark(similarity, test, "hard", 4) | slow_landmark(similarity, test, "easy", 4))
    assert found.headline == "mAP_trapezoid(hard)" and set(found.chance) == set(found.metrics)
    assert list(found.per_class) == [test.target.classes[c] for c in sorted(set(test.target.values[:8].tolist()))]


def test_answers_that_are_no_images_are_noted(blobs):
    test = ground_truth(blobs(4, 90)[1])
    kept = np.setdiff1d(np.arange(90), [7, 20, 21])
    found = retrieval.run(test, test.select(kept), Settings(), seed=0)
    lost = sum(
        i in (test.ids[20], test.ids[21]) for a in test.target.queries.tasks["hard"].values() for i in a.positives
    )
    assert found.notes[0] == f"hard: 1 queries and {lost} positives are not among the images."


def test_queries_of_the_database_find_others_only():
    """Holidays: the query is an image of the database, and ignored."""
    x = np.array([[1, 0], [0.9, 0.1], [0.5, 0.5], [0, 1]], np.float32)
    test = features(x, [0, 0, 1, 1], 2)
    answers = {
        test.ids[0]: Answers((test.ids[1],), (test.ids[0],)),
        test.ids[2]: Answers((test.ids[3],), (test.ids[2],)),
    }
    test = dataclasses.replace(test, target=test.target.changed(queries=Queries({"": answers})))
    found = retrieval.run(test, test, Settings(query_expansion=1), seed=0)
    expected = (landmark_values(np.array([0])) + landmark_values(np.array([2]))) / 2
    plain = retrieval.run(test, test, Settings(), seed=0)
    assert list(values(plain).values()) == pytest.approx(expected.tolist())
    assert found.metrics.keys() == plain.metrics.keys()


@pytest.mark.parametrize("database", ["test", "train"])
def test_intervals_hold_the_truth_over_labels_whose_images_answer_each_other(database):
    """Of 30 intervals that hold the truth in 95 % of cases fewer than 24 do once in 1,000 times."""
    rng, found = np.random.default_rng(0), []
    for _ in range(30):
        centres, spread = rng.normal(size=(15, 8)), np.exp(rng.normal(-0.6, 0.6, size=(15, 1)))
        y = np.arange(90) % 15
        test, train = (features(centres[y] + spread[y] * rng.normal(size=(90, 8)), y, 15) for _ in range(2))
        outcome = retrieval.run(train, test, Settings(database=database), seed=0)
        found.append(outcome.metrics["retrieval_mAP"])
    value, low, high = np.array(found).T
    assert ((low <= value.mean()) & (value.mean() <= high)).sum() >= 24


def test_queries_that_share_an_image_or_answer_each_other_are_one_unit():
    rng = np.random.default_rng(0)
    test = features(rng.normal(size=(10, 4)), np.arange(10), 10)
    a, b, c, d, e, f, g, h, i, j = test.ids
    answers = {
        a: Answers((f, g), ()),
        b: Answers((g,), ()),
        c: Answers((d,), (c,)),
        d: Answers((c, h), (d,)),
        e: Answers((i, j), ()),
    }
    search = by_ground_truth(
        dataclasses.replace(test, target=test.target.changed(queries=Queries({"": answers}, frozenset((a, b, e)))))
    )
    numbers = search.tasks[0].together
    assert (numbers[:, None] == numbers).astype(int).tolist() == [
        [1, 1, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]


def test_regions_are_whitened_one_by_one(blobs):
    rng = np.random.default_rng(0)
    train, test = blobs(60, 40)
    regions = [rng.normal(size=(len(part), 3, 5)).astype(np.float32) for part in (train, test)]
    regions[1][:20, 2] = 0  # images of fewer regions
    train, test = (
        dataclasses.replace(part, x=each.reshape(len(part), -1), regions=3)
        for part, each in zip((train, test), regions, strict=True)
    )
    pca = PCA(4, whiten=True).fit(unit(regions[0].reshape(-1, 5).astype(float)))
    rows = []
    for image in regions[1].astype(float):
        kept = image[image.any(axis=1)]
        rows.append(unit(pca.transform(unit(kept))).sum(axis=0))
    x, y = unit(np.array(rows)), test.target.values
    expected = slow(x @ x.T, y[:, None] == y, ~np.eye(40, dtype=bool))
    found = retrieval.run(train, test, Settings(whiten=True, components=4), seed=0)
    assert values(found) == pytest.approx(expected, abs=1e-4)


def test_micro_average_precision_is_that_of_one_list(blobs):
    train, test = blobs(30, 60)
    test = ground_truth(test)
    x = unit(test.x.astype(float))
    similarity = x[:8] @ x[8:].T
    found = retrieval.run(train, test, Settings(predictions=60), seed=0)
    scores, correct = [], []
    for i, answers in enumerate(test.target.queries.tasks["hard"].values()):
        kept = [j for j, sample in enumerate(test.ids[8:]) if sample not in answers.ignored]
        scores += similarity[i, kept].tolist()
        correct += [test.ids[8:][j] in answers.positives for j in kept]
    hits = np.array(correct)[np.argsort(scores)[::-1]]
    expected = (np.cumsum(hits) / np.arange(1, len(hits) + 1))[hits].sum() / 32
    assert values(found)["micro_AP"] == pytest.approx(expected, abs=1e-4)
    assert found.metrics["micro_AP"][1] < values(found)["micro_AP"] < found.metrics["micro_AP"][2]
    normalised = retrieval.run(train, test, Settings(predictions=60, normalise_scores=True), seed=0)
    assert values(normalised)["micro_AP"] != values(found)["micro_AP"]
    assert retrieval.part(Settings(predictions=5, normalise_scores=True)) is None
    with pytest.raises(DataError, match="needs the 3 nearest images of train, which has 2"):
        retrieval.run(train.select(np.arange(2)), test, Settings(predictions=5, normalise_scores=True), seed=0)


def test_more_components_than_images_are_refused_and_fewer_images_than_features_are_enough(blobs):
    train, test = blobs(5, 40, width=9)
    with pytest.raises(UsageError, match="5 training images of 9 features have 4 components"):
        retrieval.run(train, test, Settings(whiten=True, components=5), seed=0)
    assert np.isfinite(values(retrieval.run(train, test, Settings(whiten=True), seed=0))["retrieval_mAP"])
    alone = train.select(np.zeros(1, int))
    with pytest.raises(DataError, match="1 training images do not suffice to learn whitening"):
        retrieval.run(alone, test, Settings(whiten=True), seed=0)


def test_the_search_holds_no_more_than_its_memory():
    """Blocks of 1 query x 1 image, and of everything, give the same ranks."""
    rng = np.random.default_rng(3)
    x = unit(rng.normal(size=(70, 8))).astype(np.float32)

    def truth(query):
        return GroundTruth(np.array([(query + 7) % 70, (query + 9) % 70]), np.array([query]))

    found = [[r.tolist() for r in positive_ranks(x, x, truth, max_memory=memory)] for memory in (1e-9, 1.0)]
    assert found[0] == found[1]
