"""Detection of programs that XLA computes wrongly on CPUs."""

import re

import jax

from transformer.errors import UserError

FLAG = "--xla_cpu_experimental_ynn_fusion_type=-reduce"

_FUSION = re.compile(r'fusion\(.*calls=(%?[\w.\-]+),.*"__ynn_fusion"')
_DOT = re.compile(r" dot\(\S+ (%?[\w.\-]+)\)(.*)")
_DIMENSIONS = re.compile(r"rhs_(batch|contracting)_dims=\{([\d,]+)\}")
_OPERATION = re.compile(r'op_name="([^"]*)"')


def compile_program(lowered: jax.stages.Lowered, **options: object) -> jax.stages.Compiled:
    """Compiles the program. Raises UserError if XLA computes one of its products wrongly on CPUs."""
    compiled = lowered.compile(**options)
    if jax.default_backend() == "cpu" and (operation := miscompiled_operation(compiled.as_text() or "")):
        raise UserError(
            f"{operation}: XLA computes this product wrongly on CPUs, since its right operand is broadcast and its "
            f"result reduced; multiply by the operand before its broadcast, or set XLA_FLAGS={FLAG}, which is slower"
        )
    return compiled


def miscompiled_operation(text: str) -> str | None:
    """Returns the name of a product that this program, as `as_text` prints it, computes wrongly, or None.

    XLA fuses the product with the reduction of its result and with the broadcast that makes its right operand, for
    YNNPACK. Then some operands are read with wrong strides or outside their memory. The kinds of broadcast below are
    those for which random products gave garbage, with JAX 0.10.2 and 0.12.0.1.
    """
    fused = set(_FUSION.findall(text))
    for computation in text.split("\n\n") if fused else ():
        if computation.partition(" ")[0] not in fused:
            continue
        for operand, attributes in _DOT.findall(computation):
            dimensions = {kind: set(numbers.split(",")) for kind, numbers in _DIMENSIONS.findall(attributes)}
            if _is_misread(operand, dimensions.get("batch", set()), dimensions["contracting"], computation):
                operation = _OPERATION.search(attributes)
                return operation[1] if operation else "a product"
    return None


def _is_misread(operand: str, batch: set[str], contracting: set[str], computation: str) -> bool:
    """Tells whether the operand is a broadcast that XLA misreads, from the dimensions along which it varies."""
    name = re.escape(operand)
    broadcast = re.search(rf"{name} = \w+\[([\d,]+)\]\S* broadcast\(.*?\), dimensions=\{{([\d,]*)\}}", computation)
    if broadcast is None:
        return False
    last = str(broadcast[1].count(","))
    varying = set(filter(None, broadcast[2].split(",")))
    varies_in_rows, varies_in_columns = not varying <= batch | contracting, bool(varying & contracting)
    if last in contracting:  # a transposed matrix: right if all its rows, or all its columns, are equal
        return varies_in_rows == varies_in_columns
    return not varies_in_rows
