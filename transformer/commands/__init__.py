"""Implementations of the commands. `transformer/NAME.py` parses the flags before it imports these modules, and JAX."""
