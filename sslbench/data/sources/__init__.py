"""Kinds of data locations, a module each: `recognises(spec)` and `open(spec)`; the file name is the registry."""
