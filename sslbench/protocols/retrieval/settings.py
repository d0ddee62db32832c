"""Settings of retrieval."""

import dataclasses
from typing import Literal

from sslbench.config import setting


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of retrieval."""

    database: Literal["test", "train"] = setting(
        "test", "part that is searched: test, every test image is a query to the others; train, a query to train"
    )
    whiten: bool = setting(False, "PCA-whitening of the descriptors, learnt on train; then unit length again")
    components: int = setting(0, "dimensions that whitening keeps; 0: all")
    covariance: Literal["centred", "uncentred"] = setting(
        "centred", "covariance that is whitened; uncentred: second moments about 0, as DINO does"
    )
    query_expansion: int = setting(0, "first neighbours that are added to every query; 0: none")
    augmentation: int = setting(
        0, "first neighbours that are added to every image of the database; 0: none; needs queries apart from it"
    )
    alpha: float = setting(3.0, "power of the similarity, by which added neighbours are weighted; 0: equal weights")
    predictions: int = setting(
        0, "copy detection: first images of each query that are predictions, all ranked in one list; 0: none"
    )
    normalise_scores: bool = setting(
        False, "copy detection: subtract a query's mean similarity to its 3 nearest images of train"
    )
    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False)
