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
    query_expansion: int = setting(0, "first neighbours that are added to every query; 0: none")
    augmentation: int = setting(
        0, "first neighbours that are added to every image of the database; 0: none; needs database=train"
    )
    alpha: float = setting(3.0, "power of the similarity, by which added neighbours are weighted; 0: equal weights")
    max_memory: float = setting(1.0, "working memory of the search", unit="GB", changes_result=False)
