#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU, with one command: the CUDA tests, then the benchmark.
#
#   sh tests/cuda/run.sh [OUT]
#
# Logs and results go to the folder OUT (default: benchmarks/results). Wheels in the folder .whl of
# the repository are unpacked first: a machine without network needs that of nvidia-cudnn-frontend.
# WHAT is "tests", "benchmark" or both (the default), where one command may not take long; MINUTES
# limits the benchmark (default 12), JOBS is how many processes test at a time where pytest-xdist is
# there (default 8), PYTHON chooses the interpreter. Not yet run on a GPU.
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

what=${WHAT:-tests benchmark}
failed=0
verdict="not run"
case $what in *tests*)
    jobs=""
    "$python" -c 'import xdist' 2>/dev/null && jobs="-n ${JOBS:-8}"
    # shellcheck disable=SC2086  # two words
    "$python" -m pytest -q -m cuda -p no:cacheprovider $jobs tests/cuda >"$out/cuda-tests.txt" 2>&1 ||
        failed=1
    grep -E '^(FAILED|ERROR)' "$out/cuda-tests.txt" | head -n 40
    verdict=$(tail -n 1 "$out/cuda-tests.txt")
    ;;
esac
case $what in *benchmark*)
    "$python" benchmarks/gpu.py --minutes "${MINUTES:-12}" --out "$out" \
        2>"$out/gpu-benchmark.log" || failed=1
    ;;
esac
echo "CUDA tests: $verdict"
exit "$failed"
