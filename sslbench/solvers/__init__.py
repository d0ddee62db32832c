"""Solvers: mathematics on arrays, free of files, protocols and printing."""
