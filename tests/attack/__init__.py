"""What sites with bad intent, or with broken software, send."""
