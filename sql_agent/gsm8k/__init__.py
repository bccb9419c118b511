"""Grade-school word problems for an agent with a calculator, in the form of GSM8K. doc/gsm8k.md describes it."""
