"""Holds the parts of the benchmarks: most modules measure one part and return `report.Row`s."""
