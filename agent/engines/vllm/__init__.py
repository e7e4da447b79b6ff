"""The vLLM adapter: what the probe hooks and reads in vLLM 0.28 to 0.33.

Invariant: importing it imports nothing of vLLM. Runs in the engine; standard library only.
"""
