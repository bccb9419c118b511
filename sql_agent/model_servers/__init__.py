"""Reads and asks servers of OpenAI's chat completions, whatever their manners are."""
