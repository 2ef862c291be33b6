"""Trees of a small grammar in the format of the Penn Treebank, with traces and function tags."""

import random

# Words with a tag are leaves; a trace has no word of the sentence.
RULES = {
    "S": [["NP-SBJ", "VP", "(. .)"], ["PP-TMP", "(, ,)", "NP-SBJ=2", "VP", "(. ?)"]],
    "NP": [
        ["(DT the)", "(NN dog)"],
        ["NP", "PP-LOC"],
        ["(NNP Ann)"],
        ["(-NONE- *T*-1)"],
        ["(-LRB- -LRB-)", "NP", "(-RRB- -RRB-)"],
    ],
    "VP": [["(VBZ sleeps)"], ["(VBZ sees)", "NP"], ["(VBZ says)", "SBAR"], ["VP", "ADVP"]],
    "PP": [["(IN near)", "NP"]],
    "SBAR": [["(`` ``)", "S", "('' '')"], ["(-NONE- 0)", "S"]],
    "ADVP": [["(RB soon)"], ["(: --)", "(RB well)"]],
}
LABELS = [*RULES]


def random_tree(generator: random.Random, label: str = "S", depth: int = 0) -> str:
    """Returns a tree without the outermost brackets, in several lines."""
    rules = RULES[label.split("-")[0].split("=")[0]]
    rule = rules[0] if depth > 5 else generator.choice(rules)
    children = [
        part if part.startswith("(") else random_tree(generator, part, depth + 1) for part in rule
    ]
    indent = "\n" + "  " * (depth + 1)
    return f"({label} {indent.join(children)})"


def random_treebank(seed: int, count: int) -> str:
    generator = random.Random(seed)
    return "".join(f"( {random_tree(generator)} )\n" for _ in range(count))
