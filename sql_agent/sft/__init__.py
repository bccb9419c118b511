"""Supervised fine-tuning on conversations whose assistant turns alone are learnt."""
