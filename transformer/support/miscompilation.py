"""Matmuls that XLA computes wrongly on CPUs, found in the text of a compiled program."""

import re

FLAG = "--xla_cpu_experimental_ynn_fusion_type=-reduce"  # avoids the miscompilation
# Patterns in the text of a compiled program.
_FUSION = re.compile(r'fusion\(.*calls=(%?[\w.\-]+),.*"__ynn_fusion"')
_DOT = re.compile(r" dot\(\S+ (%?[\w.\-]+)\)(.*)")
_DIMENSIONS = re.compile(r"rhs_(batch|contracting)_dims=\{([\d,]+)\}")
_OPERATION = re.compile(r'op_name="([^"]*)"')


def miscompiled_operation(text: str) -> str | None:
    """Returns the name of a matmul that a program computes wrongly, or None.

    `text` is the program as `as_text` prints it. For YNNPACK, XLA fuses the matmul with the
    reduction of its result and the broadcast of its right operand, which is then read with wrong
    strides. Random matmuls gave garbage for the broadcasts below, with JAX 0.10.2 and 0.12.0.1.
    """
    fused_names = set(_FUSION.findall(text))
    for computation in text.split("\n\n") if fused_names else ():
        if computation.partition(" ")[0] not in fused_names:
            continue
        for operand, attributes in _DOT.findall(computation):
            dimensions = {"batch": set()}
            for kind, numbers in _DIMENSIONS.findall(attributes):
                dimensions[kind] = set(numbers.split(","))
            if _is_misread(operand, dimensions["batch"], dimensions["contracting"], computation):
                operation = _OPERATION.search(attributes)
                return operation[1] if operation else "a product"
    return None


def _is_misread(operand: str, batch: set[str], contracting: set[str], computation: str) -> bool:
    """True if the operand is a broadcast that XLA misreads.

    This depends on the dimensions along which the operand varies.
    """
    name = re.escape(operand)
    broadcast = re.search(
        rf"{name} = \w+\[([\d,]+)\]\S* broadcast\(.*?\), dimensions=\{{([\d,]*)\}}", computation
    )
    if broadcast is None:
        return False
    last = str(broadcast[1].count(","))
    varying = set(filter(None, broadcast[2].split(",")))
    varies_in_rows = not varying <= batch | contracting
    varies_in_columns = bool(varying & contracting)
    # A transposed matrix is read correctly if all its rows, or all its columns, are equal.
    if last in contracting:
        return varies_in_rows == varies_in_columns
    return not varies_in_rows
