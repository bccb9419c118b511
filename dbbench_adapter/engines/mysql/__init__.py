"""Runs episodes on a MariaDB or MySQL server, with one database and one user for each episode."""
