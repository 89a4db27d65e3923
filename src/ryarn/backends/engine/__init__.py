"""Programs for an engine's own Python, in a folder of their own: it comes first on their path."""
