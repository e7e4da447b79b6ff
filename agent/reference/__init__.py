"""The reference engine: a small hybrid-attention inference engine on torch, and the oracle of the correctness tests.

Invariant: it shares no code with what it judges (it imports neither ``agent.resume`` nor ``agent.gates`` nor
``agent.table``), and nothing outside this package imports torch. Needs the extra ``reference``.
"""
