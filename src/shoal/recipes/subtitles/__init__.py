"""Captions of video channels as text: N workers on one queue, steered by REST and WebSocket, read on a page."""

from shoal.templates import ProjectTemplate

PROJECT = ProjectTemplate(
    name="subtitles",
    about="captions of the videos of channels as text, with workers under REST control",
    scraper="subtitles",
    stage="channel",
    package="shoal.recipes.subtitles",
    folder="project",
    commands=(
        ("pip install -r requirements.txt", "yt-dlp"),
        ("python -m shoal.recipes.subtitles.stand_in --port 8002 &", "a local site with a channel of 400 videos"),
        ("shoal try subtitles.py --stage video http://127.0.0.1:8002/watch/v0001", "one video, nothing stored"),
        ("shoal serve", "the page Subtitles: paste http://127.0.0.1:8002/@harbour there"),
        ("shoal run subtitles --urls-file channels.txt", "the same without a server"),
        ("pytest", "the tests, on saved captions"),
    ),
)
