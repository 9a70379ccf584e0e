# `make demo` and `make test` do everything on a fresh machine: Python >= 3.11, a C++ compiler, make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STAMP := $(VENV)/.set-up
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
PYTEST_ARGS ?= -n auto --dist worksteal
# With this set, each process compiles every module again: a third of the tests' time.
export PYTHONDONTWRITEBYTECODE :=

DEMO := examples/01-quickstart
INPUTS := constraints.txt pyproject.toml fluxion_cy/pyproject.toml fluxion_cy/setup.py \
  $(wildcard fluxion_cy/src/fluxion_cy/engine/*.pyx fluxion_cy/src/fluxion_cy/engine/*.pxd)

.PHONY: help setup demo test test-all test-programs controlplane tools kwok test-controlplane test-restore faults e2e \
  e2e-packages e2e-image release-check manifests \
  fuzz fuzz-asan asan-build test-asan fuzz-reapi lint format conformance-reapi bench bench-matcher bench-instructions \
  test-reapi bench-live soak-live soak-sim slurm-peer e2e-slurm queues-peer e2e-queues dist constraints clean

help:
	@echo 'make demo         install in $(VENV) what running needs, then place the pods of the first example'
	@echo 'make test         set up, then run the tests that need no other program, the property tests with a tenth of their cases'
	@echo 'make test-all     every test that needs no root: builds what `make controlplane` and `make tools` do'
	@echo 'make test-programs      run the tests that need helm, kustomize, promtool or kubectl'
	@echo 'make controlplane       build etcd and the Kubernetes programs that some tests need, once'
	@echo 'make test-controlplane  run the tests against a real API server'
	@echo 'make test-restore       show what a scheduler makes of what it finds after a crash'
	@echo 'make faults             make every write of a gang, and of a device pod, go wrong in every way, and all around it; for long'
	@echo 'make tools              build helm, kustomize, promtool and actionlint, with which deploy/ is tested, once'
	@echo 'make e2e-packages       install containerd and what else a real node needs, as root, on a Debian'
	@echo 'make e2e-image          build the image of deploy/Dockerfile here, once, as root, on a Debian'
	@echo 'make e2e                run the tests with a real kubelet, real containers and 500 nodes, as root'
	@echo 'make slurm-peer         install Slurm in a folder of its own, once, as root, on a Debian'
	@echo 'make e2e-slurm          run the tests with a real slurmctld and slurmrestd, as root'
	@echo 'make queues-peer        get nats-server and build Kueue, once, as root, on a Debian'
	@echo 'make e2e-queues         run the tests with a real nats-server and a real Kueue, as root'
	@echo 'make manifests          render the files of deploy/ from deploy/kustomize'
	@echo 'make fuzz         feed the matcher broken and odd graphs, jobspecs, R, policies and criteria; for long'
	@echo 'make fuzz-asan    the same, shorter, with its compiled part watched by AddressSanitizer'
	@echo 'make test-asan    the recorded sessions and the tests of the matcher on that build'
	@echo 'make fuzz-reapi   random sessions on the library of Fluxion itself, which FLUXION_REAPI_LIB names; for 20 minutes'
	@echo 'make lint         ruff, mypy and the import contract'
	@echo 'make format       let ruff fix what it can'
	@echo 'make conformance-reapi  compare with the library of Fluxion itself, which FLUXION_REAPI_LIB names'
	@echo 'make test-reapi   the tests of the plugin fluence with that library, too'
	@echo 'make bench        place pods in memory, and say how many a second, and what a preemptor costs'
	@echo 'make bench-matcher  compare the matcher with Fluxion (beside its library where FLUXION_REAPI_LIB names it)'
	@echo 'make bench-instructions  count what the matcher needs for a match (needs valgrind), and compare with what was recorded'
	@echo 'make bench-live   compare pods per second on a real API server with kube-scheduler, for each kind of workload'
	@echo 'make soak-live    let 10,000 pods and 1,000 nodes come and go for ten minutes: nothing is lost, nothing grows'
	@echo 'make soak-sim     let an hour of random events happen in memory, in accelerated time: no rule is broken, nothing grows'
	@echo 'make dist         build the sdist of fluxion-cy, and from it a wheel, into dist/'
	@echo 'make release-check  build all of a release that can be built here, and list what cannot'
	@echo 'make constraints  write constraints.txt from what $(VENV) has now'
	@echo 'make clean        remove $(VENV), caches and build results'

setup: $(STAMP)

# What running needs. One pip call for both distributions: fluxion-cy is on no index. Their build tools come first, pinned
# like the rest. Without --no-compile pip would compile more modules than are ever imported.
$(INSTALLED): $(INPUTS)
	@sh .ci/check-tools '$(PYTHON)'
	@echo 'set up 1/3: a Python environment in $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@echo 'set up 2/3: the tools that build the matcher'
	@$(PIP) install --no-compile -c constraints.txt setuptools Cython hatchling editables
	@echo 'set up 3/3: compile the matcher (half a minute) and install what running needs'
	@$(PIP) install --no-compile -c constraints.txt --no-build-isolation -e ./fluxion_cy -e .
	@touch $@

# What testing and linting need, too.
$(STAMP): $(INSTALLED)
	@echo 'set up: what testing and linting need'
	@$(PIP) install -c constraints.txt --upgrade pip
	@$(PIP) install -c constraints.txt --group dev
	@touch $@

# Exit status 1 is what the example is to end with: one of its pods fits nowhere.
demo: $(INSTALLED)
	@status=0; $(BIN)/fluence simulate $(DEMO) || status=$$?; test $$status -eq 1

# What needs no other program. FLUENCE_TEST_EXAMPLES scales how many cases the property tests go through.
SUITE = $(BIN)/python -m pytest --ignore=tests/controlplane --ignore=tests/e2e --ignore=tests/slurm --ignore=tests/queues \
  $(PYTEST_ARGS)
test: $(STAMP)
	FLUENCE_TEST_EXAMPLES=$${FLUENCE_TEST_EXAMPLES:-0.1} $(SUITE) -m 'not programs' --junitxml=.cache/tests.xml

# All that needs no root: that with every case, and what needs other programs.
test-all:
	@status=0; \
	FLUENCE_TEST_EXAMPLES=$${FLUENCE_TEST_EXAMPLES:-1} $(MAKE) --no-print-directory test || status=1; \
	for part in test-programs test-controlplane; do $(MAKE) --no-print-directory $$part || status=1; done; \
	exit $$status

test-programs: controlplane tools
	$(SUITE) -m programs --junitxml=.cache/tests-programs.xml

# Some minutes and 300 MB, the first time; KUBEBUILDER_ASSETS may name a folder with ready programs instead.
controlplane: $(STAMP)
	$(BIN)/python tests/controlplane/binaries.py

tools: $(STAMP)
	$(BIN)/python tests/controlplane/binaries.py tools

kwok: $(STAMP)
	$(BIN)/python tests/controlplane/binaries.py kwok

manifests: tools
	$(BIN)/python deploy/render.py --kustomize .cache/tools/*/kustomize

# A control plane for each worker costs some 500 MB; its tests stay together by file, to start few of them.
test-controlplane: controlplane tools
	$(BIN)/python -m pytest --junitxml=.cache/tests-controlplane.xml -n 3 --dist loadfile tests/controlplane

test-restore: controlplane
	$(BIN)/python -m pytest -v tests/controlplane/test_restore.py

# FAULTS='killed error' runs only the scenarios with one of these words in their names.
faults: controlplane
	$(BIN)/python -m tests.controlplane.faults.runner $(FAULTS)

e2e-packages:
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-remove --no-install-recommends containerd runc \
	  containernetworking-plugins busybox-static iproute2 gcc libc6-dev

# The image of deploy/Dockerfile, by its own steps, on Debian's packages: it needs the network, which the tests have not.
e2e-image: $(STAMP)
	$(BIN)/python -m tests.e2e.image_build

# In namespaces of its own, as root: see tests/e2e/inside.py. One at a time on a machine.
e2e: controlplane kwok tools e2e-image
	$(BIN)/python -m tests.e2e.inside $(BIN)/python -m pytest -p no:xdist --junitxml=.cache/tests-e2e.xml tests/e2e $(E2E)

# Half a minute and 300 MB, the first time; see tests/slurm/programs.py.
slurm-peer: $(STAMP)
	$(BIN)/python -m tests.slurm.programs

# They wait for Slurm more than they compute.
e2e-slurm: controlplane slurm-peer
	$(BIN)/python -m pytest --junitxml=.cache/tests-slurm.xml -n 2 --dist loadfile tests/slurm $(E2E)

# Four minutes and 160 MB, the first time; see tests/queues/programs.py.
queues-peer: $(STAMP)
	$(BIN)/python -m tests.queues.programs

e2e-queues: controlplane queues-peer
	$(BIN)/python -m pytest --junitxml=.cache/tests-queues.xml -n 2 --dist loadfile tests/queues $(E2E)

conformance-reapi: $(STAMP)
	@test -n "$$FLUXION_REAPI_LIB" || { echo 'FLUXION_REAPI_LIB must name libreapi_cli.so'; exit 1; }
	$(BIN)/python -m pytest -v tests/conformance/fluxion/test_reapi.py

# The plugin's tests of placements then run on both engines.
test-reapi: $(STAMP)
	@test -n "$$FLUXION_REAPI_LIB" || { echo 'FLUXION_REAPI_LIB must name libreapi_cli.so'; exit 1; }
	$(BIN)/python -m pytest tests/unit/fluence_plugins/fluence tests/integration/fluence tests/property/fluence \
	  tests/integration/test_examples_with_the_library.py

# FUZZ='jobspec r --runs 10000 --seed 2' runs fewer; see tests/fuzz/run.py. A finding is kept in .cache/fuzz.
FUZZ ?= --runs 1000000
fuzz: $(STAMP)
	$(BIN)/python -m tests.fuzz.run $(FUZZ)

# A build of its own, with gcc, which also checks undefined behaviour and the bounds of vectors. Python's own allocator
# would hide what it hands out again; what a setuptools makes of CFLAGS for C++ differs from one to the next.
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

# The recorded sessions and the matcher's own tests on the same build.
test-asan: asan-build
	$(ASAN_RUN) $(BIN)/python -m pytest -q -p no:xdist -p no:cacheprovider tests/conformance/fluxion tests/unit/fluxion_cy \
	  tests/integration/fluxion_cy/test_fork.py

# FUZZ_REAPI='--seconds 60 --seed 7' runs fewer or others; what breaks it is named by its seed, for --only SEED.
FUZZ_REAPI ?= --seconds 1200
fuzz-reapi: $(STAMP)
	@test -n "$$FLUXION_REAPI_LIB" || { echo 'FLUXION_REAPI_LIB must name libreapi_cli.so'; exit 1; }
	$(BIN)/python -m tests.fuzz.real $(FUZZ_REAPI)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(STAMP)
	$(BIN)/python tests/benchmarks/bench_simulate.py
	$(BIN)/python tests/benchmarks/bench_preemption.py
	$(BIN)/python tests/benchmarks/bench_session.py

# BENCH='--nodes 1000 --only w1,w2 --huge' changes what is run.
bench-matcher: $(STAMP)
	$(BIN)/python tests/benchmarks/bench_matcher.py $(BENCH)

# The same on every run of one build, however busy the machine is. BENCH='--record' keeps what was counted.
bench-instructions: $(STAMP)
	$(BIN)/python tests/benchmarks/instructions.py $(BENCH)

# BENCH='--workload basic,gangs --nodes 5000 --pods 5000 --rounds 3 --json result.json' changes what is run;
# BENCH='--only fluence --other PATH --rounds 7' compares with the scheduler of another checkout.
bench-live: controlplane
	$(BIN)/python -m tests.controlplane.bench_live $(BENCH)

# SOAK='--seconds 60 --nodes 100 --pods 500' changes what is run.
soak-live: controlplane
	$(BIN)/python -m tests.controlplane.soak_live $(SOAK)

# SOAK_SIM='--minutes 10 --seed 7 --policy low' changes what is run; what breaks a rule is brought down to few events.
soak-sim: $(STAMP)
	$(BIN)/python -m tests.soak.run $(SOAK_SIM)

# The wheel is built from the sdist alone, so that nothing can be missing there. For every Python and machine:
# `cibuildwheel --platform linux fluxion_cy`, configured in its pyproject.toml.
dist: $(STAMP)
	rm -rf .cache/dist && mkdir -p .cache/dist
	cd fluxion_cy && $(CURDIR)/$(BIN)/python setup.py -q egg_info --egg-base $(CURDIR)/.cache/dist sdist -d $(CURDIR)/dist
	$(PIP) wheel --no-build-isolation --no-deps --no-index -w dist dist/fluxion_cy-*.tar.gz

# Everything of a release that can be built here, and a list of what cannot. RELEASE_CHECK='-o json' says it as JSON.
release-check: tools
	$(BIN)/python -m deploy.release_check $(RELEASE_CHECK)

constraints: $(STAMP)
	@mkdir -p .cache
	$(BIN)/python -m pip --disable-pip-version-check list --format=freeze --exclude-editable > .cache/constraints.txt
	mv .cache/constraints.txt constraints.txt

clean:
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist
	rm -rf fluxion_cy/build fluxion_cy/src/*.egg-info
	rm -f fluxion_cy/src/fluxion_cy/engine/*.cpp fluxion_cy/src/fluxion_cy/engine/*.so
