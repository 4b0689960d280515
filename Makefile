# Everything runs in .venv, which is made on first use.
PYTHON ?= python3
BIN := .venv/bin
JSON ?=
WRITE = $(if $(JSON),--json $(JSON))

.PHONY: quickstart test lint docs benchmark-train clean

quickstart: .venv/quickstart.done  ## one engine, then recipes/quickstart.yaml end to end
	$(BIN)/danlu run recipes/quickstart.yaml

test: .venv/test.done  ## everything, both engines; lint, types, the whole suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest

docs: .venv/test.done  ## what is generated from the types
	$(BIN)/python -m danlu.recipe

benchmark-train: .venv/test.done  ## danlu beside a bare loop and Hugging Face Trainer
	$(BIN)/python benchmarks/train_throughput.py $(WRITE)

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/quickstart.done: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,data]'
	touch $@

# torch goes first, so that no other package draws in another build of it.
.venv/test.done: .venv/quickstart.done
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,paddle,data,dev]'
	touch $@

clean:  ## the environment and the runs
	rm -rf .venv runs
