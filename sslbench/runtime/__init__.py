"""Runtime services shared by training, evaluation and detection: device, worker count, random states, signals."""
