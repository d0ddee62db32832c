"""The training loop and what it needs: optimizers, schedules applied, checkpoints, the interface of a method."""
