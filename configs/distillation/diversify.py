"""Data diversification (Nguyen et al. 2020) on Multi30k: a model learns from what models of both
directions translate.

Command:   python -m scripts.distill --plan=configs/distillation/diversify.py
               --workdir=runs/diversify
Hardware:  four runs of configs/multi30k.py, and two of twice its steps.
Expect:    on test2016, lower-cased and tokenized, 41.7 for a forward model and 42.9 for a student.

Two models of each direction translate all training sentences of their source language. A model of
the same size learns from the real pairs and from both kinds of synthetic ones, in twice the steps.
"""

CONFIG = "configs/multi30k.py"
REVERSED = {"data.source_language": "de", "data.target_language": "en"}
LAST = {"checkpoint": "last", "average": 10}


def get_plan(plan):
    forward = [plan.train(f"forward-{seed}", CONFIG, {"seed": seed}) for seed in range(2)]
    backward = [
        plan.train(f"backward-{seed}", CONFIG, REVERSED | {"seed": seed}) for seed in range(2)
    ]
    outputs = [
        plan.translate(f"by-{model.name}", model, CONFIG, **LAST) for model in (*forward, *backward)
    ]
    pairs = plan.mix("pairs", CONFIG, *outputs)
    longer = {"training.steps": 12_800, "training.eval_every": 3_200}
    students = [
        plan.train(f"student-{seed}", CONFIG, longer | {"seed": seed}, data=pairs)
        for seed in range(2)
    ]
    models = [*forward, *students]
    return [
        plan.measure(model, split=split, **LAST) for model in models for split in ("valid", "test")
    ]
