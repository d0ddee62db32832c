"""The command line: the only place that knows Hydra, flags, print and progress bars."""
