"""Training loop, optimizers, schedules, checkpoints, observers, and the interface of a method."""
