"""Small, fast students of Multi30k models: a recurrent decoder (SSRU) of one layer, in three widths.

Command:   python -m scripts.distill --plan=configs/distillation/student.py --workdir=runs/student
Hardware:  two runs of configs/multi30k.py, and three of smaller models.

The students learn only what the ensemble of both teachers writes, without real pairs, and are decoded greedily.
"""

CONFIG = "configs/multi30k.py"
LAST = {"checkpoint": "last", "average": 10}
SMALL = {"model.decoder_self_attention": "ssru", "model.num_decoder_layers": 1, "model.dropout": 0.1}


def get_plan(plan):
    teachers = [plan.train(f"teacher-{seed}", CONFIG, {"seed": seed}) for seed in range(2)]
    outputs = plan.translate("outputs", teachers, CONFIG, n_best=5, choose="bleu", **LAST)
    pairs = plan.mix("pairs", CONFIG, outputs, copies=0)
    widths = {"wide": (128, 256), "middle": (96, 192), "narrow": (64, 128)}
    students = [
        plan.train(name, CONFIG, SMALL | {"model.d_model": d_model, "model.d_ff": d_ff}, data=pairs)
        for name, (d_model, d_ff) in widths.items()
    ]
    greedy = {"beam_size": 1}
    measured = [plan.measure(student, decoding=greedy, **LAST) for student in students]
    return [plan.measure(teachers[0], **LAST), plan.measure(teachers, name="both-valid", **LAST), *measured]
