"""One page about one run: `reading` loads what was logged, `figures` draws it, and `page` makes the HTML."""
