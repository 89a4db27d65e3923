"""What ryarn costs, measured: `python -m benchmarks`, or `make bench`."""
