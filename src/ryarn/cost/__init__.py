"""What a recipe takes of an accelerator, worked out before anything is loaded."""
