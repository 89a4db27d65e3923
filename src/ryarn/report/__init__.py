"""`ryarn report`: evaluated runs as tables, paired tests, a figure and one page."""
