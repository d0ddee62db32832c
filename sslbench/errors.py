"""The errors a user can cause. Each carries the whole message: what is wrong, where, and what to do about it."""


class SslbenchError(Exception):
    """Base of every error that is the user's to mend; the command line prints it without a traceback.

    `message` says what is wrong and where (file, key, name); `remedy`, when given, is one line saying what to do.
    """

    exit_code = 1
    told_by_first = False
    """Whether several processes raise it together and the first one prints it."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        super().__init__(message if remedy is None else f"{message}\n{remedy}")
        self.message = message
        self.remedy = remedy


class UsageError(SslbenchError):
    """The command itself is wrong: an unknown flag, key, name or path, or settings that contradict each other."""

    exit_code = 2


class DataError(SslbenchError):
    """The data cannot be evaluated as it is: unreadable images, one class, labels that do not fit."""


class WeightsError(SslbenchError):
    """The weights cannot be read, are not recognised, or do not fit the backbone."""


class BackboneError(SslbenchError):
    """The backbone cannot be built, or does not have the layer asked for."""


class StoreError(SslbenchError):
    """A feature store is incomplete, inconsistent or being written by somebody else."""


class ResultError(SslbenchError):
    """A result record cannot be read, or results were asked to be compared that cannot be."""
