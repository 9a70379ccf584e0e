# `make demo` and `make test` work on a fresh machine with Python >= 3.11, a C++ compiler and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STAMP := $(VENV)/.set-up
DOCS := $(VENV)/.docs
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST_ARGS ?= -n auto --dist worksteal
# If this were set, each process would compile all modules again: a third of the tests' time.
export PYTHONDONTWRITEBYTECODE :=

DEMO := examples/01-quickstart
INPUTS := constraints.txt pyproject.toml fluxion_cy/pyproject.toml fluxion_cy/setup.py \
  $(wildcard fluxion_cy/src/fluxion_cy/engine/*.pyx fluxion_cy/src/fluxion_cy/engine/*.pxd)

.PHONY: help setup demo docs test test-all test-programs controlplane tools kwok test-controlplane test-restore faults e2e \
  e2e-migration e2e-packages e2e-image release-check manifests \
  fuzz fuzz-asan asan-build test-asan fuzz-reapi lint format conformance-reapi bench bench-matcher bench-instructions \
  test-reapi bench-gpus bench-live bench-dashboard soak-live soak-sim slurm-peer e2e-slurm queues-peer e2e-queues \
  chromium e2e-dashboard dist constraints clean

help:
	@echo 'make demo         install into $(VENV), then place the pods of the first example'
	@echo 'make test         set up, then run the tests without other programs; property tests use a tenth of their cases'
	@echo 'make docs         build the documentation into build/site, and check its links and that it needs no other host'
	@echo 'make test-all     run all tests that do not need root; also builds the programs of `make controlplane` and `make tools`'
	@echo 'make test-programs      run the tests that need helm, kustomize, promtool or kubectl'
	@echo 'make controlplane       build etcd and the Kubernetes programs that some tests need, once'
	@echo 'make test-controlplane  run the tests against a real API server'
	@echo 'make test-restore       test how a scheduler recovers after a crash'
	@echo 'make faults             inject every fault into every write for a gang and a device pod; takes long'
	@echo 'make tools              build helm, kustomize, promtool and actionlint for the tests of deploy/, once'
	@echo 'make e2e-packages       install containerd and other packages of a real node, as root, on Debian'
	@echo 'make e2e-image          build the image of deploy/Dockerfile, once, as root, on Debian'
	@echo 'make e2e                run the tests with a real kubelet, real containers and 500 nodes, as root'
	@echo 'make slurm-peer         install Slurm in its own directory, once, as root, on Debian'
	@echo 'make e2e-migration      run the Go version'"'"'s own scripts (FLUENCE_GO_CHECKOUT names a checkout), as root'
	@echo 'make e2e-slurm          run the tests with a real slurmctld and slurmrestd, as root'
	@echo 'make queues-peer        install nats-server and build Kueue, once, as root, on Debian'
	@echo 'make e2e-queues         run the tests with a real nats-server and a real Kueue, as root'
	@echo 'make chromium           install Chromium, as root, on Debian'
	@echo 'make e2e-dashboard      run the tests of the dashboard with Chromium, a real API server and nodes of kwok'
	@echo 'make manifests          render the files of deploy/ from deploy/kustomize'
	@echo 'make fuzz         fuzz the matcher with graphs, jobspecs, R, policies and criteria; takes long'
	@echo 'make fuzz-asan    the same, shorter, with AddressSanitizer'
	@echo 'make test-asan    run the recorded sessions and the tests of the matcher on that build'
	@echo 'make fuzz-reapi   run random sessions on the Fluxion library in FLUXION_REAPI_LIB, for 20 minutes'
	@echo 'make lint         run ruff, codespell, mypy and the import contract'
	@echo 'make format       let ruff fix and format the code'
	@echo 'make conformance-reapi  compare the matcher with the Fluxion library in FLUXION_REAPI_LIB'
	@echo 'make test-reapi   run the tests of the plugin fluence with that library, too'
	@echo 'make bench        measure pods per second in memory, in a full cluster too, and the cost of a preemption'
	@echo 'make bench-matcher  compare the speed of the matcher with Fluxion (and with the library in FLUXION_REAPI_LIB)'
	@echo 'make bench-instructions  count the instructions of a match (needs valgrind), and compare with the recorded numbers'
	@echo 'make bench-gpus   compare the GPUs allocated from a public trace, in OPENB_DIR, with the policies of its paper'
	@echo 'make bench-live   compare pods and reports per second on a real API server with kube-scheduler, for each kind of workload'
	@echo 'make bench-dashboard  measure first paint and updates of the dashboard with 5,000 nodes and 50,000 pods'
	@echo 'make soak-live    create and delete 10,000 pods and 1,000 nodes for ten minutes: no pod is lost, and memory does not grow'
	@echo 'make soak-sim     simulate an hour of random events in memory: all invariants hold, and memory does not grow'
	@echo 'make dist         build the sdist of fluxion-cy, and a wheel from it, into dist/'
	@echo 'make release-check  build the parts of a release that this machine can build, and list the others'
	@echo 'make constraints  write constraints.txt from the packages in $(VENV), and the hashes of those in the image; needs uv'
	@echo 'make clean        remove $(VENV), caches and build results'

setup: $(STAMP)

# The runtime. One pip call for both distributions, because fluxion-cy is on no index. The build tools come first, pinned
# like the rest. Without --no-compile, pip would compile more modules than are ever imported.
$(INSTALLED): $(INPUTS)
	@sh .ci/check-tools '$(PYTHON)'
	@echo 'set up 1/3: a Python environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@echo 'set up 2/3: the tools that build the matcher'
	@$(PIP) install --no-compile -c constraints.txt setuptools Cython hatchling editables
	@echo 'set up 3/3: compile the matcher (half a minute) and install the runtime'
	@$(PIP) install --no-compile -c constraints.txt --no-build-isolation -e ./fluxion_cy -e .
	@touch $@

# The runtime, and the tools for tests and linting.
$(STAMP): $(INSTALLED)
	@echo 'set up: the tools for tests and linting'
	@$(PIP) install -c constraints.txt --upgrade pip
	@$(PIP) install -c constraints.txt --group dev
	@touch $@

# What the documentation needs, too.
$(DOCS): $(STAMP)
	@echo 'set up: what the documentation needs'
	@$(PIP) install --no-compile -c constraints.txt --group docs
	@touch $@

# A warning, such as a link that leads nowhere, fails the build. `$(BIN)/mkdocs serve` shows the site while it is edited.
docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	$(BIN)/python -m pytest -p no:xdist --junitxml=.cache/tests-docs.xml tests/docs

# The example must end with exit status 1, because one of its pods fits on no node.
demo: $(INSTALLED)
	@status=0; $(BIN)/fluence simulate $(DEMO) || status=$$?; test $$status -eq 1

# The tests without other programs. FLUENCE_TEST_EXAMPLES scales the number of cases of property tests.
SUITE = $(BIN)/python -m pytest --ignore=tests/controlplane --ignore=tests/dashboard --ignore=tests/docs --ignore=tests/e2e --ignore=tests/slurm \
  --ignore=tests/queues --ignore=tests/migration $(PYTEST_ARGS)
test: $(STAMP)
	FLUENCE_TEST_EXAMPLES=$${FLUENCE_TEST_EXAMPLES:-0.1} $(SUITE) -m 'not programs' --junitxml=.cache/tests.xml

# All tests that do not need root, with all cases.
test-all:
	@status=0; \
	FLUENCE_TEST_EXAMPLES=$${FLUENCE_TEST_EXAMPLES:-1} $(MAKE) --no-print-directory test || status=1; \
	for part in test-programs test-controlplane; do $(MAKE) --no-print-directory $$part || status=1; done; \
	exit $$status

test-programs: controlplane tools
	$(SUITE) -m programs --junitxml=.cache/tests-programs.xml

# The first time it takes some minutes and 300 MB; KUBEBUILDER_ASSETS can name a directory with the programs instead.
controlplane: $(STAMP)
	$(BIN)/python tests/controlplane/binaries.py

tools: $(STAMP)
	$(BIN)/python tests/controlplane/binaries.py tools

kwok: $(STAMP)
	$(BIN)/python tests/controlplane/binaries.py kwok

manifests: tools
	$(BIN)/python deploy/render.py --kustomize .cache/tools/*/kustomize

# Each worker's control plane needs about 500 MB; all tests of a file run on one worker, to start few of them. The files run
# in alphabetical order: by their number of tests, the longest file, which has one test, would start last.
test-controlplane: controlplane tools
	$(BIN)/python -m pytest --junitxml=.cache/tests-controlplane.xml -n 3 --dist loadfile --no-loadscope-reorder \
	  tests/controlplane

test-restore: controlplane
	$(BIN)/python -m pytest -v tests/controlplane/test_restore.py

# FAULTS='killed error' runs only the scenarios with one of these words in their names.
faults: controlplane
	$(BIN)/python -m tests.controlplane.faults.runner $(FAULTS)

e2e-packages:
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-remove --no-install-recommends containerd runc \
	  containernetworking-plugins busybox-static iproute2 gcc libc6-dev

# Builds the image with the steps of deploy/Dockerfile, on Debian packages. It needs the network; the tests do not.
e2e-image: $(STAMP)
	$(BIN)/python -m tests.e2e.image_build

# These tests run in namespaces of their own, as root: see tests/e2e/inside.py. Run only one at a time on a machine.
e2e: controlplane kwok tools e2e-image
	$(BIN)/python -m tests.e2e.inside $(BIN)/python -m pytest -p no:xdist --junitxml=.cache/tests-e2e.xml tests/e2e $(E2E)

# FLUENCE_GO_CHECKOUT names a checkout of the Go version, whose scripts run; without it there is nothing to run.
e2e-migration: controlplane kwok tools e2e-image
	$(BIN)/python -m tests.e2e.inside $(BIN)/python -m pytest -p no:xdist -rs tests/migration $(E2E)

# The first time it takes half a minute and 300 MB; see tests/slurm/programs.py.
slurm-peer: $(STAMP)
	$(BIN)/python -m tests.slurm.programs

# Two workers, because the tests mostly wait for Slurm.
e2e-slurm: controlplane slurm-peer
	$(BIN)/python -m pytest --junitxml=.cache/tests-slurm.xml -n 2 --dist loadfile tests/slurm $(E2E)

# The first time it takes four minutes and 160 MB; see tests/queues/programs.py.
queues-peer: $(STAMP)
	$(BIN)/python -m tests.queues.programs

e2e-queues: controlplane queues-peer
	$(BIN)/python -m pytest --junitxml=.cache/tests-queues.xml -n 2 --dist loadfile tests/queues $(E2E)

chromium:
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-remove --no-install-recommends chromium fonts-dejavu-core

# Two workers, because the tests mostly wait for pages. FLUENCE_SCREENSHOTS=docs/assets/screenshots also writes
# screenshots of the pages.
e2e-dashboard: controlplane kwok
	$(BIN)/python -m pytest --junitxml=.cache/tests-dashboard.xml -n 2 --dist loadfile --no-loadscope-reorder \
	  tests/dashboard $(E2E)

conformance-reapi: $(STAMP)
	@test -n "$$FLUXION_REAPI_LIB" || { echo 'FLUXION_REAPI_LIB must name libreapi_cli.so'; exit 1; }
	$(BIN)/python -m pytest -v tests/conformance/fluxion/test_reapi.py

# Runs the plugin's tests of placements on both engines.
test-reapi: $(STAMP)
	@test -n "$$FLUXION_REAPI_LIB" || { echo 'FLUXION_REAPI_LIB must name libreapi_cli.so'; exit 1; }
	$(BIN)/python -m pytest tests/unit/fluence_plugins/fluence tests/integration/fluence tests/property/fluence \
	  tests/integration/test_examples_with_the_library.py

# FUZZ='jobspec r --runs 10000 --seed 2' runs fewer; see tests/fuzz/run.py. Findings are stored in .cache/fuzz.
FUZZ ?= --runs 1000000
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz.run $(FUZZ)

# A separate build with gcc, which also checks undefined behaviour and the bounds of vectors. Python's own allocator
# would hide a reuse of memory. Whether setuptools uses CFLAGS for C++ depends on its version, so both are set.
ASAN := .cache/asan
ASAN_FLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -D_GLIBCXX_ASSERTIONS
ASAN_RUN = LD_PRELOAD=$$($(CXX) -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 \
  PYTHONMALLOC=malloc PYTHONPATH=$(ASAN)
FUZZ_ASAN ?= --runs 100000
asan-build: $(STAMP)
	mkdir -p $(ASAN)/src
	cp -rp fluxion_cy/src/fluxion_cy fluxion_cy/setup.py $(ASAN)/
	ln -sfn ../fluxion_cy $(ASAN)/src/fluxion_cy
	cd $(ASAN) && CFLAGS='$(ASAN_FLAGS)' CXXFLAGS='$(ASAN_FLAGS)' LDFLAGS='$(ASAN_FLAGS)' \
	  $(CURDIR)/$(BIN)/python setup.py -q build_ext --force --build-lib . --build-temp temp
	for module in $(ASAN)/fluxion_cy/engine/*.so; do nm -D $$module | grep -q __asan_report || exit 1; done

fuzz-asan: asan-build
	$(ASAN_RUN) $(BIN)/python -m tests.fuzz.run --engine plain --slower 10 $(FUZZ_ASAN)

# Runs the recorded sessions and the matcher's tests on the same build.
test-asan: asan-build
	$(ASAN_RUN) $(BIN)/python -m pytest -q -p no:xdist -p no:cacheprovider tests/conformance/fluxion tests/unit/fluxion_cy \
	  tests/integration/fluxion_cy/test_fork.py

# FUZZ_REAPI='--seconds 60 --seed 7' runs fewer or others; a failure names its seed, for --only SEED.
FUZZ_REAPI ?= --seconds 1200
fuzz-reapi: $(STAMP)
	@test -n "$$FLUXION_REAPI_LIB" || { echo 'FLUXION_REAPI_LIB must name libreapi_cli.so'; exit 1; }
	$(BIN)/python -m tests.fuzz.real $(FUZZ_REAPI)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python tests/benchmarks/bench_simulate.py
	$(BIN)/python tests/benchmarks/bench_full.py
	$(BIN)/python tests/benchmarks/bench_full.py --mixed
	$(BIN)/python tests/benchmarks/bench_preemption.py
	$(BIN)/python tests/benchmarks/bench_session.py
	$(BIN)/python tests/benchmarks/bench_freed.py
	$(BIN)/python tests/benchmarks/bench_observe.py

# BENCH='--nodes 1000 --only w1,w2 --huge' changes the run.
bench-matcher: $(STAMP)
	$(BIN)/python tests/benchmarks/bench_matcher.py $(BENCH)

# Gives the same numbers on every run of a build, however busy the machine is. BENCH='--record' stores them.
bench-instructions: $(STAMP)
	$(BIN)/python tests/benchmarks/instructions.py $(BENCH)

# OPENB_DIR names the folder with the trace; BENCH='--variants default,cpu200 --seeds 3 --json result.json' changes the run.
GPU_CONFIGS := $(wildcard examples/14-gpu-fleet/config.yaml)
bench-gpus: $(STAMP)
	$(BIN)/python -m tests.benchmarks.gpu_fleet $(GPU_CONFIGS:%=--config %) $(BENCH)

# BENCH='--workload basic,gangs --nodes 5000 --pods 5000 --rounds 3 --json result.json' changes the run;
# BENCH='--only fluence --other PATH --rounds 7' compares with the scheduler of another checkout.
bench-live: controlplane
	$(BIN)/python -m tests.controlplane.bench_live $(BENCH)

# BENCH='--nodes 1000 --pods 5000 --clients 20 --json result.json' changes the run.
bench-dashboard: $(STAMP)
	$(BIN)/python tests/benchmarks/bench_dashboard.py $(BENCH)

# SOAK='--seconds 60 --nodes 100 --pods 500' changes the run.
soak-live: controlplane
	$(BIN)/python -m tests.controlplane.soak_live $(SOAK)

# SOAK_SIM='--minutes 10 --seed 7 --policy low' changes the run; a failure is reduced to few events.
soak-sim: $(STAMP)
	$(BIN)/python -m tests.soak.run $(SOAK_SIM)

# Builds the wheel from the sdist, so that the sdist is complete. For other Pythons and machines:
# `cibuildwheel --platform linux fluxion_cy`, configured in its pyproject.toml.
dist: $(STAMP)
	rm -rf .cache/dist && mkdir -p .cache/dist
	cd fluxion_cy && $(CURDIR)/$(BIN)/python setup.py -q egg_info --egg-base $(CURDIR)/.cache/dist sdist -d $(CURDIR)/dist
	$(PIP) wheel --no-build-isolation --no-deps --no-index -w dist dist/fluxion_cy-*.tar.gz

# Builds the parts of a release that this machine can build, and lists the others. RELEASE_CHECK='-o json' prints JSON.
release-check: tools
	$(BIN)/python -m deploy.release_check $(RELEASE_CHECK)

constraints: $(DOCS)
	@command -v uv >/dev/null || { echo 'make constraints needs uv; install uv' >&2; exit 1; }
	@mkdir -p .cache
	$(BIN)/python -m pip --disable-pip-version-check list --format=freeze --exclude-editable > .cache/constraints.txt
	mv .cache/constraints.txt constraints.txt
	$(BIN)/python deploy/lock.py

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	rm -rf fluxion_cy/build fluxion_cy/src/*.egg-info
	rm -f fluxion_cy/src/fluxion_cy/engine/*.cpp fluxion_cy/src/fluxion_cy/engine/*.so
