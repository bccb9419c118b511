"""Preference data in other people's forms: rows of files (`files`), messages (`messages`), pairs (`shapes`), statistics
of what came out (`summary`). Each module is pure but for `files`, and none imports torch."""
