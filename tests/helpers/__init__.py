"""Small data, networks, records and processes that tests of several folders share."""
