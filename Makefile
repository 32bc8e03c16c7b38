# make demo    a BERT-base and a small Llama: eager, torch.compile and Jitney side by side
# make test    the fast suite on Python 3.11 and torch 2.13
# make check   ruff (rules and format), mypy, import order, file and function length
# make slow    the op_db conformance suite and other tests that take minutes
# make gpu     the tests that need a GPU

SHELL := /bin/sh
VENV := .venv/py311
NEWEST := .venv/py312
TORCH ?= torch==2.13.0
TORCH_NEWEST ?= torch==2.15.0
PYTEST := -m pytest -m "not slow" -n 2 --dist worksteal
# Two processes of several threads each: threads that wait must not spin.
test test-newest: export OMP_WAIT_POLICY := passive

.PHONY: demo test test-newest check slow gpu bench clean

demo: $(VENV)/.ready
	$(VENV)/bin/python -m jitney.cli.main demo

test: $(VENV)/.ready
	$(VENV)/bin/python $(PYTEST)

test-newest: $(NEWEST)/.ready
	$(NEWEST)/bin/python $(PYTEST)

check: $(VENV)/.ready
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python .ci/lengths.py

slow: $(VENV)/.ready
	$(VENV)/bin/python -m pytest -m slow

gpu: $(VENV)/.ready
	TRITON_INTERPRET=0 $(VENV)/bin/python -m pytest -m gpu

bench: $(VENV)/.bench-ready
	$(VENV)/bin/python -m benchmarks.cpu_table

$(VENV)/.ready: pyproject.toml
	python="$$(.ci/find-python 3.11)" && $$python -m venv $(VENV)
	@echo "downloading torch and the test libraries into $(VENV), once: some minutes"
	$(VENV)/bin/python -m pip install -q --no-compile "$(TORCH)" -e ".[models,test]"
	touch $@

$(NEWEST)/.ready: pyproject.toml
	python="$$(.ci/find-python 3.12)" && $$python -m venv $(NEWEST)
	@echo "downloading torch and the test libraries into $(NEWEST), once: some minutes"
	$(NEWEST)/bin/python -m pip install -q --no-compile "$(TORCH_NEWEST)" -e ".[models,test,triton]"
	touch $@

$(VENV)/.bench-ready: $(VENV)/.ready
	$(VENV)/bin/python -m pip install -q --no-compile -e ".[models,bench]"
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
