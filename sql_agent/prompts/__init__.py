"""Fits first prompts to a model, in the same way for every command that plays or learns tasks."""
