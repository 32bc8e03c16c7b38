"""``python -m jitney``: the command line."""

from jitney.cli.main import main

if __name__ == "__main__":
    main()
