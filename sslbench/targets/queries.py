"""Queries of a retrieval data set and their answers, by ids of images."""

import dataclasses
import hashlib
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Answers:
    """Answers to one query.

    Attributes:
        positives: ids of the images to be found.
        ignored: ids of images that are taken out of the ranking ("junk" of Oxford and Paris).
    """

    positives: tuple[str, ...]
    ignored: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Queries:
    """Queries of a retrieval data set.

    Attributes:
        tasks: name -> (id of the query -> its answers). Several tasks on the same images (medium, hard, easy; strong
            copies, crops) are reported one by one, the first leads; an only task is called ''.
        apart: ids of queries that are not part of the database.

    >>> queries = Queries({"": {"q.jpg": Answers(("a.jpg",))}}, frozenset({"q.jpg"}))
    >>> len(queries.digest())
    32
    """

    tasks: Mapping[str, Mapping[str, Answers]]
    apart: frozenset[str] = frozenset()

    def digest(self) -> str:
        """Return a hash of all of it, 32 hex digits."""
        state = hashlib.sha256("\n".join(sorted(self.apart)).encode())
        for name, answers in self.tasks.items():
            for query, each in sorted(answers.items()):
                parts = (name, query, *sorted(each.positives), "", *sorted(each.ignored))
                state.update("\0".join(parts).encode() + b"\n")
        return state.hexdigest()[:32]
