"""Pretraining methods: one file each, named as the method; shared parts are in `_parts`."""
