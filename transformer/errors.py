"""The one exception a user can cause."""


class UserError(Exception):
    """What the user gave cannot be used. The message: the key or file, the value received, what is allowed."""
