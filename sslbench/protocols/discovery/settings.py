"""Settings of `eval discovery`."""

import dataclasses

from sslbench.protocols._parts.map_settings import SearchSettings


@dataclasses.dataclass(frozen=True)
class Settings(SearchSettings):
    """Settings of object discovery."""
