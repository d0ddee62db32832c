"""Settings of the protocol on low-level signals."""

import dataclasses

from sslbench.config import setting
from sslbench.data.signals import Signal
from sslbench.protocols._parts.signals import SignalSettings


@dataclasses.dataclass(frozen=True)
class Settings(SignalSettings):
    """Settings of the regression of signals by trained heads."""

    signal: Signal | None = setting(
        None,
        "edges: strength of the gradient; corners: Shi and Tomasi's; null: the maps of ?maps=NAME, otherwise edges",
    )
