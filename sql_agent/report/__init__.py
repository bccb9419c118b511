"""Makes one page about a run: `reading` loads the logs, `figures` and `questions` say what is shown, `drawing` draws
the figures and `page` makes the HTML. `compare` makes a page about two runs."""
