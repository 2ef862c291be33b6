"""Small, fast students of Multi30k models: a recurrent decoder (SSRU) of one layer, in three
widths.

Command:   python -m scripts.distill --plan=configs/distillation/student.py --workdir=runs/student
Hardware:  two runs of configs/multi30k.py, and four of smaller models. The report compares speeds,
           so nothing else may run on the machine while the last stages measure them;
           --decoding.dtype=int8 needs a CPU with VNNI or AMX.
Expect:    41.2 BLEU of the widest student at 2.7 times the speed of a teacher that has 42.9,
           lower-cased and tokenized, on the validation split (docs/distillation.md).

The students learn only what the ensemble of both teachers writes, without real pairs, and are
decoded greedily: in floating point and in int8, over the whole vocabulary and with a lexical
shortlist.

CTranslate2 has no SSRU. So it gets a teacher, and a student whose decoder has self-attention and is
otherwise the widest one. Both are decoded in int8, with the same beams as here.
"""

CONFIG = "configs/multi30k.py"
LAST = {"checkpoint": "last", "average": 10}
SMALL = {
    "model.decoder_self_attention": "ssru",
    "model.num_decoder_layers": 1,
    "model.dropout": 0.1,
}
WIDTHS = {"wide": (128, 256), "middle": (96, 192), "narrow": (64, 128)}
INT8, SHORTLIST, GREEDY = {"dtype": "int8"}, {"shortlist": 32}, {"beam_size": 1}
FORMS = {"float": {}, "shortlist": SHORTLIST, "int8": INT8, "int8-shortlist": INT8 | SHORTLIST}


def get_plan(plan):
    teachers = [plan.train(f"teacher-{seed}", CONFIG, {"seed": seed}) for seed in range(2)]
    outputs = plan.translate("outputs", teachers, CONFIG, n_best=5, choose="bleu", **LAST)
    pairs = plan.mix("pairs", CONFIG, outputs, copies=0)
    students = [
        plan.train(name, CONFIG, SMALL | {"model.d_model": d_model, "model.d_ff": d_ff}, data=pairs)
        for name, (d_model, d_ff) in WIDTHS.items()
    ]
    exported = plan.train(
        "attention", CONFIG, SMALL | {"model.decoder_self_attention": "attention"}, data=pairs
    )
    ctranslate2 = {"format": "ctranslate2", "quantization": "int8", **LAST}
    return [
        plan.measure(teachers, name="both", **LAST),
        plan.measure(teachers[0], name="teacher-0-float", **LAST),
        plan.measure(teachers[0], name="teacher-0-int8", decoding=INT8, **LAST),
        plan.export(teachers[0], **ctranslate2),
        *(
            plan.measure(student, name=f"{student.name}-{form}", decoding=GREEDY | decoding, **LAST)
            for student in (*students, exported)
            for form, decoding in FORMS.items()
        ),
        plan.export(exported, decoding=GREEDY, **ctranslate2),
    ]
