"""`--plan`: what it says about a run is what the run then does."""

import re

from transformer import command, train

TINY = [
    "--config=configs/quickstart.py",
    "--config.data.synthetic_examples=400",
    "--config.data.workers=1",
    "--config.data.max_length=64",
    "--config.tokenizer.vocab_size=60",
    "--config.batch.tokens=512",
    "--config.batch.max_buckets=2",
    "--config.model.num_layers=1",
    "--config.model.d_model=16",
    "--config.model.d_ff=32",
    "--config.model.num_heads=2",
    "--config.optimizer.warmup_steps=2",
    "--config.training.steps=4",
    "--config.training.eval_every=4",
    "--config.checkpoint.every=2",
]


def test_the_plan_is_printed_and_nothing_is_trained(tmp_path, capsys):
    argv = [*TINY, f"--workdir={tmp_path / 'run'}", f"--config.data.cache_dir={tmp_path / 'cache'}", "--plan"]
    assert command.execute(train.make_parser(), train.main, argv) == 0
    plan = capsys.readouterr().out
    # Embedding 60 x 16; attention 4 x 16^2; FFN 2 x 16 x 32 + 32 + 16; two numbers a unit in each norm.
    attention, feed_forward, norm = 4 * 16**2, 2 * 16 * 32 + 32 + 16, 2 * 16
    total = 60 * 16 + (attention + feed_forward + 2 * norm) + (2 * attention + feed_forward + 3 * norm)
    assert f"parameters  in all: {total:,}" in plan
    batches = sum(int(count) for count in re.findall(r"(\d+) an epoch", plan))
    steps = float(re.search(r"target tokens, ([\d.]+) steps", plan)[1])
    assert batches == steps
    assert float(re.search(r"4 steps, ([\d.]+) epochs", plan)[1]) == round(4 / steps, 1)
    assert re.search(r"largest     [\d,]+ MiB a device, [\d.]+ GFLOP", plan)
    assert "checkpoints 3 kept" in plan  # of steps 2 and 4, and room for another that is the best
    assert re.search(r"time        \d+:\d\d:\d\d of training", plan)
    assert not (tmp_path / "run" / "checkpoints").exists() and not (tmp_path / "run" / "metrics.jsonl").exists()
