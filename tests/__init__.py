"""Tests of kvctl; `tests/engine` needs vLLM, the rest does not."""
