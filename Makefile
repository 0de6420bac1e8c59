# One command per verb; `make` alone lists them.

PYTHON ?= python3
VENV ?= .venv
TORCH_VERSION ?= 2.13.0
# An index for torch alone, such as one of CPU builds; empty means the index that pip uses anyway. Neither matters if
# PYTHON or VENV has a torch that pyproject.toml admits.
TORCH_INDEX ?=
ARGS ?=
SUITES ?=
# Four on two cores: many tests wait for processes rather than compute.
WORKERS ?= 4
# A GPU host may lack the packages of the other tests.
GPU_TESTS = $(addprefix tests/,attention engine kernels layers models test_served_gpu.py test_two_gpus.py)

# As many processes as the memory of the GPU has room for (tests/support/gpu_workers.py).
GPU_WORKERS = $(shell $(PYTHON) -c 'import xdist' 2>/dev/null && echo "-n auto --dist loadscope")

# What make demo needs, and with it what make test needs.
INSTALLED = $(VENV)/.installed
TESTS_INSTALLED = $(VENV)/.installed-tests
INSTALL = $(PYTHON) tools/install.py $(VENV) --torch $(TORCH_VERSION) $(if $(TORCH_INDEX),--torch-index $(TORCH_INDEX))
PROTOC_VENV = .venv-protos
# The oldest grpcio that pyproject.toml admits: stubs refuse a grpcio older than what generated them.
GRPCIO_TOOLS = 1.71.2
PROTOC = $(PROTOC_VENV)/bin/python -m grpc_tools.protoc -I protos $(wildcard protos/voxcpm_grpc/v1/*.proto)

export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
# Tests start hundreds of Python processes, each of which would compile the project again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-system environments serve check protos image test-gpu clean

help: ## list the verbs
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1|\2/p' Makefile | awk -F'|' '{ printf "make %-12s %s\n", $$1, $$2 }'

demo: $(INSTALLED) ## speak through a real server and client into demo.wav: make demo ARGS="--voice miles"
	$(VENV)/bin/voxcpm-grpc demo --out demo.wav $(ARGS)

test: $(TESTS_INSTALLED) ## run the tests that need no GPU
	$(VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-system: $(TESTS_INSTALLED) ## run the tests that need other packages or more time: make test-system SUITES="ray fuzz"
	$(VENV)/bin/python tools/system_tests.py $(SUITES)

environments: $(TESTS_INSTALLED) ## make the environments of system tests: make environments SUITES="ray fuzz"
	$(VENV)/bin/python tools/system_tests.py --install $(SUITES)

serve: $(INSTALLED) ## serve, with flags in ARGS: make serve ARGS="--model DIRECTORY --listen 0.0.0.0:50051"
	$(VENV)/bin/voxcpm-grpc serve $(ARGS)

check: $(TESTS_INSTALLED) $(PROTOC_VENV)/.installed ## format, lint, types, and stubs that match the contract
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/ruff check
	$(VENV)/bin/pyright
	@new=$$(mktemp -d) && trap 'rm -r "$$new"' EXIT && \
	$(PROTOC) --python_out="$$new" --pyi_out="$$new" --grpc_python_out="$$new" && \
	for stub in $$(ls "$$new/voxcpm_grpc/v1"); do \
		diff -u voxcpm_grpc/v1/$$stub "$$new/voxcpm_grpc/v1/$$stub" || { echo "stale stub: run make protos"; exit 1; }; \
	done
	$(PROTOC_VENV)/bin/python tools/document_api.py --check
	$(PROTOC_VENV)/bin/python tools/contract_stubs.py --check

protos: $(PROTOC_VENV)/.installed ## generate the stubs and the reference of the contract
	$(PROTOC) --python_out=. --pyi_out=. --grpc_python_out=.
	$(PROTOC_VENV)/bin/python tools/document_api.py
	$(PROTOC_VENV)/bin/python tools/contract_stubs.py

image: $(PROTOC_VENV)/.installed ## record the contract of a release, which buf breaking compares with
	$(PROTOC) --include_imports --descriptor_set_out=protos/published.binpb

test-gpu: ## run the GPU tests with $PYTHON as it is, in several processes if it has pytest-xdist; installs nothing
	PYTHONPATH="$(CURDIR):$(CURDIR)/server:$(CURDIR)/clients/python$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON) -m pytest -m gpu $(GPU_WORKERS) $(if $(filter tests/%,$(ARGS)),,$(GPU_TESTS)) $(ARGS)

clean: ## remove what these verbs made
	rm -rf $(VENV) .venv-system $(PROTOC_VENV) build dist demo.wav .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml voxcpm_grpc/demo/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "$(PYTHON) is older than 3.11; name another with PYTHON=")'
	@$(INSTALL)
	@touch $@

$(TESTS_INSTALLED): $(INSTALLED)
	@$(INSTALL) --tests
	@touch $@

$(PROTOC_VENV)/.installed: Makefile
	@echo "installing grpcio-tools $(GRPCIO_TOOLS) into $(PROTOC_VENV)"
	@test -x $(PROTOC_VENV)/bin/python || $(PYTHON) -m venv $(PROTOC_VENV)
	@$(PROTOC_VENV)/bin/python -m pip --disable-pip-version-check install -q grpcio-tools==$(GRPCIO_TOOLS)
	@touch $@
