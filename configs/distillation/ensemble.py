"""An ensemble in one model (Kim and Rush 2016): a student learns what three seeds of Multi30k
translate together.

Command:   python -m scripts.distill --plan=configs/distillation/ensemble.py --workdir=runs/ensemble
Hardware:  four runs of configs/multi30k.py, and half an hour of translating on two CPU cores.
Expect:    on test2016, lower-cased and tokenized, 41.5 for a teacher, 42.7 for the ensemble and
           42.6 for the student.

Of five hypotheses of the ensemble the student learns the one with the best sentence BLEU, beside
the real pairs.
"""

CONFIG = "configs/multi30k.py"
LAST = {"checkpoint": "last", "average": 10}


def get_plan(plan):
    teachers = [plan.train(f"teacher-{seed}", CONFIG, {"seed": seed}) for seed in range(3)]
    outputs = plan.translate("outputs", teachers, CONFIG, n_best=5, choose="bleu", **LAST)
    student = plan.train("student", CONFIG, {"seed": 3}, data=plan.mix("pairs", CONFIG, outputs))
    models = [*teachers, student]
    measured = [
        plan.measure(model, split=split, **LAST) for model in models for split in ("valid", "test")
    ]
    together = [
        plan.measure(teachers, split=split, name=f"ensemble-{split}", **LAST)
        for split in ("valid", "test")
    ]
    return [*together, *measured]
