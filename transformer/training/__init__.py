"""Sections 5.2 to 5.4 of the paper: the step, its state, and what a run keeps of itself."""
