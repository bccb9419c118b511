"""`agentgrpo tasks single-skill`, under its earlier name."""

from agentgrpo.main import script

if __name__ == "__main__":
    script("tasks single-skill")
