"""Commands of the command line: a file or package each, with its options and its handler."""
