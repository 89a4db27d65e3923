"""`ryarn plan`: what a recipe will do, before any model is loaded."""
