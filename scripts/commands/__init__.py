"""The work of the commands that compute. `scripts/NAME.py` has the flags, and imports this after they are parsed."""
