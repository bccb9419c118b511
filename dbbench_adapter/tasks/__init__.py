"""Task files: what one row holds (`records`), whole files (`load`), and tasks of one skill (`single_skill`)."""
