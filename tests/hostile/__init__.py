"""Property tests over broken and hostile input: a command accepts it or refuses it in one line,
without hanging.

The default profile runs a fixed set of examples. `make hostile` runs many more, different ones each
time, and prints how to reproduce a failure.
"""
