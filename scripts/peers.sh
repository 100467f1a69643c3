#!/bin/sh
# Builds what `python -m benchmarks` runs beside ours: .venv-peers with other projects' replay buffers, trainings, vector envs and updates;
# .venv-peers-puffer (PufferLib) and .venv-peers-sf (Sample Factory), which need older packages than the others.
# Does nothing where the versions it was built from are still the ones asked for. PYTHON names another interpreter.
#   peers.sh              all; of PufferLib and Sample Factory one that cannot be installed is told of and left out
#   peers.sh main|puffer|sf   one of them
set -eu

cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
which=${1:-all}

if [ "$which" = all ]; then
    sh scripts/peers.sh main
    for one in puffer sf; do
        sh scripts/peers.sh "$one" || echo "$one could not be installed and is left out: its last lines are above." >&2
    done
    exit 0
fi

case $which in
main) venv=.venv-peers wanted=benchmarks/peers-constraints.txt ;;
puffer | sf) venv=.venv-peers-$which wanted=benchmarks/peers-$which-constraints.txt ;;
*)
    echo "there is no peer environment '$which': main, puffer or sf" >&2
    exit 2
    ;;
esac
# Written last, so that an installation that was broken off is begun again.
built=$venv/built-from.txt

if [ -x "$venv/bin/python" ] && cmp -s "$wanted" "$built"; then
    echo "$venv is up to date"
    exit 0
fi

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "the peers need Python 3.11 or newer; $python is $("$python" -V 2>&1). Name another: make peers PYTHON=python3.11" >&2
    exit 1
fi

pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }

# An import that fails here would otherwise fail in the middle of a benchmark.
can_import() {
    for module in "$@"; do
        "$venv/bin/python" -W ignore -c "import $module"
    done
}

install_main() {
    pip install --constraint "$wanted" torch==2.13.0 cpprb stable-baselines3 torchrl tianshou jax sbx-rl envpool ale-py opencv-python-headless \
        "gymnasium[mujoco]"
    can_import cpprb stable_baselines3 torchrl.data tianshou.data jax sbx envpool ale_py cv2 mujoco
    echo "$venv is ready: cpprb, stable-baselines3, torchrl, tianshou, jax, sbx-rl, envpool, ale-py, mujoco"
}

# Its source package wants to fetch raylib for envs of its own (Ocean), which are not measured here; without them its setup script
# asks for a name that it never defined, and with nvcc it would build for CUDA.
install_puffer() {
    pip install --constraint "$wanted" setuptools wheel numpy cython pybind11 ninja
    pth=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/pufferlib-build.pth
    echo 'import builtins; builtins.c_extension_paths = []' >"$pth"
    PATH=$(path_without_nvcc) NO_OCEAN=1 pip install --constraint "$wanted" --no-build-isolation pufferlib
    rm "$pth"
    pip install --constraint "$wanted" "gymnasium[classic-control]"
    # Importing it leaves a link to its resources in the current directory.
    here=$PWD
    scratch=$(mktemp -d)
    (cd "$scratch" && "$here/$venv/bin/python" -W ignore -c 'import pufferlib.vector, pufferlib.emulation, pufferlib.pufferl')
    rm -r "$scratch"
    echo "$venv is ready: pufferlib"
}

path_without_nvcc() {
    echo "$PATH" | tr : '\n' | while read -r folder; do [ -x "$folder/nvcc" ] || printf '%s:' "$folder"; done
}

install_sf() {
    pip install --constraint "$wanted" torch==2.13.0 sample-factory "gymnasium[classic-control]"
    can_import sample_factory.train
    echo "$venv is ready: sample-factory"
}

"$python" -m venv --clear "$venv"
pip install --constraint "$wanted" torch==2.13.0
"install_$which"
cp "$wanted" "$built"
