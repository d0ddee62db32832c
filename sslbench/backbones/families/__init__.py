"""Families of architectures, a module each with its `Family` as FAMILY."""
