"""Section 3 of the paper, one file per subsection."""
