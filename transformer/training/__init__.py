"""Sections 5.2 to 5.4 of the paper: the training step, its state and its metrics."""
