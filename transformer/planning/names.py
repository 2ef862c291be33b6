"""Names of a program's instructions that a reader of the model's code recognizes."""

from transformer.planning.hlo import Instruction, Program

STEP, MODEL = "TrainStep.", "Transformer."  # what calls the model, and the outermost module, are the same everywhere


def describe(program: Program, instruction: Instruction) -> str:
    """Returns the modules and the operation that an instruction belongs to.

    For instance "Decoder/FeedForward/Linear dot_general (backward)". An instruction without a source has its own name.
    """
    functions = [name.removesuffix(".__call__") for name in program.functions(instruction)]
    calls = [place for place, name in enumerate(functions) if name.startswith(STEP)]
    inner = functions[calls[-1] + 1 :] if calls else functions
    methods = [name for name in inner if name[:1].isupper() and "<" not in name and not f"{name}.".startswith(MODEL)]
    methods = list(dict.fromkeys(methods))
    path = [*methods[:1], *methods[1:][-2:]] or [functions[place].split(".<")[0] for place in calls[-1:]]
    operation = instruction.op_name.rpartition("/")[2] or instruction.opcode
    prefix = ["copy of"] * instruction.opcode.startswith(("copy-", "slice-")) + ["/".join(path)] * bool(path)
    suffix = ["(backward)"] * ("transpose(jvp" in instruction.op_name)
    return " ".join([*prefix, operation, *suffix])
