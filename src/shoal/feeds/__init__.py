"""Where items come from: files and streams of URLs, read in constant memory."""
