"""The folder of csrun's modules."""

from pathlib import Path

# Not csrun.__path__: in an editable install, a folder `csrun` next to the user's script (such as a
# clone of the repository) makes csrun a namespace package whose path begins with that folder.
SOURCE_FOLDER = Path(__file__).parents[1]
