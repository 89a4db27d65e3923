"""The paper's protocol: its numbers, what its data should hold, and its recipes in small."""
