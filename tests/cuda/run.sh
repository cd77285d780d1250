#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, with one command: the CUDA tests, then the benchmark.
#
#   sh tests/cuda/run.sh [OUT]
#
# Logs and results go to the folder OUT (default: benchmarks/results), as they come. Wheels in the
# folder .whl of the repository are unpacked first: a machine without network needs that of
# nvidia-cudnn-frontend. Nothing is built: numpy does what the native engine would do on the host.
#
# WHAT is "tests", "benchmark" or both (the default), where one command may not take long.
# TEST_MINUTES (default 8) limits the tests, FILE_SECONDS (default 180) those of one file, TESTS
# names the files. Every file has a process of its own, and a test that hangs ends after 60 s where
# pytest-timeout is there, so that no test takes the others with it. JOBS is how many processes test
# at a time where pytest-xdist is there (default 8). MINUTES (default 8) limits the benchmark, whose
# last measurement may take one more; BENCHMARK is further arguments for benchmarks/gpu.py. PYTHON
# chooses the interpreter. Not yet run on a GPU.
set -u
cd "$(dirname "$0")/../.." || exit 1
python=${PYTHON:-python3}
out=${1:-benchmarks/results}
mkdir -p "$out"

if ls .whl/*.whl >/dev/null 2>&1; then
    site=$(mktemp -d)
    "$python" -m pip install -q --no-index --no-deps --no-compile --upgrade --target "$site" \
        .whl/*.whl || exit 1
    PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}"
    export PYTHONPATH
fi
PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
PYTHONUNBUFFERED=1
export PYTHONPATH PYTHONUNBUFFERED

"$python" benchmarks/gpu.py --check || exit 2

has() { "$python" -c "import $1" 2>/dev/null; }

run_tests() {
    log="$out/cuda-tests.txt" found=0
    options="-q -m cuda --tb=short -rfE -p no:cacheprovider"
    has xdist && options="$options -n ${JOBS:-8}"
    has pytest_timeout && options="$options --timeout 60 --timeout-method thread"
    # first what the rest is made of
    files=${TESTS:-$(grep -lE 'mark\.cuda|machine' tests/cuda/test_kernels*.py tests/cuda/test_*.py |
        awk '!seen[$0]++')}
    end=$(($(date +%s) + 60 * ${TEST_MINUTES:-8}))
    : >"$log"
    for file in $files; do
        left=$((end - $(date +%s)))
        [ "$left" -gt "${FILE_SECONDS:-180}" ] && left=${FILE_SECONDS:-180}
        if [ "$left" -lt 10 ]; then
            echo "$file: not started, the time was over"
            found=1
            continue
        fi
        # shellcheck disable=SC2086  # words
        timeout -k 10 "$left" "$python" -m pytest $options "$file" >"$log.part" 2>&1
        status=$?
        cat "$log.part" >>"$log"
        case $status in
        0 | 5) ;; # 5: nothing in it needs a GPU
        124 | 137) echo "$file: stopped after $left s" && found=1 ;;
        *) found=1 ;;
        esac
        grep -E '^(FAILED|ERROR)' "$log.part" | cut -c 1-160 | head -n 12
        [ "$status" = 5 ] || echo "$file: $(tail -n 1 "$log.part" | cut -c 1-120)"
    done
    rm -f "$log.part"
    return "$found"
}

what=${WHAT:-tests benchmark}
failed=0
case $what in *tests*) run_tests || failed=1 ;; esac
case $what in *benchmark*)
    # shellcheck disable=SC2086  # words
    "$python" benchmarks/gpu.py --minutes "${MINUTES:-8}" --out "$out" ${BENCHMARK:-} \
        2>"$out/gpu-benchmark.log" || failed=1
    ;;
esac
exit "$failed"
