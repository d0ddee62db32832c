"""Batches from worker processes: in order for evaluation, shuffled and augmented for training."""
