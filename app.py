"""The entry for people and for Spaces: ``python app.py``."""

from playground.shell.site import launch

if __name__ == "__main__":
    launch()
