"""Hygiene of the tree, the wheel and the start of the command."""
