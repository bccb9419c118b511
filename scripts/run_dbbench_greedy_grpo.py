"""`agentgrpo greedy-grpo`, under its earlier name."""

from agentgrpo.main import script

if __name__ == "__main__":
    script("greedy-grpo")
