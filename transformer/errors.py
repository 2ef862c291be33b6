"""The exception for errors that the user can correct."""


class UserError(ValueError):
    """Raised for unusable input. The message names the key or file, the value received, and the allowed values."""
