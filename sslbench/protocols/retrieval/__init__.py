"""Instance, category and copy retrieval on descriptors of a frozen backbone."""
