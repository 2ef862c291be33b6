"""Section 3 of the paper, a file a subsection."""
