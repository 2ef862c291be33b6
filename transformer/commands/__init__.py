"""The work of the commands. `transformer/NAME.py` has the flags, and imports this and JAX after they are parsed."""
