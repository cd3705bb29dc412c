# `make demo` trains a small GPT and shows where its heads look; `make test` runs the suite.
# Both create .venv and install what they need, under the tested versions of constraints.txt: the
# demo heedful alone, all others also what develops, documents and compares it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Marker files make the second call quick: nothing is asked of an index.
READY := $(VENV)/.installed
ALL := $(VENV)/.installed-all
JUPYTER := $(VENV)/.installed-jupyter
PAGE := node_modules/.installed
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: demo test test-slow lint lint-page format bench docs lessons pictures dist clean help

help:
	@echo "make demo    train a small GPT on two cores, sample from it, see where it looks"
	@echo "make test    the tests, with the doctests"
	@echo "make test-slow  the pages and lessons, each run; the site; notebooks; processes; compiled models"
	@echo "make lint    ruff and mypy; biome and tsc for the explorer's page where npm is"
	@echo "make bench   the benchmarks, each beside a peer in the same run; TEXT=sales_textbook.txt"
	@echo "             adds the run of document 004 (Zhang, LLM: From Zero to Hero)"
	@echo "make docs    the documentation site, into build/site; a warning is an error"
	@echo "make lessons run the lessons, and store what they print"
	@echo "make pictures  draw the pictures of docs/pictures again, from models trained anew"
	@echo "make dist    the wheel and the sdist, and a command run from the installed wheel"

demo: $(READY)
	@$(BIN)/heedful demo

test: $(ALL)
	$(BIN)/python -m pytest -n 2 -rs  # names what was skipped, and why

# what takes minutes: torchrun, what is compiled, and notebooks, each a server of its own, in a
# browser with no network. The notebooks run alone: beside a compiler a page waits for its kernel
# longer than a person would
test-slow: $(JUPYTER)
	$(BIN)/python -m pytest -n 2 -rs tests/slow --ignore tests/slow/test_jupyter.py
	$(BIN)/python -m pytest -rs tests/slow/test_jupyter.py

lint: $(ALL) lint-page
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# the page's modules: their types and style. They run in a browser as they are, so npm is not needed
# for anything else
lint-page:
	@if command -v npm >/dev/null; then $(MAKE) --no-print-directory $(PAGE) && npm run --silent check; \
		else echo "skipped: biome and tsc for the explorer's page, as there is no npm"; fi

format: $(ALL)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(ALL)
	$(BIN)/python benchmarks/attention.py
	$(BIN)/python benchmarks/generate.py
	$(BIN)/python benchmarks/corpus.py
	$(BIN)/python benchmarks/parity.py
	$(if $(TEXT),$(BIN)/python benchmarks/zero_to_hero.py $(TEXT))

docs: $(ALL)
	$(BIN)/properdocs build --strict

lessons: $(ALL)
	$(BIN)/python tests/lessons.py $(LESSONS)

# docs/pictures, from models that are trained anew
pictures: $(ALL)
	rm -rf build/pictures
	$(BIN)/heedful demo --out build/pictures/demo
	$(BIN)/heedful train --pairs dates --out build/pictures/dates
	$(BIN)/heedful plot build/pictures/dates "the 3rd of May 1987" --attention cross --layers 1 --heads 0,1 --out build/pictures/drawn
	$(BIN)/python docs/twice.py build/pictures
	$(BIN)/heedful train build/pictures/twice.txt --out build/pictures/twice --layers 2 --batch 16 --vocabulary 420 --steps 1500 --evaluate-every 50 --seed 1 --precision float32 --watch-file build/pictures/seen.txt --watch-every 20
	$(BIN)/heedful plot build/pictures/twice --out docs/pictures/watched.png --overwrite
	$(BIN)/heedful ablate build/pictures/twice --file build/pictures/seen.txt --out build/pictures/ablation.json
	cp build/pictures/ablation.png docs/pictures/
	cp $(addprefix build/pictures/demo/pictures/,heads.png scores.png loss.png) docs/pictures/
	cp build/pictures/drawn/heads.png docs/pictures/dates.png
	$(BIN)/heedful describe build/pictures/demo --out docs/pictures/gpt.png --overwrite
	$(BIN)/heedful describe build/pictures/demo --block --out docs/pictures/block.png --overwrite
	$(BIN)/heedful describe build/pictures/dates --out docs/pictures/encoder-decoder.png --overwrite
	$(BIN)/python docs/screens.py build/pictures/demo
	$(BIN)/python docs/shapes.py build/pictures/shapes
	$(BIN)/python docs/notebook_screen.py

dist: $(ALL)
	rm -rf dist build/installed
	$(BIN)/python -m build --installer pip --outdir dist .
	$(BIN)/python -m pip install --quiet --no-deps --target build/installed dist/*.whl
	cd build && PYTHONPATH=installed ../$(BIN)/python -P -c "import heedful; assert 'installed' in heedful.__file__, heedful.__file__"
	cd build && PYTHONPATH=installed ../$(BIN)/python -P installed/bin/heedful tokenize "Run from the wheel"

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# not `npm ci`: it wants the binaries of all systems in the lock, also where a registry has not all
$(PAGE): package.json package-lock.json
	npm install --no-save --loglevel=error --no-audit --no-fund
	@touch $@

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "heedful needs Python 3.11 or newer; name one with: make PYTHON=python3.12"; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(INSTALL) --editable .
	@touch $@

$(ALL): $(READY)
	$(INSTALL) --editable '.[dev,docs,notebook,pretrained,trained]'
	@touch $@

$(JUPYTER): $(ALL)
	$(INSTALL) --editable '.[jupyter]'
	@touch $@
