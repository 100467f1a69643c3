#!/bin/sh
# Builds .venv-peers: other projects' replay buffers, trainings and updates, which `freewheel bench` runs beside ours.
# Does nothing when the versions it was built from are still the ones asked for. PYTHON names another interpreter.
set -eu

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
venv=.venv-peers
wanted=benchmarks/peers-constraints.txt
# Written last, so that an installation that was broken off is begun again.
built=$venv/built-from.txt

if [ -x "$venv/bin/python" ] && cmp -s "$wanted" "$built"; then
    echo "$venv is up to date"
    exit 0
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "tianshou needs Python 3.11 or newer; $python is $("$python" -V 2>&1). Name another: make peers PYTHON=python3.11" >&2
    exit 1
fi
"$python" -m venv --clear "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --constraint "$wanted" torch==2.13.0
pip install --constraint "$wanted" torch==2.13.0 cpprb stable-baselines3 torchrl tianshou jax sbx-rl
# An import that fails here would otherwise fail in the middle of a benchmark.
for module in cpprb stable_baselines3 torchrl.data tianshou.data jax sbx; do
    "$venv/bin/python" -W ignore -c "import $module"
done
cp "$wanted" "$built"
echo "$venv is ready: cpprb, stable-baselines3, torchrl, tianshou, jax, sbx-rl"
