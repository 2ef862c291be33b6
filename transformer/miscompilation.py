"""Detection of programs that XLA computes wrongly on CPUs."""

import re

import jax

from transformer.errors import UserError

FLAG = "--xla_cpu_experimental_ynn_fusion_type=-reduce"

_FUSION = re.compile(r'fusion\(.*calls=(%?[\w.\-]+),.*"__ynn_fusion"')
_DOT = re.compile(r" dot\(\S+ (%?[\w.\-]+)\)(.*)")
_OTHERS = re.compile(r"rhs_(?:batch|contracting)_dims=\{([\d,]+)\}")
_OPERATION = re.compile(r'op_name="([^"]*)"')


def compile_program(lowered: jax.stages.Lowered, **options: object) -> jax.stages.Compiled:
    """Compiles the program. Raises UserError if XLA computes one of its products wrongly on CPUs."""
    compiled = lowered.compile(**options)
    if jax.default_backend() == "cpu" and (operation := miscompiled_operation(compiled.as_text() or "")):
        raise UserError(
            f"{operation}: XLA computes this product wrongly on CPUs, since all columns of its right operand are equal "
            f"and its result is reduced; multiply by one column instead, or set XLA_FLAGS={FLAG}, which is slower"
        )
    return compiled


def miscompiled_operation(text: str) -> str | None:
    """Returns the name of a product that this program, as `as_text` prints it, computes wrongly, or None.

    XLA fuses the product with the reduction of its result and with the broadcast that makes its right operand, for
    YNNPACK. If the operand varies neither along its last dimension nor along its columns, the product reads memory
    outside it. Random products of all kinds gave garbage in these cases only, with JAX 0.10.2 and 0.12.0.1.
    """
    fused = set(_FUSION.findall(text))
    for computation in text.split("\n\n") if fused else ():
        if computation.partition(" ")[0] not in fused:
            continue
        for operand, attributes in _DOT.findall(computation):
            others = {number for group in _OTHERS.findall(attributes) for number in group.split(",")}
            if _has_equal_columns(operand, others, computation):
                operation = _OPERATION.search(attributes)
                return operation[1] if operation else "a product"
    return None


def _has_equal_columns(operand: str, others: set[str], computation: str) -> bool:
    """Tells whether the operand is a broadcast that varies along some of `others` at most, and not the last of all."""
    broadcast = re.search(
        rf"{re.escape(operand)} = \w+\[([\d,]+)\]\S* broadcast\(.*?\), dimensions=\{{([\d,]*)\}}", computation
    )
    return broadcast is not None and set(broadcast[2].split(",")) - {""} <= others - {str(broadcast[1].count(","))}
