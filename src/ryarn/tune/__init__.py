"""`ryarn tune`: hyper-parameters chosen on held-out rows."""
