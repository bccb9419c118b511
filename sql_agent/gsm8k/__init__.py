"""Grade-school word problems in the form of GSM8K, for an agent with a calculator (doc/project/predecessors.md)."""
