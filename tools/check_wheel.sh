#!/usr/bin/env bash
# The wheel builds, installs into an empty environment, and explains the bundled example from another directory.
set -euo pipefail

cd "$(dirname "$0")/.."
root=$PWD
python=$root/.venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; echo "check_wheel: failed: $*" >&2; exit 1; }; }

quietly "$python" -m build --wheel --outdir "$work/dist" "$root"
wheel=$(echo "$work"/dist/*.whl)

# everything that is not Python and lies in the package must be in the wheel
quietly "$python" - "$wheel" "$root/src" <<'PY'
import sys
import zipfile
from pathlib import Path

wheel, source = zipfile.ZipFile(sys.argv[1]), Path(sys.argv[2])
inside = set(wheel.namelist())
package = {
    path.relative_to(source).as_posix()
    for path in (source / "stepscope").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}
assert any(name.startswith("stepscope/budget/catalog/") and name.endswith(".toml") for name in inside), "no catalog"
assert "stepscope/py.typed" in inside, "no py.typed"
assert package <= inside, f"not in the wheel: {sorted(package - inside)}"
foreign = {name for name in inside if not name.startswith("stepscope") or "__pycache__" in name}
assert not foreign, f"should not be in the wheel: {sorted(foreign)}"
PY

quietly "$python" -m venv "$work/venv"
quietly "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$wheel"

cd "$work"  # away from the checkout, so that nothing is found by accident
version=$("$work/venv/bin/stepscope" --version)
quietly "$work/venv/bin/stepscope" explain "$root/examples/vllm-cpu-tp2" --format json --output "$work/report.json"
quietly "$work/venv/bin/python" - "$work" <<'PY'
import json
import sys
from pathlib import Path

import stepscope

work = Path(sys.argv[1])
assert Path(stepscope.__file__).is_relative_to(work.resolve()), stepscope.__file__
report = json.loads((work / "report.json").read_text(encoding="utf-8"))
assert report["steps"]["count"] == 12, report["steps"]["count"]
PY
echo "wheel: $(basename "$wheel") builds, installs alone and runs ($version)"
