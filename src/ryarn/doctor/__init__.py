"""`ryarn doctor`: which RoPE is live in a model, and whether all that describes it agrees."""
