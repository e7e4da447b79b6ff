"""The screens: each shows one view of the latest picture."""
