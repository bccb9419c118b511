"""One page about one run: what was logged (`reading`), what it looks like (`figures`), and the page itself (`page`)."""
