"""Makes one page about one run: `reading` loads the logs, `figures` draws them, and `page` makes the HTML."""
