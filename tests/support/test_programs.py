"""Programs compiled ahead of time: which arguments share one, and which devices."""

import jax
import jax.numpy as jnp
import numpy as np

from transformer.support.programs import Programs

STATE = {"weight": jnp.ones(3)}


def scaled(state, batch, factor):
    return jax.tree.map(lambda x: factor * x.sum() * state["weight"].sum(), batch)


def test_programs_differ_by_the_function_and_the_shapes_of_all_arguments_but_the_first():
    programs, function = Programs(), jax.jit(scaled)
    first = programs.compile(function, STATE, {"x": np.zeros((2, 3))}, 1)
    abstract = {"x": jax.ShapeDtypeStruct((2, 3), jnp.float32)}
    assert programs.compile(function, STATE, abstract, 2) is first
    different = [
        (function, {"x": np.zeros((2, 4))}, 1),
        (function, {"y": np.zeros((2, 3))}, 1),
        (function, {"x": np.zeros((2, 3))}, np.ones(1)),
        (jax.jit(lambda state, batch, factor: batch), {"x": np.zeros((2, 3))}, 1),
    ]
    compiled = [programs.compile(function, STATE, *arguments) for function, *arguments in different]
    assert len({id(program) for program in [first, *compiled]}) == 5
    (x,) = programs.run(function, STATE, {"x": np.ones((2, 4), np.float32)}, 2).values()
    assert x == 2 * 8 * 3


def test_a_device_has_a_program_of_its_own_that_runs_on_it():
    programs, function, (device, *_) = Programs(), jax.jit(scaled), jax.local_devices()
    batch, factor = {"x": jnp.ones((2, 3))}, jnp.float32(1)
    program = programs.compile(function, STATE, batch, factor, device=device)
    assert program is not programs.compile(function, STATE, batch, factor)
    assert program(STATE, batch, factor)["x"].devices() == {device}


def test_without_jit_the_function_itself_runs(monkeypatch):
    shapes = []

    def function(state, x):
        shapes.append(type(x))
        return x

    with jax.disable_jit():
        programs = Programs()
        programs.run(jax.jit(function), STATE, np.ones(2))
        programs.run(jax.jit(function), STATE, np.ones(2))
    assert shapes == [np.ndarray] * 2
