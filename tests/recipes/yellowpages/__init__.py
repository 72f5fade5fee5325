"""The recipe `yellowpages` (S3): its project, its stand-in, and the acceptance scenario."""
