"""Weight formats: the tables of `model_converters/`, recognition, and the operations between naming schemes."""
