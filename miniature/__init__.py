"""How the packaged base model of the miniature was made: `python -m miniature`."""
