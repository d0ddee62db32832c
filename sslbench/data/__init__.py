"""Data: from a `--data` string to named samples, labels, pixels and batches."""
