"""Export of any source as a kwcoco manifest; images inside containers are extracted to files."""
