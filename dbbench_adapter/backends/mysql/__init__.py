"""The faithful backend: a MariaDB or MySQL server, one database and one user for each episode."""
