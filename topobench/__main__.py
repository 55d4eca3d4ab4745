"""``python -m topobench``."""

from topobench.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
