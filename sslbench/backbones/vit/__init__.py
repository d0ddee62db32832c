"""Vision transformers: recognised from their shapes, position embeddings fitted to an image size."""
