"""Reads task files: `records` reads one row, `load` whole files, and `single_skill` picks tasks of one skill."""
