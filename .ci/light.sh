# The job without vLLM: what the README tells a newcomer to run, then linters and types. Sourced by run. The README's
# first command brings torch, so that the second one tests our own engine, too.

readme_command() { # readme_command N: the N-th shell block of the README, exactly as printed there
  "$PYTHON" .ci/readme.py README.md "$1"
}

light_main_job() { bash -euo pipefail -c "$(readme_command 1)"; }

light_tests() {
  PYTEST_ADDOPTS="--junitxml=$CI_OUT/junit/light.xml --durations=10" bash -euo pipefail -c "$(readme_command 2)"
}

light_types() { .venv/bin/mypy && .venv/bin/mypy .ci/readme.py .ci/summary.py .ci/engines/requirements.py; }

light_job() {
  stage "light: README command 1 (main job)" light_main_job
  stage "light: README command 2 (tests)" light_tests
  if [ -x .venv/bin/ruff ]; then
    stage "light: ruff check" .venv/bin/ruff check .
    stage "light: ruff format" .venv/bin/ruff format --check .
    stage "light: mypy --strict" light_types
    stage "light: import contracts" .venv/bin/lint-imports --no-cache
  else
    stage "light: linters are not installed" false
  fi
}
