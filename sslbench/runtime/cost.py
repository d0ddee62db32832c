"""Work of a computation as counts, from which a measured machine gives the time."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Cost:
    """Work of a computation; costs that are added follow one another.

    Attributes:
        single: floating-point operations of float32 matrix products; a multiply-add is two.
        double: floating-point operations of float64 matrix products and decompositions.
        search: floating-point operations of products inside a faiss search, whose kernels are other ones.
        traffic: bytes that passes over arrays read and write in one thread.
        calls: calls of array functions on small arrays.
        memory: bytes held at the peak, without features that are read from the store page by page.
        scores: bytes of the files of scores.

    >>> both = Cost(single=2e9, memory=3e6) + Cost(single=1e9, memory=5e6)
    >>> both.single, both.memory
    (3000000000.0, 5000000.0)
    """

    single: float = 0.0
    double: float = 0.0
    search: float = 0.0
    traffic: float = 0.0
    calls: float = 0.0
    memory: float = 0.0
    scores: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        """Return the cost of one computation after the other: work adds up, memory is that of the larger one."""
        return Cost(
            self.single + other.single,
            self.double + other.double,
            self.search + other.search,
            self.traffic + other.traffic,
            self.calls + other.calls,
            max(self.memory, other.memory),
            self.scores + other.scores,
        )

    def times(self, number: float) -> "Cost":
        """Return the cost of the same computation several times in a row, the memory that of one."""
        return dataclasses.replace(
            self,
            single=self.single * number,
            double=self.double * number,
            search=self.search * number,
            traffic=self.traffic * number,
            calls=self.calls * number,
        )

    def beside(self, memory: float) -> "Cost":
        """Return the cost where further bytes are held all the time."""
        return dataclasses.replace(self, memory=self.memory + memory)
