"""Settings of the protocol on orientations."""

import dataclasses

from sslbench.protocols._parts.signals import SignalSettings


@dataclasses.dataclass(frozen=True)
class Settings(SignalSettings):
    """Settings of the regression of orientations by trained heads."""
