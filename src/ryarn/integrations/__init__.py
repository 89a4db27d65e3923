"""Other people's trainers and harnesses: one module each, none loaded unless it is asked for."""
