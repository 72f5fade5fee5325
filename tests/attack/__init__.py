"""Input from malicious sites and from sites with broken software."""
