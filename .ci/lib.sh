# Shared by the scripts of this folder: choosing a Python, timed stages, the summary. Sourced, never run.

# The newest Python we are tested with, or any that is new enough; `python3` then means that one in every stage.
choose_python() {
  local candidate
  for candidate in python3.11 python3 python3.12 python3.13; do
    if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      PYTHON=$(command -v "$candidate")
      printf '#!/bin/sh\nexec "%s" "$@"\n' "$PYTHON" >"$CI_OUT/bin/python3"
      chmod +x "$CI_OUT/bin/python3"
      PATH=$CI_OUT/bin:$PATH
      echo "python: $("$PYTHON" --version) ($PYTHON)"
      return
    fi
  done
  echo "no Python 3.11 or newer with venv was found" >&2
  exit 1
}

# stage NAME COMMAND...: runs it, notes how it ended and how long it took; a failure does not stop the later stages.
stage() {
  local name=$1 begin=$SECONDS status=0
  shift
  echo "=== $name"
  # Not `"$@" || status=$?`: that would switch off `set -e` inside the stage.
  set +e
  (set -euo pipefail; "$@") </dev/null
  status=$?
  set -e
  printf '%s\t%s\t%s\n' "$name" "$status" "$((SECONDS - begin))" >>"$CI_OUT/stages.tsv"
  echo "=== $name: $([ "$status" -eq 0 ] && echo ok || echo "FAILED ($status)"), $((SECONDS - begin)) s"
  return 0
}

# stage_ok NAME: did that stage end well?
stage_ok() {
  grep -q "^$1	0	" "$CI_OUT/stages.tsv"
}

# The terminal in which the dashboard is looked at; Debian's package, installed where it is missing and we are root.
install_tmux() {
  if command -v tmux >/dev/null; then return; fi
  apt-get -qq update || true
  DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends tmux
}

summarise() {
  "$PYTHON" .ci/summary.py "$CI_OUT/stages.tsv" "$CI_OUT/junit"
}
