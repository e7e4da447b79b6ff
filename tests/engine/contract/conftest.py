"""The contract with one engine version: whichever vLLM stands first on ``PYTHONPATH``, one version a process.

Invariant: nothing here asks for a version number except the test that the right one was tested. A build without kernels
for this machine (the GPU wheel) is tested up to its scheduler; the tests that run a model are not collected there.
"""

import importlib.util

# The CPU build's kernels; the GPU wheel has none of this name.
collect_ignore = [] if importlib.util.find_spec("vllm._C") else ["test_live.py"]
