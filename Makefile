# Every target sets up what it needs: `make demo` and `make test` work on a fresh clone with Python 3.11+, pip and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-all check bench bench-scale bench-gpu bench-gpu-full parity hostile site clean

.venv/installed: pyproject.toml plugins/sslbench_visbench/pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,visbench]' -e plugins/sslbench_visbench
	touch $@

demo: .venv/installed  ## pretrain a small ResNet on bundled digits and evaluate it, offline
	$(BIN)/sslbench demo

# Two processes with one thread each are quicker than one with two; compiled modules are kept for those that tests start.
test: .venv/installed  ## tests, in a quarter of an hour
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q -n 2 --dist worksteal

test-all: .venv/installed  ## those of `make test`, all that takes long, and every case of hostile input; an hour or two
	SSLBENCH_HOSTILE=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not speed and not scale and not gpu'

check: .venv/installed  ## format, lint, types, tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(MAKE) test

bench: .venv/installed  ## speed and memory, side by side with what one would use instead; prints ratios
	$(BIN)/python -m pytest -m speed -s tests/speed

bench-scale: .venv/installed  ## protocols at ImageNet's size within 4 GB of memory; an hour or two
	$(BIN)/python -m pytest -m scale -s tests/scale

# The table begins no row after 240 seconds; numbers take 145 seconds in seven processes of an H200.
bench-gpu: .venv/installed  ## a CUDA GPU beside the CPU in at most 8 minutes: numbers, then a table of speeds beside bare loops
	$(BIN)/python -m pytest -q -m gpu -n 7 --dist worksteal tests/gpu; status=$$?; $(BIN)/python tests/gpu/table.py && exit $$status

bench-gpu-full: .venv/installed  ## the same at ImageNet's size for every row; hours
	$(BIN)/python -m pytest -q -m gpu -n 7 --dist worksteal tests/gpu; status=$$?; $(BIN)/python tests/gpu/table.py --full && exit $$status

parity: .venv/installed  ## differences from Detectron2 and pycocotools; needs both importable (docs/extend/tests.md)
	PYTHONPATH=tests:$$PYTHONPATH $(BIN)/python -W ignore tests/detection/parity_table.py

hostile: .venv/installed  ## damaged and malicious input of every kind, all cases and 50 mutations of each kind; hours
	SSLBENCH_HOSTILE=50 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q tests/hostile

site: .venv/installed  ## the guides, commands, functions and names as web pages; begins with site/index.html
	$(BIN)/sphinx-build -q -W --keep-going docs site

clean:
	rm -rf .venv dist build .mypy_cache .pytest_cache .ruff_cache .hypothesis site sslbench-demo
