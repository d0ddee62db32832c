"""One file per protocol: a settings dataclass and a function from features, or from images, to metrics and scores."""
