"""Projects to start from: what `shoal init` writes into a folder."""
