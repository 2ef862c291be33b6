"""Parts of `scripts.reproduce`: the runs of a table, the paper's claims about it, and the test of each claim."""
