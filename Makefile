# make quickstart   train, evaluate and use a small translator: minutes, and no data to download
# make test         the fast tests
# make slow         all tests, including training runs of minutes, with XLA's optimizations on and more examples
# make hostile      broken and hostile input: thousands of new random examples
# make lint         ruff, and mypy on transformer/
# make docs         the documentation as a site with search, in site/
# make mtdata       the environment of scripts.get_data's --recipe and --train, .venv-mtdata
# make bench        the environment of scripts.benchmark's --peers, .venv-bench
# make interop      the environment of other toolkits for scripts.import_model and scripts.export, .venv-interop
#
# PYTHON=python3.12 names the Python that makes an environment, which then keeps it; VENV=.venv-3.12 names its folder.
# make test TESTS="tests/model tests/training" runs some tests only.

PYTHON ?= python3
VENV ?= .venv
RUN := $(VENV)/bin/python
# Copies the scores of an evaluation, and fails if they are too low.
REQUIRE_EXACT := import json, sys; text = sys.stdin.read(); print(text, end=""); \
	sys.exit("exact_match must be at least 0.995" if json.loads(text)["exact_match"] < 0.995 else 0)

# A test that takes five minutes counts as hanging: it fails, with the stacks of its threads, and the run ends.
END_HANGING := --max-worker-restart=0 -o faulthandler_timeout=300 -o faulthandler_exit_on_timeout=true

.PHONY: quickstart test slow hostile lint docs mtdata bench interop

quickstart: $(VENV)/installed
	$(RUN) -m transformer.train --config=configs/quickstart.py --workdir=runs/quickstart
	$(RUN) -m transformer.evaluate --workdir=runs/quickstart --split=test | $(RUN) -c '$(REQUIRE_EXACT)'
	printf '%s\n' 'On the third of May at half past four Anna will buy two old books for fifty-three euros.' \
		'I think that my brother hid the red lamp in the garden.' 'Must we sell the twelve small clocks on Monday?' \
		| $(RUN) -m transformer.translate --workdir=runs/quickstart

test: $(VENV)/installed-dev
	$(RUN) -m pytest $(TESTS) -n 2 --dist loadfile --no-loadscope-reorder $(END_HANGING)

slow: $(VENV)/installed-dev
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m ''

hostile: $(VENV)/installed-dev
	$(RUN) -m pytest tests/hostile --hypothesis-profile=thorough

lint: $(VENV)/installed-dev
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: $(VENV)/installed-dev
	$(RUN) -m sphinx --fail-on-warning --keep-going --quiet docs site

mtdata: .venv-mtdata/installed

.venv-mtdata/installed: requirements/mtdata.txt
	$(PYTHON) -m venv .venv-mtdata
	.venv-mtdata/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/mtdata.txt
	@touch $@

bench: .venv-bench/installed

.venv-bench/installed: requirements/bench.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/bench.txt
	@touch $@

interop: .venv-interop/installed

.venv-interop/installed: requirements/toolkits.txt
	$(PYTHON) -m venv .venv-interop
	.venv-interop/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/toolkits.txt
	command -v npm > /dev/null || echo 'npm is missing: no certificates by @browsermt/bergamot-translator' >&2
	! command -v npm > /dev/null || npm install --silent --ignore-scripts --no-audit --no-fund --prefix .venv-interop \
		@browsermt/bergamot-translator@0.4.9
	@touch $@

$(VENV)/installed: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
		{ echo 'error: $(PYTHON) is missing or older than 3.11; name another one: make PYTHON=python3.12' >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed requirements/*.txt
	$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements/dev.txt
	@touch $@
