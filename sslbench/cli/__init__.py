"""Command line; no other package prints or knows about flags and progress bars."""
