"""Weight formats: tables of `model_converters/`, recognition, operations on tensors, layout of written files."""
