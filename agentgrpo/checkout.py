"""Where this project's files are: a clone of the repository, or an installed package without one."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IS_CLONE = (ROOT / "scripts" / "setup.sh").is_file()
# Here are the folders models/ and data/ that commands make: in the clone, or where the command was started.
HOME = ROOT if IS_CLONE else Path.cwd()
