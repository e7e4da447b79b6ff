"""Ways into an engine: starting it with the agent in it (``launch``)."""
