"""Reading weights files safely: nothing in them is ever run."""
