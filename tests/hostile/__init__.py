"""Properties over broken and hostile input: it is used, or refused in one line; never a traceback or a hang.

By default a test tries a share of its examples, the same each time. `make hostile` tries many times more, others each
time, and prints how to repeat a failure.
"""
