"""Fine-tunes a model on conversations with supervision, on the assistant turns only."""
