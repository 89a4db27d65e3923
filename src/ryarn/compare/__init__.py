"""`ryarn compare`: a grid of methods, seeds and tasks, run cell by cell and set side by side."""
