"""Kinds of data locations, a module or package each: `recognises(spec)` and `open(spec)`; the name is the registry."""
