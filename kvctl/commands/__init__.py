"""One file, one command. Nothing here is imported before its command is chosen."""
