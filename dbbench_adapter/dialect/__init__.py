"""Runs MySQL on SQLite: statements are parsed as MySQL, checked as MySQL checks them, and translated for SQLite."""
