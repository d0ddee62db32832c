"""One file per protocol: a settings dataclass and a function from features to metrics and scores."""
