"""Benchmarks and their recorded results. Not tests: nothing here asserts a time."""
