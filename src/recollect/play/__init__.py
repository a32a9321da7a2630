"""Show an agent's episodes: as text in the terminal, or as a video with its memory."""

from recollect.play.frames import Film, NoFramesError, record_film
from recollect.play.text import show
from recollect.play.video import check_path, write_film

__all__ = ["Film", "NoFramesError", "check_path", "record_film", "show", "write_film"]
